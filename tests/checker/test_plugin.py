"""The pytest plug-in in a porter's own repository, and in one that has nothing to do with us."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

PORT = """\
import numpy as np
class Port:
    def describe(self):
        return {"name": "mine", "version": "1", "profile": "zlab", "ops": ["law.greedy", "tap.concat"]}
    def run(self, op, inputs):
        if op == "tap.concat":
            return {"features": np.zeros((2, 4), np.float32)}
        return {"licensed": [5, 7, 0], "accepted": 1}
def create(profile):
    return Port()
"""

GOLDEN = """\
from pathlib import Path
import dflash_vectors.cases
dflash_vectors.cases.default_folder = lambda: Path({folder!r})
"""


@pytest.fixture
def repository(tmp_path: Path, vectors: Any) -> Path:
    """A porter's repository with a test of its own, that sees the hand-made vectors as the package's."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "my_port.py").write_text(PORT)
    (folder / "test_own.py").write_text("def test_own():\n    pass\n")
    (folder / "conftest.py").write_text(GOLDEN.format(folder=str(vectors.folder)))
    return folder


def pytest_in(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    others = [word for name in ("anyio", "hypothesispytest", "xdist", "cacheprovider") for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", *others, "-rA", "-W", "error", *words]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(
        command, cwd=folder, env=inherited | environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_plug_in_is_installed() -> None:
    assert [e.value for e in entry_points(group="pytest11") if e.name == "dflash"] == ["dflash_vectors.plugin"]


def test_each_vector_is_a_test_and_the_own_tests_are_left_out(repository: Path, vectors: Any) -> None:
    words = ("-m", "conformance", "--implementation", "python:my_port:create", "--profile", "zlab")
    done = pytest_in(repository, *words, COLUMNS="200")  # pytest cuts the summary's lines to the terminal
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed, 2 skipped, 1 deselected" in done.stdout
    assert f"PASSED ::python:my_port:create::{vectors.GREEDY}" in done.stdout
    assert "not supported: op context.feature is not declared" in done.stdout
    assert "TAP-002  Slice k of the features" in done.stdout
    assert "diverges   first at out.features[0, 0], 8 of 8 wrong" in done.stdout
    assert (
        f"FAILED ::python:my_port:create::{vectors.TAP} - breaks TAP-002: {vectors.TAP}: out.features[0, 0]"
        in done.stdout
    )
    assert "smallest failing vector" not in done.stdout
    assert "Traceback" not in done.stdout


def test_without_a_profile_the_vectors_of_the_others_are_skipped(repository: Path) -> None:
    done = pytest_in(repository, "-m", "conformance", "--implementation=python:my_port:create")
    assert "1 failed, 1 passed, 4 skipped" in done.stdout
    assert "describes profile zlab" in done.stdout


def test_the_options_may_stand_in_the_environment_or_in_the_configuration(repository: Path) -> None:
    words = "--implementation python:my_port:create --profile zlab"
    assert "1 failed, 2 passed, 2 skipped" in pytest_in(repository, PYTEST_ADDOPTS=words).stdout
    (repository / "pytest.ini").write_text(f"[pytest]\naddopts = {words}\n")
    assert "1 failed, 2 passed, 2 skipped" in pytest_in(repository).stdout


def test_vectors_can_be_chosen_by_name(repository: Path) -> None:
    done = pytest_in(repository, "-k", "law-greedy", "--implementation", "python:my_port:create")
    assert done.returncode == 0
    assert "1 passed" in done.stdout


def test_a_program_is_started_once_and_stopped_at_the_end(repository: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "stdio_port.py"
    command = f"stdio:{shlex.quote(sys.executable)} {shlex.quote(str(example))}"
    done = pytest_in(repository, "-m", "conformance", "--implementation", command, "--profile", "zlab")
    assert "1 passed, 3 skipped" in done.stdout, done.stdout


def test_an_implementation_that_cannot_be_run_is_one_usage_error_with_the_reason(repository: Path) -> None:
    done = pytest_in(repository, "-m", "conformance", "--implementation", "python:no_such:create", "--profile", "zlab")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.count("could not be run: no_such:create: cannot be built: ModuleNotFoundError") == 1
    assert not done.stdout.count("no_such")


def test_a_missing_vector_set_is_a_usage_error(repository: Path, vectors: Any) -> None:
    (vectors.folder / "index.json").unlink()
    done = pytest_in(repository, "--implementation", "python:my_port:create")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no index.json" in done.stderr


def test_a_session_that_does_not_ask_for_it_is_not_disturbed(tmp_path: Path) -> None:
    """Others may have options of the same names, and pay nothing for what they do not use."""
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--implementation')\n"
        "    parser.addoption('--profile', action='store_true')\n"
    )
    (tmp_path / "test_own.py").write_text(
        "import sys\n"
        "def test_own(request):\n"
        "    assert request.config.getoption('implementation') == 'fast'\n"
        "    assert request.config.getoption('profile') is True\n"
        "    assert not {'dflash_spec', 'dflash_vectors.checker', 'numpy', 'torch'} & set(sys.modules)\n"
    )
    done = pytest_in(tmp_path, "--implementation", "fast", "--profile", "--strict-markers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_an_unknown_profile_is_told_which_there_are(repository: Path) -> None:
    done = pytest_in(repository, "--implementation", "python:my_port:create", "--profile", "vllm")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ninfer" in done.stderr
