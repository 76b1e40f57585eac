"""A vector set on disk: whole or not at all, frozen ids, and a command that says what it did."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dflash_spec.errors import TensorFileError
from dflash_vectors import index as sets
from dflash_vectors.build import SET_LIMIT, build
from dflash_vectors.cases import load_case, read_index
from dflash_vectors.commands import gen_vectors
from dflash_vectors.errors import BuildError, LedgerError
from dflash_vectors.suite import all_cases

ROOT = Path(__file__).resolve().parents[2]
TOOL = [sys.executable, str(ROOT / "tools" / "gen_vectors.py")]
PART = ["--suite", "head.argmax", "--profile", "ninfer"]


@pytest.fixture(scope="module")
def vectors():
    return [build(case) for case in all_cases("ninfer", op="head.argmax")]


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_set_reads_back_as_the_cases_that_it_was_made_of(tmp_path, vectors):
    sets.write_set(tmp_path / "set", vectors)
    entries = read_index(tmp_path / "set")
    assert [entry.id for entry in entries] == [vector.id for vector in vectors]
    assert all(load_case(entry).expected for entry in entries)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_a_new_set_replaces_the_old_one_whole(tmp_path, vectors):
    folder = tmp_path / "set"
    sets.write_set(folder, vectors)
    sets.write_set(folder, vectors[:2])
    assert [entry.id for entry in read_index(folder)] == [vector.id for vector in vectors[:2]]
    assert len(content(folder)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_without_an_exchange_in_one_step_a_set_is_still_replaced_whole(tmp_path, vectors, monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda *given, **named: object())
    sets.write_set(tmp_path / "set", vectors)
    sets.write_set(tmp_path / "set", vectors[:1])
    assert len(read_index(tmp_path / "set")) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_a_folder_that_is_not_a_vector_set_is_never_replaced(tmp_path, vectors):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(TensorFileError, match="not a vector set, so it is not replaced"):
        sets.write_set(tmp_path, vectors)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def unchanged(folder, refused, vectors):
    before = {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
    with pytest.raises(TensorFileError) as caught:
        sets.write_set(refused, vectors)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")} == before
    return str(caught.value)


@pytest.mark.parametrize(
    "stranger", ["notes.txt", "head/notes.txt", "ninfer-answer.safetensors", ".git/HEAD", "head/x.safetensors"]
)
def test_a_set_with_a_file_that_its_index_does_not_name_is_never_replaced(tmp_path, vectors, stranger):
    folder = tmp_path / "set"
    sets.write_set(folder, vectors[:2])
    (folder / stranger).parent.mkdir(exist_ok=True)
    (folder / stranger).write_text("an answer of hours")
    named = stranger.split("/")[0] if stranger.startswith(".git") else stranger
    assert f"holds {named}, which index.json does not name" in unchanged(tmp_path, folder, vectors)


@pytest.mark.parametrize(
    "index",
    ["{}", "[1]", "not json", '{"cases": {"x": 1}}', '{"cases": {}, "name": "a web page"}', '{"cases": {"a": {}}}'],
)
def test_a_folder_with_an_index_of_another_kind_is_never_replaced(tmp_path, vectors, index):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.json").write_text(index)
    (folder / "page.html").write_text("years of work")
    unchanged(tmp_path, folder, vectors)


def test_an_index_may_not_claim_files_of_others_by_their_paths(tmp_path, vectors):
    folder = tmp_path / "set"
    sets.write_set(folder, vectors[:1])
    (folder / "thesis.txt").write_text("years of work")
    index = json.loads((folder / "index.json").read_text())
    next(iter(index["cases"].values()))["path"] = "thesis.txt"
    (folder / "index.json").write_text(json.dumps(index))
    assert "not the index of a vector set" in unchanged(tmp_path, folder, vectors)


def test_a_stranger_that_arrives_while_vectors_are_built_is_kept(tmp_path, vectors):
    folder = tmp_path / "set"
    sets.write_set(folder, vectors[:1])

    def slowly():
        yield vectors[0]
        (folder / "answer").write_text("late")
        yield vectors[1]

    with pytest.raises(TensorFileError, match="holds answer"):
        sets.write_set(folder, slowly())
    assert (folder / "answer").read_text() == "late"
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_link_is_followed_to_the_folder_that_it_leads_to(tmp_path, vectors):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    sets.write_set(tmp_path / "link", vectors[:1])
    assert (tmp_path / "link").is_symlink()
    assert len(read_index(tmp_path / "real")) == 1


def test_a_place_that_no_folder_can_have_is_refused_in_one_line_before_the_work(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    inner = tmp_path / "empty" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    monkeypatch.setattr(gen_vectors, "build_all", lambda *given: pytest.fail("work was done"))
    before = sorted(tmp_path.rglob("*"))
    for out in (
        tmp_path / "file", tmp_path / "file" / "below", tmp_path / "dangling", tmp_path / "loop", Path(),
        Path(".."), Path("/"), Path("/proc/none/set"), tmp_path / ("x" * 300),
    ):  # fmt: skip
        assert gen_vectors.main([*PART, "--out", str(out)]) == 2, out
        answered = capsys.readouterr()
        assert answered.err.startswith("dflash-gen-vectors: ")
        assert answered.err.count("\n") == 1
        assert answered.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sets, "write_atomic", full)
    folder = tmp_path / "set"
    assert gen_vectors.main([*PART, "--out", str(folder)]) == 2
    said = f"dflash-gen-vectors: {folder}: cannot be written: No space left on device\n"
    assert capsys.readouterr().err == said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--suite", "LAW", "--no-expected", "--check"], "give --out DIR"),
        (["--accept-new", "--out", "unused"], "not with --out"),
        (["--accept-new", "--check"], "not with --out or --check"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, said, capsys):
    assert gen_vectors.main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not Path("unused").exists()


KILLED = """
import os, signal, sys
from dflash_vectors import index
from dflash_vectors.commands import gen_vectors

written = []
true = index.write_atomic

def write_atomic(path, content):
    written.append(path)
    if len(written) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    true(path, content)

index.write_atomic = write_atomic
sys.exit(gen_vectors.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_the_old_set_as_it_was_and_the_next_run_clears_up(tmp_path, vectors, number):
    folder = tmp_path / "set"
    sets.write_set(folder, vectors[:3])
    before = content(folder)
    # The pipes of the answer close when the last worker of the killed run is gone.
    run = subprocess.run(
        [sys.executable, "-c", KILLED.replace("SIGKILL", number.name), *PART, "--out", str(folder)],
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert run.returncode == -number
    assert content(folder) == before
    assert len(list(tmp_path.iterdir())) == 2
    sets.write_set(folder, vectors)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_an_interrupted_first_run_leaves_nothing(tmp_path):
    code = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "raise KeyboardInterrupt")
    run = subprocess.run(
        [sys.executable, "-c", code, *PART, "--out", str(tmp_path / "set")],
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert run.returncode == 130
    assert run.stderr == b"dflash-gen-vectors: interrupted, nothing was written\n"
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_living_writer_is_left_alone(tmp_path, vectors):
    other = tmp_path / f".set-writing-{os.getppid()}-abc"
    other.mkdir()
    sets.write_set(tmp_path / "set", vectors[:1])
    assert other.is_dir()


def test_a_new_id_needs_consent_and_is_frozen_then(vectors):
    with pytest.raises(LedgerError, match=f"{len(vectors)} vectors are not in the ledger.*--accept-new"):
        sets.extend_ledger({}, vectors, accept_new=False)
    ledger = json.loads(sets.extend_ledger({}, vectors, accept_new=True))
    assert ledger == {vector.id: vector.entry["sha256"] for vector in vectors}
    assert json.loads(sets.extend_ledger(ledger, vectors[1:], accept_new=False)) == ledger


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_vector_under_a_frozen_id_is_refused_by_name(vectors, accept_new):
    ledger = json.loads(sets.extend_ledger({}, vectors, accept_new=True))
    case = all_cases("ninfer", op="head.argmax")[0]
    changed = build(replace(case, catches="something else than before"))
    with pytest.raises(LedgerError, match=f"1 vectors changed under an id that is frozen: {changed.id}; .* new slug"):
        sets.extend_ledger(ledger, [changed], accept_new)


def test_a_damaged_ledger_is_an_error(tmp_path):
    path = tmp_path / "ledger.json"
    assert sets.read_ledger(path) == {}
    path.write_text("{")
    with pytest.raises(LedgerError, match="not JSON"):
        sets.read_ledger(path)
    path.write_text("[1]")
    with pytest.raises(LedgerError, match="an object of ids"):
        sets.read_ledger(path)


def test_a_set_above_its_limit_is_refused(vectors):
    big = replace(vectors[0], content=bytes(SET_LIMIT // 2 + 1))
    assert sets.check_size(vectors) == sum(len(vector.content) for vector in vectors)
    with pytest.raises(BuildError, match=f"expected at most {SET_LIMIT}"):
        sets.check_size([big, big])


def test_two_processes_build_what_one_builds():
    cases = all_cases("zlab", op="head.logits")
    assert list(sets.build_all(cases, processes=2)) == list(sets.build_all(cases, processes=1))


def test_check_names_each_file_that_differs_is_missing_or_is_too_much(tmp_path, vectors):
    folder = tmp_path / "set"
    sets.write_set(folder, vectors)
    assert sets.differences(folder, vectors) == []
    (folder / vectors[0].path).write_bytes(b"other")
    (folder / vectors[1].path).unlink()
    (folder / "head" / "stray.safetensors").write_bytes(b"")
    assert sets.differences(folder, vectors) == [
        f"{vectors[0].id}: differs from what is generated now",
        f"{vectors[1].id}: missing",
        "head/stray.safetensors: no case generates it",
    ]
    (folder / "head" / "stray.safetensors").unlink()
    sets.write_set(folder, vectors)
    (folder / "index.json").write_text("{}")
    assert sets.differences(folder, vectors) == ["index.json: differs from what is generated now"]


def test_the_command_writes_checks_and_reports(tmp_path, capsys):
    folder = tmp_path / "set"
    assert gen_vectors.main([*PART, "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"HEAD    {len(read_index(folder)):>5} vectors" in out
    assert gen_vectors.main([*PART, "--out", str(folder), "--check"]) == 0
    assert "equal to" in capsys.readouterr().out
    next(folder.rglob("*.safetensors")).write_bytes(b"")
    assert gen_vectors.main([*PART, "--out", str(folder), "--check"]) == 1
    assert "differs from what is generated now" in capsys.readouterr().out


def test_a_part_of_the_set_does_not_replace_the_committed_one(capsys):
    for arguments in (PART, ["--no-expected"], ["--geometry", "tiny"]):
        assert gen_vectors.main(arguments) == 2
        assert "give --out DIR" in capsys.readouterr().err


def test_the_committed_set_is_known_by_any_of_its_names(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "golden"
    folder.mkdir()
    monkeypatch.setattr(gen_vectors, "default_folder", lambda: folder)
    monkeypatch.chdir(tmp_path)
    for name in (str(folder), "golden", "golden/../golden"):
        assert gen_vectors.main([*PART, "--out", name]) == 2
        assert "give --out DIR" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_an_unknown_suite_is_answered_with_those_that_exist(capsys):
    assert gen_vectors.main(["--suite", "nothing", "--out", "unused"]) == 2
    assert "chapters: ASYNC, BLK, CFG" in capsys.readouterr().err
    assert not Path("unused").exists()


def test_a_blind_set_has_no_expected_values(tmp_path):
    folder = tmp_path / "blind"
    assert gen_vectors.main([*PART, "--no-expected", "--out", str(folder)]) == 0
    for entry in read_index(folder):
        data = entry.path.read_bytes()
        assert b'"in.logits"' in data
        assert b'"out.' not in data


def test_progress_is_shown_on_a_terminal_alone(tmp_path):
    silent = subprocess.run([*TOOL, *PART, "--out", str(tmp_path / "a")], capture_output=True, text=True, check=True)
    assert silent.stderr == ""
    ours, theirs = os.openpty()
    shown = subprocess.Popen([*TOOL, *PART, "--out", str(tmp_path / "b")], stdout=subprocess.DEVNULL, stderr=theirs)
    assert shown.wait(timeout=60) == 0
    os.close(theirs)
    assert "█".encode() in os.read(ours, 1 << 16)
    os.close(ours)


def test_bounds_in_a_set_are_finite_and_not_negative(tmp_path):
    folder = tmp_path / "set"
    assert gen_vectors.main(["--suite", "context.feature", "--out", str(folder)]) == 0
    bounds = [
        expected.bound
        for entry in read_index(folder)
        for expected in load_case(entry).expected
        if expected.bound is not None
    ]
    assert bounds
    assert all((np.isfinite(bound) & (bound >= 0)).all() for bound in bounds)
