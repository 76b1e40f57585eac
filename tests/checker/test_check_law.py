"""check_law: what it judges, what it prints, and the exit code that is its verdict."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dflash_spec.errors import TensorError
from dflash_vectors import differences
from dflash_vectors.commands import check_vectors, judging_laws
from dflash_vectors.commands.check_law import main
from dflash_vectors.law import controls
from dflash_vectors.law.controls import CONTROLS, CoinReused, Inflated
from dflash_vectors.law.engines import Engine

ROOT = Path(__file__).parents[2]
PYTHON = shlex.quote(sys.executable)
CONTROL = "python:dflash_vectors.law.controls:"
UNIFORM = ("proc.draw", "law.one_hot", "law.sparse")
SAMPLED = ("proc.sample_tokens", "law.sample_rounds")


@pytest.fixture(autouse=True)
def no_fault_namer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging_laws, "fault_namer", lambda: None)


@pytest.fixture
def law(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command; returns exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a zlab engine of a class and ops, and returns how the command line names it.

    `answers(op, inputs)` is asked first; where it returns None the engine answers.
    """
    numbers = iter(range(100))

    def make(
        kind: type[Engine] = Engine, ops: tuple[str, ...] = UNIFORM, answers: Callable[..., Any] | None = None,
        **declares: Any,
    ) -> str:  # fmt: skip
        def create(profile: str) -> Any:
            made = kind(profile, ops)

            def run(op: str, inputs: dict[str, Any]) -> Any:
                given = answers(op, inputs) if answers is not None else None
                return made.run(op, inputs) if given is None else given

            described = {"name": "made", "version": "7", "profile": "zlab", "ops": [*ops], **declares}
            return SimpleNamespace(describe=lambda: described, run=run)

        name = f"made_engine_{next(numbers)}"
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(create=create))
        return f"python:{name}:create"

    return make


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_a_right_engine_is_exit_code_0_and_says_what_would_have_been_seen(law: Any, engine: Any) -> None:
    code, out, err = law("--implementation", engine(ops=("proc.draw", "proc.sample_tokens")), "--profile", "zlab")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.startswith("proc.")]
    assert {row[-1] for row in rows} == {"holds"}
    assert [row[0] for row in rows] == ["proc.draw"] * 7 + ["proc.sample_tokens"] * 3
    assert "measured 7 laws of ops that take uniforms" in unwrapped(out)
    assert "sampled 3 laws of ops with randomness of their own, 100,000 draws each" in unwrapped(out)
    assert "Seen with a probability of 99%: a total variation of 0.0" in unwrapped(out)
    assert out.splitlines()[-1].startswith("HOLDS  10 laws hold, 0 broken")
    assert err.startswith("dflash-check-law: made (zlab): 10 laws, 3 of them sampled with 100,000 draws each, about ")


def test_the_cost_is_told_before_the_first_law_is_judged(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []

    def watches(op: str, inputs: dict[str, Any]) -> None:
        if op == "proc.draw":
            told.append(capsys.readouterr().err)

    main(["--implementation", engine(ops=("proc.draw",), answers=watches)])
    assert told[0] == "dflash-check-law: made (zlab): 7 laws\n"
    assert set(told[1:]) == {""}  # and no progress bar, where stderr is no terminal


def test_a_broken_law_is_exit_code_1_and_tells_everything_about_it(law: Any) -> None:
    spec = f"{CONTROL}coin_reused"
    code, out, _ = law("--implementation", spec, "--profile", "ninfer", "--op", "law.one_hot")
    assert code == 1
    told = out[out.index("CoinReused (ninfer): ") :].splitlines()
    assert told[0] == "CoinReused (ninfer): 5 of 9 laws do not hold"
    assert told[2].startswith("LAW-004  The correction after a rejected one-hot proposal d is drawn from p without d")
    assert "  law.one_hot, dyadic" in told
    assert "    broken     after proposal 19 is rejected, token 3 has probability 0, not 0.5" in told
    assert any("the law of the tokens is off by 0.125, that of the accepted count is right" in line for line in told)
    assert f"    reproduce  dflash-check-law --implementation {spec} --profile ninfer --op law.one_hot" in told
    example = told[told.index("    the smallest failing example:") + 1 :][:9]
    assert [line.split()[0] for line in example] == ["in.proposals", *["in.support", "in.p", "in.u_accept"],
        "in.u_terminal", "expected", "expected", "got", "got"]  # fmt: skip
    assert example[0].split()[-1] == "19"
    outcome = next(line for line in told if "0 accepted, tokens 3 " in line).split()
    assert [float(number) for number in outcome[-2:]] == [0.25, 0.0]
    assert told[-1].startswith("BROKEN  4 laws hold, 5 broken")


def test_the_command_that_reproduces_a_broken_law_reproduces_it(law: Any) -> None:
    _, out, _ = law("--implementation", f"{CONTROL}next_rank_sampled", "--profile", "zlab", "--samples", "4000")
    command = next(line for line in out.splitlines() if "reproduce" in line).split("reproduce  ")[1]
    assert "--samples 4000" in command
    code, again, _ = law(*shlex.split(command)[1:])
    assert code == 1
    assert "LAW-015" in again


def test_a_known_fault_is_named_if_it_gives_every_wrong_answer(law: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the namer, for once
    _, out, _ = law("--implementation", f"{CONTROL}next_rank", "--profile", "ninfer")
    guesses = [line for line in out.splitlines() if line.startswith("    looks like ")]
    assert len(guesses) == 1
    assert "rank-by-exclusive-sum" in guesses[0]


def test_an_inflated_acceptance_is_measured_to_nine_digits(law: Any, engine: Any) -> None:
    code, out, _ = law("--implementation", engine(Inflated, ("law.one_hot",)), "--json")
    data = json.loads(out)
    dyadic = next(one for one in data["implementations"][0]["laws"] if one["law"] == "dyadic")
    assert (code, dyadic["status"], dyadic["clause"]) == (1, "broken", "LAW-003")
    assert abs(dyadic["accepted"] - 1e-4) < 1e-7
    assert dyadic["limit"] < 1e-5


def test_json_is_one_object_with_every_law(law: Any, engine: Any) -> None:
    spec = engine(CoinReused, ("proc.draw", "law.one_hot", "proc.sample_tokens", "law.sample_rounds"))
    code, out, err = law("--implementation", spec, "--json", "--samples", "3000", "--seed", "5")
    data = json.loads(out)
    assert code == data["exit_code"] == 1
    assert set(data) == {
        "format", "implementations", "holds", "broken", "no_answer", "known_differences", "false_alarm", "sampling",
        "could_not_run", "does_not_speak", "interrupted", "exit_code",
    }  # fmt: skip
    (only,) = data["implementations"]
    assert (only["name"], only["version"], only["profile"]) == ("made", "7", "zlab")
    laws = only["laws"]
    assert len(laws) == data["holds"] + data["broken"] == 7 + 9 + 3 + 3
    for one in laws:
        common = {"op", "law", "method", "status", "clause"}
        more = {"samples", "level", "tests"} if one["method"] == "sampling" else {
            "questions", "deviation", "limit", "tokens", "accepted"}  # fmt: skip
        broken = {"reason", "outcomes"} if one["status"] == "broken" else set()
        assert set(one) == common | more | broken
    tests = [test for one in laws for test in one.get("tests", ())]
    assert {one["level"] for one in laws if "level" in one} == {1e-6 / len(tests)}
    assert data["sampling"]["power"] > 0
    assert "about" in err


def test_another_seed_draws_other_numbers_and_the_same_one_the_same(law: Any, engine: Any) -> None:
    def p_values(seed: str) -> list[float]:
        spec = engine(ops=("proc.sample_tokens",))
        _, out, _ = law("--implementation", spec, "--json", "--samples", "500", "--seed", seed)
        return [test["p"] for one in json.loads(out)["implementations"][0]["laws"] for test in one["tests"]]

    assert p_values("1") == p_values("1") != p_values("2")


def test_what_is_declared_decides_how_it_is_judged(law: Any, engine: Any) -> None:
    for ops, methods in (
        (UNIFORM, {"breakpoints"}),
        (SAMPLED, {"sampling"}),
        (("proc.draw", "proc.sample_tokens"), {"breakpoints", "sampling"}),
    ):
        _, out, _ = law("--implementation", engine(ops=ops), "--json", "--samples", "300")
        assert {one["method"] for one in json.loads(out)["implementations"][0]["laws"]} == methods


def test_nothing_declared_is_exit_code_2_and_says_what_to_declare(law: Any, engine: Any) -> None:
    code, out, _ = law("--implementation", engine(ops=("law.greedy",)))
    assert code == 2
    assert "declare law.one_hot, law.sparse, proc.draw or law.match, which take uniforms" in unwrapped(out)
    assert "proc.sample_tokens and law.sample_rounds" in unwrapped(out)
    assert out.splitlines()[-1].startswith("UNUSABLE  0 laws hold")


def test_files_are_refused_with_the_reason(law: Any, tmp_path: Path) -> None:
    code, out, err = law("--implementation", f"files:{tmp_path}")
    assert (code, out) == (2, "")
    assert "files cannot be judged here: which question comes next depends on the answer before" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to judge: give --implementation HOW, or --controls"),
        (["--implementation", "rust:mine"], "expected files:DIR, stdio:CMD or python:MODULE:FACTORY"),
        (["--controls", "--implementation", "stdio:x"], "--controls judges engines of its own"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_to_do(law: Any, words: list[str], told: str) -> None:
    code, out, err = law(*words)
    assert (code, out) == (2, "")
    assert told in err


@pytest.mark.parametrize(
    "words",
    [["--op", "law.greedy"], ["--samples", "0"], ["--samples", "many"], ["--profile", "vllm"], ["--timeout", "-1"]],
    ids=" ".join,
)
def test_an_option_out_of_its_domain_is_told_by_the_parser(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--implementation", "stdio:x", *words])
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_help_teaches_with_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for words in ("examples:", "exit code:", "ways of plugging in", "--controls", "law.sample_rounds", "130"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 120


def test_one_implementation_that_cannot_be_run_does_not_hide_the_others(law: Any, engine: Any) -> None:
    code, out, _ = law("--implementation", "python:no_such:create", "--implementation", engine(ops=("proc.draw",)))
    assert code == 2
    assert "python:no_such:create could not be run" in out
    assert "7 laws hold" in out


def test_an_engine_of_another_profile_is_a_remark(law: Any) -> None:
    code, out, _ = law("--implementation", f"{CONTROL}right_matching")
    assert code == 0
    assert "does not speak profile ninfer" in unwrapped(out)
    assert "right_matching" in out


def answers_of(wrong: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    """An engine's answers with something done to them."""
    right = Engine("zlab", (*UNIFORM, *SAMPLED))

    def answer(op: str, inputs: dict[str, Any]) -> dict[str, Any]:
        return wrong(right.run(op, inputs))

    return answer


@pytest.mark.parametrize(
    ("op", "wrong", "told"),
    [
        ("proc.draw", lambda a: {"tokens": a["tokens"][:-1]}, "out.tokens has shape ["),
        ("proc.draw", lambda a: {}, "out.tokens is missing"),
        ("proc.draw", lambda a: {"tokens": a["tokens"] + 0.5}, "which I32 cannot hold"),
        ("law.one_hot", lambda a: a | {"accepted": 9}, "accepted is 9, expected 0 to 1"),
        ("law.one_hot", lambda a: a | {"accepted": -1}, "accepted is -1, expected 0 to 1"),
        ("law.one_hot", lambda a: a | {"licensed": a["licensed"] + 1}, "with 0 accepted, expected 0 after 1 tokens"),
        ("proc.sample_tokens", lambda a: {"tokens": a["tokens"][None]}, "has shape [1, 200], expected [200]"),
        ("law.sample_rounds", lambda a: a | {"accepted": a["accepted"] + 9}, "accepted and licensed"),
        ("law.sample_rounds", lambda a: a | {"licensed": a["licensed"] + 1}, "expected 0 in the slots after"),
    ],
)
def test_an_answer_that_is_none_is_told_by_its_own_name(law: Any, engine: Any, op: str, wrong: Any, told: str) -> None:
    code, out, _ = law("--implementation", engine(ops=(op,), answers=answers_of(wrong)), "--samples", "200")
    assert code == 1
    assert told in unwrapped(out)
    assert "no answer" in out
    assert "Traceback" not in out
    assert out.splitlines()[-1].startswith("BROKEN  0 laws hold, 0 broken, 1 without an answer")


@pytest.mark.parametrize(
    ("op", "clause", "told"),
    [
        ("proc.draw", "PROC-005", "token 77 is drawn, which has no probability in the row"),
        ("law.one_hot", "LAW-007", "which no uniforms may give"),
        ("proc.sample_tokens", "LAW-015", "77 has probability 0, and occurs"),
        ("law.sample_rounds", "LAW-014", "has probability 0, and occurs"),
    ],
)
def test_a_token_that_no_row_holds_breaks_the_law(law: Any, engine: Any, op: str, clause: str, told: str) -> None:
    def wrong(answer: dict[str, Any]) -> dict[str, Any]:
        name = "licensed" if "licensed" in answer else "tokens"
        values = np.array(answer[name])
        if name == "tokens":
            values[-1] = 77
        elif values.ndim == 1:
            values[-1] = 77 if int(answer["accepted"]) == len(values) - 1 else 0
        else:
            values[-1, int(answer["accepted"][-1])] = 77
        return answer | {name: values}

    code, out, _ = law("--implementation", engine(ops=(op,), answers=answers_of(wrong)), "--samples", "200")
    assert code == 1
    assert f"{clause}  " in out
    assert told in unwrapped(out)


def test_an_engine_that_refuses_what_it_must_answer_is_broken(law: Any, engine: Any) -> None:
    def refuses(op: str, inputs: dict[str, Any]) -> Any:
        raise TensorError("no")

    code, out, _ = law("--implementation", engine(ops=("proc.draw",), answers=refuses))
    assert code == 1
    assert "refused, and nothing in the inputs is to be refused" in unwrapped(out)


def test_an_op_without_an_answer_is_asked_once_and_not_for_every_law(law: Any, engine: Any) -> None:
    asked = []

    def breaks(op: str, inputs: dict[str, Any]) -> Any:
        asked.append(op)
        raise ValueError("not today")

    code, out, _ = law("--implementation", engine(ops=("proc.draw", "law.one_hot"), answers=breaks))
    assert (code, asked) == (1, ["proc.draw", "law.one_hot"])
    assert unwrapped(out).count("raised ValueError: not today") == 2


def test_a_known_difference_does_not_change_the_verdict(
    law: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "differences.yaml"
    path.write_text("- {implementation: NextRank, clause: PROC-005, verdict: wrong, why: It counts from one.}\n")
    monkeypatch.setattr(judging_laws, "read_differences", lambda: differences.read_differences(path))
    code, out, _ = law("--implementation", f"{CONTROL}next_rank", "--profile", "ninfer")
    assert code == 0
    assert "PROC-005 wrong proc.draw, dyadic: It counts from one." in unwrapped(out)
    assert "reproduce" not in out
    assert "known differences)" in out.splitlines()[-1]


def test_without_scipy_what_can_be_measured_is_measured(law: Any, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.delitem(sys.modules, "scipy.stats", raising=False)
    code, out, _ = law("--implementation", engine(ops=("proc.draw",)))
    assert code == 0
    code, out, _ = law("--implementation", engine(ops=("proc.draw", "proc.sample_tokens")))
    assert code == 2
    assert "pip install 'dflash-oracle[law]'" in unwrapped(out)
    assert "7 laws hold" in out


def test_the_controls_are_run_on_request_and_each_is_told(law: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    some = ("right", "next_rank", "biased_bonus", "next_rank_sampled")
    monkeypatch.setattr(controls, "CONTROLS", {name: CONTROLS[name] for name in some})
    code, out, _ = law("--controls", "--samples", "3000")
    assert code == 0
    assert out.splitlines()[-1].startswith("3 of 3 wrong engines caught, 1 of 1 right ones hold")
    assert out.count("as it must be") == 4
    assert "PROC-005, proc.draw, dyadic (measured): token 19 has probability 0, not 0.5" in out
    code, out, _ = law("--controls", "--json", "--profile", "zlab")
    assert [one["control"] for one in json.loads(out)["controls"]] == ["biased_bonus", "next_rank_sampled"]


def test_a_control_that_is_not_caught_is_exit_code_1(law: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    blind = {"next_rank": replace(CONTROLS["next_rank"], clauses=("LAW-003",))}
    monkeypatch.setattr(controls, "CONTROLS", blind)
    code, out, _ = law("--controls")
    assert code == 1
    assert "NOT AS IT MUST BE" in out
    assert "0 of 1 wrong engines caught" in out


def test_an_interrupt_keeps_the_verdicts_that_were_gathered(law: Any, engine: Any) -> None:
    def interrupted(op: str, inputs: dict[str, Any]) -> None:
        if op == "law.one_hot":
            raise KeyboardInterrupt

    code, out, _ = law("--implementation", engine(ops=("proc.draw", "law.one_hot"), answers=interrupted))
    assert code == 130
    assert out.splitlines()[-1].startswith("INTERRUPTED  7 laws hold")


STDIO = """
import json, os, sys
from pathlib import Path
from dflash_spec.files import read_tensors, write_tensors
from dflash_spec.registry import load_ops
from dflash_spec.tensors import Tensor
from dflash_vectors.law.engines import Engine
import numpy as np

mode, ops = sys.argv[1], ("proc.draw", "law.sample_rounds")
count = 0
for line in sys.stdin:
    message = json.loads(line)
    if message["cmd"] == "stop":
        break
    if message["cmd"] == "start":
        if message["profile"] != "zlab":
            answer = {"unsupported": "zlab only"}
        else:
            engine = Engine("zlab", ops)
            answer = {"protocol": 1, "name": "program", "version": "1", "profile": "zlab", "ops": list(ops)}
    else:
        tensors = {name[3:]: tensor for name, tensor in read_tensors(Path(message["inputs"])).items()}
        answer = {"seq": message["seq"], "ok": True}
        if message["cmd"] == "smoke":
            found = {"out." + name: tensor for name, tensor in tensors.items()}
        else:
            count += 1
            op = message["op"]
            if mode == "crash" and count > 3:
                os._exit(3)
            if mode == "junk" and count > 3:
                print("nearly there", flush=True)
                continue
            if mode == "hang" and count > 3:
                import time; time.sleep(600)
            values = engine.run(op, {name: tensor.values for name, tensor in tensors.items()})
            if mode == "error" and count > 3:
                answer = {"seq": message["seq"], "error": "out of memory"}
            if mode == "range" and op == "proc.draw":
                values["tokens"] = values["tokens"] + 40
            if mode == "shape" and op == "proc.draw":
                values["tokens"] = values["tokens"][:, None]
            kind = "I64" if mode == "dtype" else "I32"
            found = {"out." + name: Tensor.of(kind, np.asarray(v)) for name, v in values.items()}
        write_tensors(Path(message["outputs"]), found)
    print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize(
    ("mode", "code", "told"),
    [
        ("right", 0, "HOLDS 10 laws hold, 0 broken"),
        ("crash", 1, "ended with exit status 3 at run"),
        ("junk", 1, "'nearly there' is not JSON"),
        ("hang", 1, "no answer to run within 2 s"),
        ("error", 1, "reported: out of memory"),
        ("shape", 1, ", 1], expected ["),
        ("dtype", 1, "out.tokens has dtype I64, expected I32"),
        ("range", 1, "token 40 is drawn, which has no probability in the row"),
    ],
)
def test_a_program_is_judged_and_its_faults_have_names(
    law: Any, tmp_path: Path, mode: str, code: int, told: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(STDIO)
    spec = f"stdio:{PYTHON} {shlex.quote(str(program))} {mode}"
    timeout = "2" if mode == "hang" else "60"
    found, out, _ = law("--implementation", spec, "--samples", "2000", "--timeout", timeout)
    assert found == code
    assert told in unwrapped(out)
    assert "Traceback" not in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_the_verdicts_that_were_gathered(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "slow_engine.py").write_text(
        "import pathlib, time\n"
        "from dflash_vectors.law.engines import Engine\n"
        "class E(Engine):\n"
        "    def law_one_hot(self, **inputs):\n"
        "        pathlib.Path('begun').touch(); time.sleep(600)\n"
        "def create(profile): return E(profile, ('proc.draw', 'law.one_hot'))\n"
    )
    words = ["--implementation", "python:slow_engine:create", "--profile", "zlab", "--json"]
    command = [sys.executable, str(ROOT / "tools" / "check_law.py"), *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(1200):
            if (tmp_path / "begun").exists():
                break
            time.sleep(0.05)
        process.send_signal(number)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == check_vectors.EXIT_INTERRUPTED
    data = json.loads(shown)
    assert (data["interrupted"], data["holds"]) == (True, 7)
