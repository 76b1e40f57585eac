"""dflash-check-trace: what it prints, its exit codes, and what it makes of wrong usage."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dflash_spec.files import read_metadata, read_tensors, write_tensors
from dflash_spec.tensors import Tensor
from dflash_vectors import planted
from dflash_vectors.commands.check_trace import main
from dflash_vectors.replay.recording import record_reference

from .conftest import Made, Make
from .test_format import changed, cut

ROOT = Path(__file__).parents[2]
NEW_TOKENS = 30


@pytest.fixture(scope="module")
def made(make: Make) -> Made:
    return make("dflash")


@pytest.fixture(scope="module")
def template(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "trace"
    record_reference(folder, made.reference("zlab"), made.texts, made.pair.prompts[0], made.settings(NEW_TOKENS))
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "trace"))


def shift(folder: Path, number: int, stage: str, by: float) -> None:
    """Move one element of a recorded stage."""
    path = folder / f"round-{number:06d}.safetensors"
    held = read_tensors(path)
    rows = held[f"stage.{stage}"].values.copy()
    rows[1, 3] += by
    write_tensors(path, {**held, f"stage.{stage}": Tensor("F32", rows)}, read_metadata(path))


@pytest.fixture
def check(made: Made, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command with the pair's weights: exit code, stdout, stderr."""

    def run(*words: Any, weights: bool = True) -> tuple[int, str, str]:
        pair = ["--target", made.folders[0], "--draft", made.folders[1]] if weights else []
        try:
            code = main([str(word) for word in (*words, *pair)])
        except SystemExit as usage:
            code = int(str(usage.code))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_clean_trace_passes_and_shows_counts_and_how_near_each_stage_came(check: Any, folder: Path) -> None:
    code, out, err = check(folder)
    assert (code, err) == (0, "")
    assert "reference 0 (zlab), DFlash, K = 4, greedy" in out
    assert "accepted      0423104231" in out
    assert re.search(r"^layer\.1 +10 +0$", out, re.MULTILINE)
    assert out.splitlines()[-1] == "PASSED  10 of 10 rounds judged, 0 near ties"


def test_a_bug_is_told_with_round_place_clause_value_expected_and_distance(check: Any, folder: Path) -> None:
    shift(folder, 6, "layer.1", 0.5)
    code, out, _ = check(folder)
    assert code == 1
    assert "first bug: round 6, stage.layer.1" in out
    assert "DRAFT-010  The MLP branch adds" in out
    assert "first at stage.layer.1[1, 3], 1 of 160 wrong" in out
    assert re.search(r"expected -?\d+\.\d+ \(0x[0-9a-f]{8}\)\n +got +-?\d+\.\d+ \(0x[0-9a-f]{8}\)", out)
    assert re.search(r"distance [\d,]+ ulps, \S+ bounds", out)
    assert "all 6 rounds before it" in out
    assert re.search(r"reproduce  dflash-check-trace \S+ --target \S+ --draft \S+ --round 6", out)
    assert out.splitlines()[-1].startswith(
        "FAILED  7 of 10 rounds judged, 0 near ties, first bug in round 6 at stage.la"
    )


def test_the_command_that_a_failure_prints_finds_it_again(check: Any, folder: Path) -> None:
    shift(folder, 6, "hidden", 0.5)
    _, out, _ = check(folder)
    words = re.search(r"reproduce  dflash-check-trace (.*)", out)
    assert words is not None
    code, again, _ = check(*words.group(1).split(), weights=False)
    assert code == 1
    assert "first bug: round 6, stage.hidden" in again
    assert "0 of the 6 rounds before it" in again


def test_another_round_alone_passes(check: Any, folder: Path) -> None:
    shift(folder, 6, "layer.1", 0.5)
    code, out, _ = check(folder, "--round", 4, "--round", 5)
    assert code == 0
    assert out.splitlines()[-1].startswith("PASSED  2 of 10 rounds judged")


def test_json_has_the_finding_for_a_machine(check: Any, folder: Path) -> None:
    shift(folder, 7, "c", 0.5)
    code, out, _ = check(folder, "--json")
    found = json.loads(out)
    assert (code, found["exit_code"], found["judged"], found["near_ties"]) == (1, 1, 8, [])
    bug = found["first_bug"]
    assert (bug["round"], bug["place"], bug["row"], bug["clause"]) == (7, "stage.c", 1, "CTX-001")
    assert bug["verdict"] == "bug"
    assert bug["divergence"]["first"]["bounds"] > 100
    assert found["stages"]["features"] == {"compared": 8, "furthest_in_bounds": 0.0}


def test_the_drawing_has_a_bar_a_round_and_names_the_first_bug(check: Any, folder: Path, tmp_path: Path) -> None:
    shift(folder, 6, "layer.1", 0.5)
    assert check(folder, "--plot", tmp_path / "trace.svg")[0] == 1
    drawing = xml.parse(tmp_path / "trace.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawing.findall(f"{space}rect")) == 1 + 7
    assert any("first bug: round 6, stage.layer.1, DRAFT-010" in (text.text or "") for text in drawing.iter())


def test_a_drawing_that_the_disk_does_not_take_is_told(
    check: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot = tmp_path / "trace.svg"

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    code, _, err = check(folder, "--plot", str(plot), weights=False)
    assert (code, err) == (2, f"dflash-check-trace: {plot}: cannot be written: No space left on device\n")


@pytest.mark.parametrize(("stdout", "told"), [("left", ""), ("/dev/full", "No space left on device")])
def test_a_stdout_that_takes_nothing_is_exit_code_2(folder: Path, stdout: str, told: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = writer if stdout == "left" else os.open(stdout, os.O_WRONLY)
    tool = Path(__file__).parents[2] / "tools" / "check_trace.py"
    done = subprocess.run([sys.executable, str(tool), str(folder)], stdout=stream, stderr=subprocess.PIPE, text=True,
        timeout=60, check=False)  # fmt: skip
    for one in {writer, stream}:
        os.close(one)
    assert done.returncode == 2
    assert done.stderr == (f"dflash-check-trace: stdout: {told}: the verdict is not printed\n" if told else "")


def test_without_weights_numbers_and_choices_are_judged_and_the_report_says_so(check: Any, folder: Path) -> None:
    code, out, _ = check(folder, weights=False)
    assert code == 0
    assert "note  no weights were given" in out
    assert "layer.1" not in out
    name = "round-000006.safetensors"
    licensed = read_tensors(folder / name)["decision.licensed"].values[:4]
    changed(name, decision__accepted=3, decision__licensed=licensed, decision__kept=4)(folder)
    code, out, _ = check(folder, weights=False)
    assert code == 1
    assert "first bug: round 6, decision.accepted" in out
    assert "LAW-001" in out


def test_a_trace_whose_run_died_is_judged_to_where_it_came(check: Any, folder: Path) -> None:
    (folder / "end.safetensors").unlink()
    (folder / "round-000009.safetensors").unlink()
    code, out, _ = check(folder)
    assert code == 0
    assert "the trace has no end: the run stopped, or died, after 9 rounds" in out


def test_a_damaged_trace_is_one_line_and_exit_code_2(check: Any, folder: Path) -> None:
    cut("round-000004.safetensors", 700)(folder)
    code, out, err = check(folder)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("dflash-check-trace: ")
    assert "round-000004.safetensors" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{trace}", "--target", "x"), "--target and --draft go together"),
        (("{trace}", "--round", "99"), "--round 99: the trace has rounds 0 to 9"),
        (("{trace}", "--plot", "a.png"), "expected a name that ends in .svg"),
        (("{trace}", "--same-as", "{trace}", "--round", "1"), "--same-as replays nothing"),
        (("nowhere",), "nowhere: found no start.safetensors"),
        (("{trace}", "--target", "nowhere", "--draft", "nowhere"), "nowhere"),
        ((), "the following arguments are required: TRACE"),
    ],
)
def test_wrong_usage_is_told_and_exit_code_2(words: tuple[str, ...], message: str, check: Any, folder: Path) -> None:
    code, _, err = check(*(word.format(trace=folder) for word in words), weights=False)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_folders_of_another_pair_are_refused_by_the_member_that_differs(
    check: Any, folder: Path, tmp_path: Path
) -> None:
    planted.write(tmp_path / "other", planted.pair("small", draft_windows=(17, 0)))
    pair = ["--target", tmp_path / "other/target", "--draft", tmp_path / "other/draft"]
    code, _, err = check(folder, *pair, weights=False)
    assert code == 2
    assert "vocab_size is 16, the trace was recorded with 18" in err


def test_a_run_that_did_the_same_twice_is_the_same_bit_by_bit(
    check: Any, folder: Path, template: Path, made: Made, tmp_path: Path
) -> None:
    settings = made.settings(NEW_TOKENS)
    record_reference(tmp_path / "again", made.reference("zlab"), made.texts, made.pair.prompts[0], settings)
    code, out, _ = check(tmp_path / "again", "--same-as", template, weights=False)
    assert code == 0
    assert out == "SAME  10 rounds, 82 tensors and 0 digests compared\n"
    shift(folder, 6, "layer.1", 2.0**-20)
    code, out, _ = check(folder, "--same-as", template, weights=False)
    assert code == 1
    assert "first difference: round 6, stage.layer.1[1, 3]" in out
    assert check(folder, "--same-as", template, "--json", weights=False)[0] == 1


def test_digests_of_state_are_compared_between_two_traces(check: Any, folder: Path, template: Path) -> None:
    other = folder.parent / "other"
    shutil.copytree(template, other)
    for place, digest in ((folder, [1, 2]), (other, [1, 3])):
        path = place / "round-000003.safetensors"
        held = {**read_tensors(path), "hash.kv": Tensor.of("U8", digest)}
        write_tensors(path, held, read_metadata(path))
    code, out, _ = check(folder, "--same-as", other, weights=False)
    assert code == 1
    assert "first difference: round 3, hash.kv" in out
    assert check(folder)[0] == 0, "a digest means nothing to the reference"


def test_traces_of_two_requests_are_not_compared(check: Any, template: Path, made: Made, tmp_path: Path) -> None:
    record_reference(
        tmp_path / "other", made.reference("zlab"), made.texts, made.pair.prompts[0][:-1], made.settings(9)
    )  # fmt: skip
    code, _, err = check(tmp_path / "other", "--same-as", template, weights=False)
    assert code == 2
    assert "expected two runs of one request by one implementation" in err


def test_an_interrupt_ends_the_replay_and_tells_what_was_found(folder: Path, made: Made) -> None:
    code = (
        "import os, signal, sys\nfrom dflash_vectors.commands import check_trace\n"
        "from dflash_vectors.replay import replay\n"
        "played = replay.Replay._played\n"
        "def interrupted(self, round_, last):\n"
        "    if round_.number == 4: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return played(self, round_, last)\n"
        "replay.Replay._played = interrupted\n"
        "sys.exit(check_trace.main(sys.argv[1:]))\n"
    )
    words = [folder, "--target", made.folders[0], "--draft", made.folders[1]]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert done.stdout.splitlines()[-1].startswith("INTERRUPTED  4 of 10 rounds judged")
    assert "Traceback" not in done.stderr


def test_the_tool_prints_its_help() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "check_trace.py"), "--help"], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    for word in ("bug or near tie:", "examples:", "exit code:", "--same-as OTHER", "130  interrupted"):
        assert word in done.stdout
