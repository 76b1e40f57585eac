"""What all commands have in common: a stdout that does not take what they print, places that cannot be written to."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from dflash_vectors.commands import bench, check_trace, check_vectors, gen_vectors, make_planted_pair

TOOLS = Path(__file__).parents[2] / "tools"
QUICK = {
    "check_law": ["--implementation", "python:dflash_vectors.law.controls:right", "--op", "proc.draw"],
    "check_vectors": ["--implementation", "files:{folder}", "--id", "zlab-law-greedy-one-match"],
    "enumerate_law": ["--fault", "greedy-at-0-alone"],
    "gen_vectors": ["--suite", "stop.preview", "--profile", "zlab", "--out", "{folder}/set"],
    "kill_faults": ["--fault", "residual-by-size", "--vectors", "{folder}/law"],
    "make_planted_pair": ["--preset", "small", "--new-tokens", "20", "--out", "{folder}/pair"],
}
"""Tool -> words with which it soon has something to print. (check_trace: tests/traces/test_command.py.)"""
COST = {"check_law": "dflash-check-law: Engine (ninfer): 7 laws\n"}
"""What is told on stderr before the work begins."""
CODES = {"check_vectors": 1}
"""Exit codes other than 0 of these runs."""


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vectors of one op, which is all that a fault needs here."""
    folder = tmp_path_factory.mktemp("few") / "law"
    assert gen_vectors.main(["--suite", "law.sparse", "--profile", "zlab", "--out", str(folder)]) == 0
    return folder


def command(tool: str, folder: Path, few: Path) -> list[str]:
    """The command line of a quick run."""
    words = [str(few) if word == "{folder}/law" else word.format(folder=folder) for word in QUICK[tool]]
    return [sys.executable, str(TOOLS / f"{tool}.py"), *words]


@pytest.mark.parametrize("tool", QUICK)
def test_a_reader_that_has_left_ends_a_run_without_a_word(tool: str, tmp_path: Path, few: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command(tool, tmp_path, few), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
        check=False)  # fmt: skip
    os.close(writer)
    assert done.returncode == 2
    assert done.stderr == COST.get(tool, "")


@pytest.mark.parametrize("tool", QUICK)
def test_a_stdout_without_room_is_one_line_and_exit_code_2(tool: str, tmp_path: Path, few: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(command(tool, tmp_path, few), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False)  # fmt: skip
    assert done.returncode == 2
    name = tool.replace("_", "-")
    assert f"dflash-{name}: stdout: No space left on device: " in done.stderr
    assert done.stderr.count("\n") == 1 + COST.get(tool, "").count("\n")


@pytest.mark.parametrize("tool", QUICK)
def test_without_a_stdout_a_run_has_its_exit_code(tool: str, tmp_path: Path, few: Path) -> None:
    closed = ["sh", "-c", f"{shlex.join(command(tool, tmp_path, few))} >&-"]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == CODES.get(tool, 0), done.stderr
    assert "Traceback" not in done.stderr


PLACES = {
    "below a file": ("file/below{suffix}", "file is no folder"),
    "read only": ("sealed/new{suffix}", "sealed cannot be written to"),
    "too long": ("x" * 300 + "/new{suffix}", "File name too long"),
    "no folder": ("absent/deep/new{suffix}", "deep is not there, expected a folder"),
    "a folder": ("taken{suffix}", "is a folder"),
}
WRITERS = {
    "bench": (bench.main, ["--quick", "--threads", "1", "--plot"], ".svg"),
    "make_planted_pair": (make_planted_pair.main, ["--out"], ""),
    "check_trace": (check_trace.main, ["{folder}/no trace", "--plot"], ".svg"),
    "check_vectors": (check_vectors.main, ["--implementation", "python:no_such_port:create", "--out"], ".jsonl"),
}
"""Tool -> its command, words up to the name of what it writes, and how that name ends. (gen_vectors: test_index.py.)"""


@pytest.mark.parametrize(
    ("tool", "place"),
    [(tool, place) for tool in WRITERS for place in PLACES if tool != "make_planted_pair" or "folder" not in place],
)
def test_a_place_that_cannot_be_written_is_told_by_name_before_the_work(
    tool: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main, words, suffix = WRITERS[tool]
    name, told = PLACES[place]
    out = tmp_path / name.format(suffix=suffix)
    (tmp_path / f"taken{suffix}").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "sealed").mkdir()
    allowed = os.access  # which root always is
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "sealed" and allowed(path, mode))
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))  # the measurement writes it
    before = set(tmp_path.rglob("*"))
    code = main([*(word.format(folder=tmp_path) for word in words), str(out)])
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert said.err.startswith(f"dflash-{tool.replace('_', '-')}: {out}: ")
    assert told in said.err
    assert set(tmp_path.rglob("*")) == before


FOLDERS = {
    "make_planted_pair": (
        make_planted_pair.main,
        ["--preset", "small"],
        "dflash_vectors.planted.folders.write_tensors",
    ),
    "gen_vectors": (gen_vectors.main, ["--suite", "stop.preview"], "dflash_vectors.index.write_atomic"),
}
"""Tool -> its command, words for a quick run, and what writes its files."""


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
@pytest.mark.parametrize("tool", FOLDERS)
def test_folders_that_were_made_for_nothing_go_again(
    tool: str, error: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main, words, writes = FOLDERS[tool]

    def fails(path: Path, *given: object) -> None:
        assert tmp_path / "new" in path.parents
        raise error

    monkeypatch.setattr(writes, fails)
    (tmp_path / "kept").mkdir()
    for out in (tmp_path / "new" / "deep" / "out", tmp_path / "new" / "deep"):
        assert main([*words, "--out", str(out)]) == (130 if isinstance(error, KeyboardInterrupt) else 2)
        assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "kept"]


def test_a_set_to_compare_with_must_be_there_before_anything_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gen_vectors, "build_all", lambda *given: pytest.fail("work was done"))
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "missing", tmp_path / "empty"):
        for part in ([], ["--suite", "LAW"], ["--geometry", "tiny-full"]):
            assert gen_vectors.main(["--check", "--out", str(folder), *part]) == 2
            assert capsys.readouterr().err == (
                f"dflash-gen-vectors: {folder}: has no index.json, so there is no set to compare with\n"
            )
