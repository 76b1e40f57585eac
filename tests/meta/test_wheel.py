"""The wheel alone, in an empty folder, brings the vectors and working commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(command: list[str], cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel, and nothing else, is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip"]
    run([*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder / "dist"), str(ROOT)], folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    run([*pip, "install", "-q", "--no-deps", "--target", str(folder / "site"), str(wheel)], folder)
    return folder


def python(installed: Path, code: str) -> str:
    return run([sys.executable, "-c", code], installed, PYTHONPATH=str(installed / "site")).strip()


def test_every_package_comes_from_the_wheel(installed: Path) -> None:
    for package in ("dflash_spec", "dflash_reference", "dflash_accelerated", "dflash_vectors"):
        found = Path(python(installed, f"import {package}; print({package}.__file__)"))
        assert found.is_relative_to(installed / "site"), found


def test_the_wheel_carries_the_spec_and_every_golden_vector(installed: Path) -> None:
    site = installed / "site"
    golden = ROOT / "vectors" / "golden"
    committed = {path.relative_to(golden) for path in golden.rglob("*") if path.is_file()}
    shipped = {path.relative_to(site / "dflash_vectors/golden") for path in site.glob("dflash_vectors/golden/**/*.*")}
    assert committed == shipped
    assert len(python(installed, "from dflash_spec.registry import load_clauses; print(*load_clauses())").split()) > 80


def test_the_console_command_checks_an_implementation_with_the_shipped_vectors(installed: Path) -> None:
    command = [
        sys.executable,
        str(installed / "site/bin/dflash-check-vectors"),
        "--implementation=python:dflash_vectors.implementations.reference:create",
        "--chapter=RNG",
    ]
    table = run(command, installed, PYTHONPATH=str(installed / "site"))
    assert "RNG" in table


def test_the_console_command_judges_the_law_of_an_implementation(installed: Path) -> None:
    command = [
        sys.executable,
        str(installed / "site/bin/dflash-check-law"),
        "--implementation=python:dflash_vectors.implementations.reference:create",
        "--op=proc.draw",
    ]
    assert "14 laws hold, 0 broken" in run(command, installed, PYTHONPATH=str(installed / "site"))
