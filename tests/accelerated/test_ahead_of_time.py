"""Every kernel that an engine launches compiles for an NVIDIA GPU of compute capability 9.0, and fits it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dflash_accelerated
import pytest

ROOT = Path(__file__).parents[2]
OPS = Path(dflash_accelerated.__file__).parent / "ops"
ENGINES = [
    {"profile": "zlab", "dtype": "bfloat16", "second": True, "temperature": 0.7},
    {"profile": "ninfer", "dtype": "bfloat16", "second": True, "temperature": 0.7},
    {"profile": "zlab", "dtype": "float32", "second": False, "temperature": 0.7},
]
"""All three combinations of dtypes, both kinds of draft."""

SHARED = 227 << 10
"""Bytes of shared memory that a program may have, by NVIDIA's CUDA C++ Programming Guide."""

BULK = {"_attend", "_best", "_best_of_tile", "_convolve", "_gated", "_norm_rope", "_rms_norm", "_store", "_top_of_tile"}
"""Kernels that read whole rows of activations, weights or logits."""


def started() -> set[str]:
    """The kernels that an op starts: what is called as `name[grid](...)`."""
    calls = [
        node.func
        for path in OPS.glob("*/triton.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
    ]
    return {call.value.id for call in calls if isinstance(call, ast.Subscript) and isinstance(call.value, ast.Name)}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each kernel came to, once for each way in which it is launched."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    made = []
    for engine in ENGINES:
        command = [sys.executable, "-m", "tests.accelerated.ahead", json.dumps(engine)]
        run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        made += json.loads(run.stdout.splitlines()[-1])
    return made


def test_engines_launch_every_kernel_that_there_is(compiled: list[dict[str, Any]]) -> None:
    assert {kernel["name"] for kernel in compiled} == started()
    assert len(started()) > 15


def test_kernels_fit_a_multiprocessor(compiled: list[dict[str, Any]]) -> None:
    """A stack would be registers that are spilled to memory."""
    assert not [kernel for kernel in compiled if kernel["shared"] > SHARED or kernel["stack"]]


def test_rows_are_read_many_bytes_at_a_time(compiled: list[dict[str, Any]]) -> None:
    assert not [kernel for kernel in compiled if kernel["name"] in BULK and not kernel["wide_reads"]]


def test_products_of_bf16_run_on_tensor_cores_and_no_others(compiled: list[dict[str, Any]]) -> None:
    """Tensor cores would round FP32 operands."""
    wanted = [kernel["name"] in ("_attend", "_top_of_tile") and "*bf16" in kernel["types"] for kernel in compiled]
    assert [kernel["tensor_cores"] > 0 for kernel in compiled] == wanted


def test_sums_and_products_are_not_fused(compiled: list[dict[str, Any]]) -> None:
    """They would round once where PyTorch rounds twice. FP32 attention adds in FP32 itself."""
    assert {kernel["name"] for kernel in compiled if kernel["fused"]} == {"_attend"}
