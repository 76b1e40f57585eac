"""Every kernel compiles for a GPU of compute capability 9.0, which takes no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dflash_accelerated
import pytest

OPS = Path(dflash_accelerated.__file__).parent / "ops"
PARTS = {"rounding"}
"""Ops whose Triton file starts no kernel: its functions are compiled in the kernels that call them."""

SLOW = ["attention"]
"""Ops that take about as long as all others together; the two halves may run at once."""

FOLDERS = sorted({path.parent.name for path in OPS.glob("*/triton.py")} - PARTS)


def test_there_are_kernels():
    assert len(FOLDERS) > 8
    assert all((OPS / part / "triton.py").exists() for part in PARTS)


@pytest.mark.parametrize("ops", [SLOW, [op for op in FOLDERS if op not in SLOW]], ids=["attention", "others"])
def test_every_kernel_that_an_op_starts_compiles(ops, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("ahead.py")), *ops]
    run = subprocess.run(
        command, env=environment | {"TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    for op, made in json.loads(run.stdout.splitlines()[-1]).items():
        assert made["launched"], f"{op}/triton.py starts no kernel"
        assert made["compiled"] == made["launched"], f"variants() of {op}/triton.py"
        if op == "conv":  # nothing but sums and products: fused, they would round once where PyTorch rounds twice
            assert made["fused"] == 0
