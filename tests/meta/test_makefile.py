"""`make check` on machines with a C compiler and without."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKED = "check_vectors.py"
PYTHON = """#!/bin/sh
case "$*" in
  *dflash_accelerated.native*) PATH={path} exec {python} "$@";;
  *) echo "$@";;
esac
"""


@pytest.mark.parametrize("compiler", [True, False], ids=["compiler", "none"])
def test_the_kernels_in_c_have_a_column_or_a_reason_why_not(compiler: bool, tmp_path: Path) -> None:
    """What the recipe would run, told by a stand-in for Python that lets only the look for a compiler through."""
    if compiler and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler")
    python = tmp_path / "python"
    python.write_text(
        PYTHON.format(path=os.environ["PATH"] if compiler else "/nowhere", python=sys.executable), "utf-8"
    )
    python.chmod(0o755)
    (tmp_path / "ready").touch()
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "MAKEFLAGS")}
    command = ["make", "-s", "check", f"BIN={tmp_path}", f"READY={tmp_path / 'ready'}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
    (checked,) = (line for line in done.stdout.splitlines() if CHECKED in line)
    assert checked.count("--implementation") == 4 + compiler
    assert ("dflash_accelerated.conformance:native" in checked) is compiler
    assert ("the table has no column for the kernels in C" in done.stdout) is not compiler
    assert ("expected a C compiler" in done.stderr) is not compiler


def test_setup_makes_the_environment_and_nothing_else(tmp_path: Path) -> None:
    """With the environment there, it has nothing to do; without, it would do what every other target does first."""
    ready = tmp_path / "ready"
    command = ["make", "-n", "setup", f"BIN={tmp_path}", f"READY={ready}"]
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}

    def told() -> str:
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert "pip install" in told()
    assert "tools/" not in told()
    ready.touch()
    assert "pip install" not in told()
