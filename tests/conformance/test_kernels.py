"""The engine's kernels give what the vectors say, and the vectors reach every one of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dflash_accelerated
import pytest
from dflash_accelerated.native import available
from dflash_vectors.cases import Entry, default_folder, read_index

ROOT = Path(__file__).parents[2]
OPS = Path(dflash_accelerated.__file__).parent / "ops"
DISPATCHED = re.compile(r"^@dispatched\(([^)]*)\)\ndef (\w+)", re.MULTILINE)

ROWS = 9
"""Of a whole request, the most tokens of prompt and budget. In Triton's interpreter the four requests that are left
take a quarter as long as all other vectors, and all sixty several times as long. `check_vectors` runs all:

    TRITON_INTERPRET=1 dflash-check-vectors --implementation python:dflash_accelerated.conformance:triton
"""


def kernels(name: str) -> set[str]:
    """The functions, as `op.name`, that dispatch finds in files of this name."""
    found = {path.parent.name: DISPATCHED.findall(path.read_text("utf-8")) for path in OPS.glob("*/torch.py")}
    return {f"{op}.{function}" for op, own in found.items() for files, function in own if f'"{name}"' in files}


def run(name: str, *rows: int) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "tests.conformance.reach", name, *map(str, rows)]
    interpreted = {"TRITON_INTERPRET": "1"} if name == "triton" else {}
    made = subprocess.run(command, cwd=ROOT, env=environment | interpreted, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    report: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    assert not report["failures"], "\n\n".join(report["failures"].values())
    assert set(report["reached"]) == kernels(name)
    return report


@pytest.mark.conformance
@pytest.mark.skipif(not available(), reason="no C compiler")
def test_vectors_reach_every_kernel_in_c() -> None:
    assert run("native")["left_out"] == []


@pytest.mark.conformance
def test_vectors_reach_every_kernel_in_triton_and_pass() -> None:
    report = run("triton", ROWS)
    by_id = {entry.id: entry for entry in read_index(default_folder())}
    ran, left_out = ([by_id[id_] for id_ in report[part]] for part in ("passed", "left_out"))
    assert all(is_request(entry) for entry in left_out)
    requests = {(entry.profile.name, "dflash2" in entry.id) for entry in ran if is_request(entry)}
    assert requests == {(profile, second) for profile in ("ninfer", "zlab") for second in (False, True)}


def is_request(entry: Entry) -> bool:
    return entry.op.name.startswith("engine.")


@pytest.mark.parametrize("interpreted", [{}, {"TRITON_INTERPRET": "0"}], ids=["unset", "0"])
def test_triton_on_a_cpu_says_that_it_needs_its_interpreter(interpreted: dict[str, str]) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | interpreted
    code = "from dflash_accelerated.conformance import triton\ntriton('zlab')"
    made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 1
    last = made.stderr.splitlines()[-1]
    assert last.startswith("dflash_spec.errors.RequestError: kernels is 'triton' on device cpu, expected"), last
    assert "TRITON_INTERPRET=1" in last
