"""The command: what it runs, what it prints, what it writes, and the exit code that is its verdict."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash_spec.tensors import Tensor
from dflash_vectors.commands import checking
from dflash_vectors.commands.check_vectors import main
from dflash_vectors.report import Guess

ROOT = Path(__file__).parents[2]
PYTHON = shlex.quote(sys.executable)


def wrong_greedy(op: str, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """Licenses the target's token of the row after."""
    return {"licensed": [5, 8, 0], "accepted": 1} if op == "law.greedy" else None


def unwrapped(text: str) -> str:
    """Text without its line breaks and indents."""
    return " ".join(text.split())


def test_all_passed_is_exit_code_0_and_one_table(check: Any, port: Any) -> None:
    code, out, _ = check("--implementation", port())
    assert code == 0
    assert [line.split() for line in out.splitlines() if line.startswith(("ninfer", "zlab", " "))] == [
        ["made", "port"],
        ["ninfer", "NUM", "Numerics", "1", "1"],
        ["RNG", "Keyed", "randomness", "1", "1"],
        ["all", "2", "2"],
        ["zlab", "CFG", "Configs", "1", "1"],
        ["TAP", "Conditioning", "features", "1", "1"],
        ["CTX", "Context", "keys", "and", "values", "1", "1"],
        ["LAW", "Acceptance", "and", "correction", "1", "1"],
        ["all", "4", "4"],
    ]
    assert out.splitlines()[-1].startswith("PASSED  6 passed, 0 failed, 0 not supported")


def test_a_failure_is_exit_code_1_and_tells_everything_about_it(check: Any, port: Any, vectors: Any) -> None:
    spec = port(wrong_greedy)
    code, out, _ = check("--implementation", spec)
    assert code == 1
    assert "1/1 FAILED" in out
    told = out[out.index("made port 7 (zlab): 1 of 4 vectors failed") :].splitlines()
    assert told[2].startswith("LAW-001  Greedy verification accepts proposal d_(i+1) while it equals")
    assert f"  {vectors.GREEDY}  op law.greedy" in told
    start = told.index("    diverges   first at out.licensed[1], 1 of 3 wrong")
    assert told[start + 1 : start + 3] == ["               expected 7", "               got      8"]
    command = f"dflash-check-vectors --implementation {spec} --vectors {vectors.folder} --id {vectors.GREEDY}"
    assert f"    reproduce  {command}" in told
    contents = told[told.index("    the smallest failing vector of LAW-001:") + 1 :][:4]
    assert [line.split() for line in contents] == [
        ["in.proposals", "I32", "[2]", "5", "6"],
        ["in.target", "I32", "[3]", "5", "7", "8"],
        ["expected", "out.licensed", "I32", "[3]", "5", "7", "0"],
        ["got", "out.licensed", "I32", "[3]", "5", "8", "0"],
    ]
    assert told[-1].startswith("FAILED  5 passed, 1 failed")


def test_the_command_that_reproduces_a_failure_reproduces_it(
    check: Any, port: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = check("--implementation", port(wrong_greedy))
    command = next(line for line in out.splitlines() if "reproduce" in line).split("reproduce  ")[1]
    assert main(shlex.split(command)[1:]) == 1
    assert "LAW-001" in capsys.readouterr().out


def test_a_distance_is_told_in_ulps_and_in_bounds_and_a_stage_before_its_output(check: Any, port: Any) -> None:
    def off(op: str, inputs: dict[str, Any]) -> dict[str, Any] | None:
        wrong = {"c": [[2.5]], "stage.projected": [[np.float32(11.5)]]}
        return wrong if op == "context.feature" else None

    _, out, _ = check("--implementation", port(off))
    assert "diverges   first at stage.projected[0, 0], 1 of 1 wrong" in out
    assert "expected 11.0 (0x41300000)" in out
    assert "got      11.5 (0x41380000)" in out
    assert "distance 524288 ulps, 2 bounds (one is 0.25)" in out
    assert "then       out.c[0, 0], 1 of 1 wrong" in out
    assert "hint" not in out
    assert "CTX-001  " in out


def test_an_answer_without_stages_is_told_which_stages_would_help(check: Any, port: Any) -> None:
    spec = port(lambda op, inputs: {"c": [[2.5]]} if op == "context.feature" else None)
    _, out, _ = check("--implementation", spec)
    assert "hint       answer stage.projected too, to see where it begins" in out


def test_what_is_not_declared_is_a_dash_and_is_never_passed(check: Any, port: Any) -> None:
    code, out, _ = check("--implementation", port(ops=["law.greedy"]), "--profile", "zlab")
    assert code == 0
    rows = {line.split()[-4 if "LAW" in line else 0]: line.split()[-1] for line in out.splitlines() if line.strip()}
    assert rows["TAP"] == "–"
    assert out.splitlines()[-1].startswith("PASSED  1 passed, 0 failed, 3 not supported")


def test_nothing_that_ran_is_exit_code_2(check: Any, port: Any) -> None:
    code, out, _ = check("--implementation", port(ops=["draft.mlp"]))
    assert code == 2
    assert out.splitlines()[-1].startswith("UNUSABLE  0 passed, 0 failed, 6 not supported")


def test_several_implementations_stand_side_by_side(check: Any, port: Any) -> None:
    code, out, _ = check("--implementation", port(), "--implementation", port(wrong_greedy, name="other", note="self"))
    assert code == 1
    assert out.splitlines()[0].split() == ["made", "port", "other"]
    assert out.splitlines()[1].split() == ["profile", "chapter", "vectors", "7", "(self)"]
    law = next(line for line in out.splitlines() if " LAW " in line)
    assert law.split()[-3:] == ["1", "1/1", "FAILED"]


def test_a_table_that_is_too_wide_goes_on_below(check: Any, port: Any) -> None:
    words: list[str] = []
    for number in range(9):
        words += ["--implementation", port(name=f"implementation {number}")]
    _, out, _ = check(*words)
    assert max(map(len, out.splitlines())) <= 100
    assert out.count("profile   chapter") == 3
    assert all(f"implementation {number}" in out for number in range(9))


def test_a_profile_that_is_not_spoken_is_a_dash_and_a_remark(check: Any, port: Any) -> None:
    spec = port(profile="zlab")
    code, out, _ = check("--implementation", spec)
    assert code == 0
    assert next(line for line in out.splitlines() if " NUM " in line).endswith("–")
    assert f"– {spec} does not speak profile ninfer" in unwrapped(out)


def test_an_implementation_that_speaks_none_of_the_profiles_is_exit_code_2(check: Any, port: Any) -> None:
    code, out, _ = check("--implementation", port(profile="zlab"), "--profile", "ninfer", "--implementation", port())
    assert code == 2
    assert "speaks none of the profiles asked for" in out


def test_one_implementation_that_cannot_be_run_does_not_hide_the_others(check: Any, port: Any) -> None:
    code, out, _ = check("--implementation", "python:no_such_port:create", "--implementation", port())
    assert code == 2
    assert "python:no_such_port:create could not be run" in out
    assert "6 passed" in out


def test_a_damaged_vector_is_exit_code_2_and_hides_no_other_verdict(check: Any, port: Any, vectors: Any) -> None:
    vectors.path(vectors.TAP).write_bytes(b"junk")
    code, out, _ = check("--implementation", port())
    assert code == 2
    assert "1 DAMAGED" in out
    assert f"! damaged vector: {vectors.path(vectors.TAP)}" in unwrapped(out)
    assert "5 passed, 0 failed" in out


def test_vectors_can_be_chosen_by_op_chapter_id_and_profile(check: Any, port: Any, vectors: Any) -> None:
    spec = port()
    for words, count in (
        (["--op", "law.greedy"], 1),
        (["--op", "law.greedy", "--op", "tap.concat"], 2),
        (["--chapter", "ctx", "--chapter", "NUM"], 2),
        (["--id", vectors.KEY], 1),
        (["--profile", "ninfer"], 2),
    ):
        assert f"PASSED  {count} passed" in check("--implementation", spec, *words)[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--op", "tap.concatenate"], "did you mean 'tap.concat'?"),
        (["--chapter", "CTZ"], "did you mean 'CTX'?"),
        (["--id", "zlab-tap-concat"], "did you mean 'zlab-tap-concat-recorded-order'?"),
        (["--op", "law.greedy", "--profile", "ninfer"], "the options exclude one another"),
        (["--vectors", "/nowhere"], "/nowhere: no index.json"),
        (["--implementation", "rust:mine"], "expected files:DIR, stdio:CMD or python:MODULE:FACTORY"),
        (["--out", "/proc/nowhere/run.jsonl"], "/proc/nowhere is not there, expected a folder"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_to_do(check: Any, port: Any, words: list[str], told: str) -> None:
    code, out, err = check("--implementation", port(), *words)
    assert (code, out) == (2, "")
    assert told in err


def test_json_is_one_object_with_every_verdict(check: Any, port: Any, vectors: Any) -> None:
    vectors.path(vectors.TAP).write_bytes(b"junk")
    code, out, _ = check("--implementation", port(wrong_greedy), "--json")
    data = json.loads(out)
    assert code == data["exit_code"] == 2
    assert {result["id"]: result["status"] for result in data["results"]} == {
        id_: {vectors.TAP: "damaged", vectors.GREEDY: "failed"}.get(id_, "passed") for id_ in vectors.cases
    }
    failed = next(result for result in data["results"] if result["status"] == "failed")
    assert failed["clause"] == "LAW-001"
    first = failed["divergences"][0]["first"]
    assert (first["index"], first["expected"], first["got"]) == ([1], "7", "8")


def test_json_has_words_for_what_is_not_finite(check: Any, port: Any) -> None:
    spec = port(lambda op, inputs: {"c": [[np.inf]]} if op == "context.feature" else None)
    _, out, _ = check("--implementation", spec, "--json")
    failed = next(result for result in json.loads(out)["results"] if result["status"] == "failed")
    assert failed["divergences"][0]["first"]["bounds"] == "inf"


def test_each_verdict_is_in_the_file_before_the_next_vector_runs(check: Any, port: Any, tmp_path: Path) -> None:
    out, seen = tmp_path / "run.jsonl", []

    def watches(op: str, inputs: dict[str, Any]) -> None:
        seen.append(out.read_text().count('"kind":"result"'))

    check("--implementation", port(watches), "--out", str(out))
    assert seen == list(range(6))
    kinds = [json.loads(line)["kind"] for line in out.read_text().splitlines()]
    assert kinds == ["implementation", *["result"] * 2, "implementation", *["result"] * 4, "summary"]


def test_an_interrupt_keeps_the_verdicts_that_were_gathered(check: Any, port: Any, tmp_path: Path) -> None:
    def interrupted(op: str, inputs: dict[str, Any]) -> None:
        if op == "law.greedy":
            raise KeyboardInterrupt

    out = tmp_path / "run.jsonl"
    code, shown, _ = check("--implementation", port(interrupted), "--out", str(out))
    assert code == 130
    assert next(line for line in shown.splitlines() if " LAW " in line).endswith("·")
    assert shown.splitlines()[-1].startswith("INTERRUPTED  4 passed")
    summary = json.loads(out.read_text().splitlines()[-1])
    assert (summary["interrupted"], summary["passed"]) == (True, 4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_the_verdicts_that_were_gathered(
    vectors: Any, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "slow_port.py").write_text(
        "import time\n"
        "class P:\n"
        "    def describe(self): return {'name': 'slow', 'version': '1', 'profile': 'zlab'}\n"
        "    def run(self, op, inputs):\n"
        "        if op == 'law.greedy': time.sleep(600)\n"
        "        raise ValueError(op)\n"
        "def create(profile): return P()\n"
    )
    out = tmp_path / "run.jsonl"
    words = ["--implementation", "python:slow_port:create", "--profile", "zlab", "--json", "--out", str(out)]
    command = [sys.executable, str(ROOT / "tools" / "check_vectors.py"), "--vectors", str(vectors.folder), *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(600):
            if out.exists() and out.read_text().count('"kind":"result"') == 2:
                break
            time.sleep(0.05)
        process.send_signal(number)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    data = json.loads(shown)
    assert (data["interrupted"], data["failed"]) == (True, 2)


def test_a_known_difference_is_a_failed_cell_with_a_reason_and_no_verdict_against_it(
    check: Any, port: Any, records: Path
) -> None:
    records.write_text(
        "- {implementation: made port, op: law.greedy, verdict: legitimate, why: It numbers rows from one.}\n"
    )
    code, out, _ = check("--implementation", port(wrong_greedy))
    assert code == 0
    assert "1/1 FAILED [1]" in out
    assert "[1] made port 7 (zlab), LAW: 1 known difference\n" in out
    assert "LAW-001 1 legitimate It numbers rows from one." in unwrapped(out)
    assert "reproduce" not in out
    assert out.splitlines()[-1].startswith("PASSED  5 passed, 1 failed (1 of them known differences)")


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ("implementation: made port, clause: LAW-001", 0),
        ("implementation: made port, case: zlab-law-greedy-one-accepted", 0),
        ("implementation: made port, version: '7', profile: zlab, op: law.greedy", 0),
        ("implementation: made port, version: '8', op: law.greedy", 1),
        ("implementation: made port, profile: ninfer, op: law.greedy", 1),
        ("implementation: another, op: law.greedy", 1),
        ("implementation: made port, clause: LAW-002", 1),
        ("implementation: made port, op: tap.concat", 1),
    ],
)
def test_a_record_explains_only_what_it_names(check: Any, port: Any, records: Path, record: str, code: int) -> None:
    records.write_text(f"- {{{record}, verdict: wrong, why: So it is.}}\n")
    assert check("--implementation", port(wrong_greedy))[0] == code


def test_a_difference_that_is_gone_is_told(check: Any, port: Any, records: Path) -> None:
    records.write_text("- {implementation: made port, op: law.greedy, verdict: wrong, why: Off by one row.}\n")
    code, out, _ = check("--implementation", port())
    assert code == 0
    assert "!   made port: law.greedy no longer differs: Off by one row." in out


def test_many_vectors_without_an_answer_are_told_together(check: Any, vectors: Any, tmp_path: Path) -> None:
    code, out, _ = check("--implementation", f"files:{tmp_path}", "--profile", "zlab")
    assert code == 1
    assert f"4 vectors without an answer: no answer: {tmp_path}/<id>.safetensors is missing" in unwrapped(out)
    assert all(id_ in out for id_ in vectors.cases if id_.startswith("zlab"))
    assert out.count("reproduce") == 1


def test_a_clause_is_explained_once_however_many_ops_break_it(check: Any, port: Any, vectors: Any) -> None:
    one_hot = {"proposals": vectors.i32([5]), "support": vectors.i32([[5, 6], [5, 6]]), "p": vectors.f32([[1, 0]] * 2)}
    one_hot |= {"u_accept": vectors.f32([0]), "u_terminal": vectors.f32(0)}
    answers = {"out.licensed": vectors.i32([5, 5]), "out.accepted": vectors.i32(1)}
    inputs = {f"in.{name}": tensor for name, tensor in one_hot.items()}
    vectors.add("zlab-law-one-hot-certain", "law.one_hot", ("LAW-001",), inputs | answers)
    spec = port(lambda op, inputs: {"licensed": [5, 6, 0][: 3 if op == "law.greedy" else 2], "accepted": 1})
    _, out, _ = check("--implementation", spec, "--chapter", "LAW")
    assert out.count("LAW-001  Greedy verification accepts") == 1
    assert out.count("the smallest failing vector of LAW-001") == 2


def test_a_long_tensor_is_shown_from_where_it_diverges(check: Any, port: Any, vectors: Any) -> None:
    wanted = np.arange(100, 400)
    inputs = {"in.proposals": vectors.i32(wanted[:-1]), "in.target": vectors.i32(wanted)}
    outputs = {"out.licensed": vectors.i32(wanted), "out.accepted": vectors.i32(299)}
    vectors.add("ninfer-law-greedy-long", "law.greedy", ("LAW-001",), inputs | outputs)
    wrong = np.where(wanted == 350, 0, wanted)
    spec = port(lambda op, inputs: {"licensed": wrong, "accepted": 299})
    _, out, _ = check("--implementation", spec, "--id", "ninfer-law-greedy-long")
    rows = {line.split()[0]: line.split()[4:] for line in out.splitlines() if "[300]" in line}
    assert rows["expected"][:3] == ["…", "350", "351"]
    assert rows["got"][:3] == ["…", "0", "351"]
    assert rows["in.target"][:2] == ["101", "102"]
    assert max(map(len, out.split("reproduce")[0].splitlines())) <= 100


def test_a_config_is_shown_as_the_text_that_it_is(check: Any, port: Any, vectors: Any) -> None:
    text = b'{"mask_id": 7,\n "taps": [1]}'
    trainer = {"in.trainer": Tensor.of("U8", np.frombuffer(text, np.uint8)), "out.refused": vectors.i32(1)}
    vectors.add("zlab-config-read-trainer-short", "config.read_trainer", ("CFG-045",), trainer)
    spec = port(lambda op, inputs: {"refused": 0})
    _, out, _ = check("--implementation", spec, "--op", "config.read_trainer")
    assert '{"mask_id": 7, "taps": [1]}' in out


def test_colour_is_for_terminals_that_want_it(check: Any, port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m1\x1b[0m" in check("--implementation", port())[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in check("--implementation", port())[1]
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in check("--implementation", port())[1]


def test_no_progress_is_drawn_where_nobody_looks(check: Any, port: Any) -> None:
    assert check("--implementation", port())[2] == ""


def test_progress_is_drawn_on_a_terminal_and_wiped(check: Any, port: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    err = check("--implementation", port())[2]
    assert "1/6 made port ninfer-num-round-bf16-midpoint" in err
    assert err.endswith("\r\x1b[K")


def test_help_teaches_the_exit_codes_and_the_ways_of_plugging_in(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for word in ("files:DIR", "stdio:CMD", "python:MODULE:FACTORY", "130", "known difference", "examples:"):
        assert word in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_the_example_program_answers_what_it_declares(vectors: Any, check: Any) -> None:
    example = shlex.quote(str(ROOT / "examples" / "stdio_port.py"))
    code, out, _ = check("--implementation", f"stdio:{PYTHON} {example}")
    assert code == 0
    assert "PASSED  1 passed, 0 failed, 5 not supported" in out


def test_a_guess_at_the_fault_is_printed_and_one_that_goes_wrong_loses_nothing(
    check: Any, port: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        checking,
        "fault_namer",
        lambda: lambda case, answer: [Guess("row-after", "row-after: It reads a row late.", ())],
    )
    assert "looks like row-after: It reads a row late." in check("--implementation", port(wrong_greedy))[1]

    def stumbles(case: Any, answer: Any) -> list[str]:
        raise RuntimeError("no faults here")

    monkeypatch.setattr(checking, "fault_namer", lambda: stumbles)
    code, out, _ = check("--implementation", port(wrong_greedy))
    assert code == 1
    assert "looks like no guess: RuntimeError: no faults here" in out
    assert "FAILED  5 passed, 1 failed" in out


BLOCKED = """\
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"dflash_reference", "dflash_accelerated", "torch", "triton", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
from dflash_vectors.commands.check_vectors import main
code = main(sys.argv[1:])
import dflash_vectors.plugin
assert not {name.split(".")[0] for name in sys.modules} & {"dflash_reference", "dflash_accelerated", "torch"}
sys.exit(code)
"""


def test_the_checker_works_where_neither_reference_nor_torch_is_installed(vectors: Any, tmp_path: Path) -> None:
    for id_ in vectors.cases:
        vectors.answer(tmp_path / "mine", id_)
    vectors.answer(tmp_path / "mine", vectors.GREEDY, accepted=vectors.i32(2))
    words = ["--vectors", str(vectors.folder), "--implementation", f"files:{tmp_path / 'mine'}"]
    command = [sys.executable, "-c", BLOCKED, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "LAW-001" in done.stdout
    assert "5 passed, 1 failed" in done.stdout
