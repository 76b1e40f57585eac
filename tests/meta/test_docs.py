"""What the documents tell people to type works."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from dflash_spec.registry import load_clauses
from dflash_vectors.cases import read_index
from dflash_vectors.faults import all_faults

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
CI_RUNS = {"make check", "make test", "make kill"}


def blocks(language: str) -> list[ParameterSet]:
    found = []
    for document in DOCUMENTS:
        for number, (kind, text) in enumerate(BLOCK.findall(document.read_text("utf-8")), 1):
            if kind == language:
                found.append(pytest.param(text, id=f"{document.name}-{number}"))
    return found


def run(command: list[str], cwd: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like the repository, in which a command may write without touching it."""
    for entry in ROOT.iterdir():
        if entry.name not in {".git", ".venv", "build", "dist"}:
            (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


@pytest.mark.parametrize("text", blocks("sh"))
def test_every_shell_block_of_the_documents_runs(text: str, checkout: Path) -> None:
    lines = [line for line in text.splitlines() if line.strip() not in CI_RUNS]
    run(["bash", "-euo", "pipefail", "-c", "\n".join(lines)], checkout)


@pytest.mark.parametrize("text", blocks("python"))
def test_every_python_block_of_the_documents_runs(text: str, checkout: Path) -> None:
    run([sys.executable, "-W", "error", "-c", text], checkout)


def test_ci_runs_the_make_commands_that_the_documents_leave_to_it() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    made = {word for line in re.findall("^make (.*)$", script, re.MULTILINE) for word in line.split()}
    assert {f"make {target}" for target in made} >= CI_RUNS


def test_the_readme_counts_what_is_there() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    entries = read_index(ROOT / "vectors" / "golden")
    chapters = Counter(entry.op.chapter for entry in entries if entry.profile.name == "zlab")
    rows = dict(re.findall(r"^(?:zlab)? +([A-Z]+) +(\d+) ", text, re.MULTILINE))
    assert {chapter: int(count) for chapter, count in rows.items()} == chapters
    assert f"{len(load_clauses())} clauses" in text
    assert f"{len(all_faults())} faults" in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    broken = [link for link in LINK.findall(document.read_text("utf-8")) if not (document.parent / link).exists()]
    assert broken == []


def test_the_engines_page_names_files_that_are_there_and_every_header_in_c() -> None:
    package = ROOT / "accelerated" / "dflash_accelerated"
    text = (ROOT / "docs" / "engine.md").read_text("utf-8")
    table = text.partition("## How it is built\n")[2].partition("\n### ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([^`<]+)`", cell)}
    assert [name for name in sorted(named) if not (package / name).exists()] == []
    assert {f"native/{path.name}" for path in (package / "native").glob("*.[ch]")} <= named
