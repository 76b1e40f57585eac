"""Three ways of plugging in: what each takes, and what it says when the implementation does not play along."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from dflash_spec.errors import ConfigError, ImplementationError, UnsupportedError
from dflash_spec.registry import load_ops, load_profile
from dflash_spec.tensors import Tensor
from dflash_vectors.checker import judge
from dflash_vectors.runners import open_runner
from dflash_vectors.runners.protocol import Description, float_dtypes, label_of
from dflash_vectors.verdict import FAILED, PASSED, UNSUPPORTED

PYTHON = shlex.quote(sys.executable)


class AbortError(BaseException):
    """What no `except Exception` catches, as a test framework's own."""


ERRORS = [ValueError("launch failed"), SystemExit(3), NotImplementedError("later"), AbortError("out of memory")]


def verdict(spec: str, vectors: Any, id_: str, timeout: float = 20.0) -> Any:
    """The result of one vector on a freshly started implementation."""
    case = vectors.case(id_)
    runner = open_runner(spec, timeout)
    try:
        return judge(runner, runner.start(case.entry.profile.name), case.entry)
    finally:
        runner.close()


@pytest.mark.parametrize(
    "spec", ["files:", "stdio: ", "python:module", "python::create", "module:create", "rust:x", ""]
)
def test_a_way_of_plugging_in_that_does_not_exist_is_told_what_there_is(spec: str) -> None:
    with pytest.raises(ImplementationError, match=r"expected files:DIR, stdio:CMD or python:MODULE:FACTORY"):
        open_runner(spec, 1.0)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("stage.03.raw", "stage.raw"),
        ("stage.raw", "stage.raw"),
        ("stage.01.layer.0", "stage.layer.0"),
        ("stage.layer.0", "stage.layer.0"),
        ("out.key", "out.key"),
        ("stage.3.raw", "stage.3.raw"),
    ],
)
def test_the_number_of_a_stage_may_be_left_out(name: str, label: str) -> None:
    assert label_of(name) == label


def test_what_is_not_declared_is_not_supported() -> None:
    op, profile = load_ops()["context.value"], load_profile("ninfer")
    assert Description("x", "1", "ninfer").lacks(op, profile) == ""
    assert Description("x", "1", "ninfer", ops=frozenset({"tap.concat"})).lacks(op, profile)
    assert Description("x", "1", "ninfer", dtypes=frozenset({"BF16"})).lacks(op, profile) == "dtype F16 is not declared"
    assert Description("x", "1", "ninfer", dtypes=frozenset({"BF16", "F16"})).lacks(op, profile) == ""


def test_scalars_do_not_count_among_the_dtypes_that_an_op_needs() -> None:
    assert float_dtypes(load_ops()["context.feature"], load_profile("ninfer")) == {"BF16"}
    assert float_dtypes(load_ops()["law.greedy"], load_profile("ninfer")) == set()


class TestFiles:
    """files:DIR"""

    def test_an_answer_beside_or_below_its_chapter_is_found(self, vectors: Any, tmp_path: Path) -> None:
        vectors.answer(tmp_path / "flat", vectors.TAP)
        vectors.answer(tmp_path / "deep" / "tap", vectors.TAP)
        assert verdict(f"files:{tmp_path / 'flat'}", vectors, vectors.TAP).status == PASSED
        assert verdict(f"files:{tmp_path / 'deep'}", vectors, vectors.TAP).status == PASSED

    def test_two_answers_to_one_vector_are_one_too_many(self, vectors: Any, tmp_path: Path) -> None:
        vectors.answer(tmp_path, vectors.TAP)
        vectors.answer(tmp_path / "tap", vectors.TAP)
        assert "two answers" in verdict(f"files:{tmp_path}", vectors, vectors.TAP).reason

    def test_without_a_declaration_every_vector_is_required(self, vectors: Any, tmp_path: Path) -> None:
        result = verdict(f"files:{tmp_path}", vectors, vectors.TAP)
        assert result.status == FAILED
        assert f"{vectors.TAP}.safetensors is missing" in result.reason

    def test_an_undeclared_op_is_not_supported_even_if_it_was_answered(self, vectors: Any, tmp_path: Path) -> None:
        vectors.answer(tmp_path, vectors.TAP)
        (tmp_path / "implementation.json").write_text(
            json.dumps({"name": "mine", "version": "1", "profile": "zlab", "ops": ["law.greedy"]})
        )
        assert verdict(f"files:{tmp_path}", vectors, vectors.TAP).status == UNSUPPORTED
        assert verdict(f"files:{tmp_path}", vectors, vectors.GREEDY).status == FAILED

    def test_another_profile_is_not_spoken(self, vectors: Any, tmp_path: Path) -> None:
        (tmp_path / "implementation.json").write_text('{"name": "mine", "version": "1", "profile": "ninfer"}')
        with pytest.raises(UnsupportedError, match="declares profile ninfer"):
            verdict(f"files:{tmp_path}", vectors, vectors.TAP)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", "not JSON"),
            ("[]", "expected object"),
            ("{}", "key 'name' is missing"),
            ('{"name": "", "version": "1", "profile": "zlab"}', "name: found an empty string"),
            ('{"name": "x", "version": 1, "profile": "zlab"}', "version: found 1, expected string"),
            ('{"name": "x", "version": "1", "profile": "vllm"}', "expected 'ninfer' or 'zlab'"),
            ('{"name": "x", "version": "1", "profile": "zlab", "op": []}', "unknown key 'op'"),
            ('{"name": "x", "version": "1", "profile": "zlab", "ops": "tap.concat"}', "expected array"),
            ('{"name": "x", "version": "1", "profile": "zlab", "dtypes": ["F64"]}', r"dtypes\[0\]: found 'F64'"),
            (
                '{"name": "x", "version": "1", "profile": "zlab", "ops": ["tap.concatenate"]}',
                "'tap.concatenate' is not in the spec; did you mean 'tap.concat'",
            ),
        ],
    )
    def test_a_bad_declaration_is_named(self, vectors: Any, tmp_path: Path, text: str, words: str) -> None:
        (tmp_path / "implementation.json").write_text(text)
        with pytest.raises(ImplementationError, match=words) as caught:
            verdict(f"files:{tmp_path}", vectors, vectors.TAP)
        assert "implementation.json" in str(caught.value)

    def test_a_folder_that_is_not_there_is_told(self, vectors: Any, tmp_path: Path) -> None:
        with pytest.raises(ImplementationError, match="not a folder"):
            verdict(f"files:{tmp_path / 'gone'}", vectors, vectors.TAP)

    @pytest.mark.parametrize("cut", [0, 7, 40, -1])
    def test_a_truncated_answer_is_damaged(self, vectors: Any, tmp_path: Path, cut: int) -> None:
        path = vectors.answer(tmp_path, vectors.TAP)
        path.write_bytes(path.read_bytes()[:cut])
        result = verdict(f"files:{tmp_path}", vectors, vectors.TAP)
        assert result.status == FAILED
        assert result.reason.startswith("damaged answer: ")
        assert str(path) in result.reason

    @pytest.mark.parametrize(
        ("change", "label", "problem"),
        [
            (lambda v: {"licensed": Tensor.of("I64", np.array([5, 7, 0]))}, "out.licensed", "dtype I64, expected I32"),
            (lambda v: {"licensed": v.i32([5, 7])}, "out.licensed", "shape [2], expected [3]"),
            (lambda v: {"licensed": None}, "out.licensed", "missing from the answer"),
            (lambda v: {"bonus": v.i32(1)}, "out.bonus", "unexpected"),
        ],
    )
    def test_a_wrong_tensor_in_an_answer_is_named(
        self, vectors: Any, tmp_path: Path, change: Any, label: str, problem: str
    ) -> None:
        vectors.answer(tmp_path, vectors.GREEDY, **change(vectors))
        (divergence,) = verdict(f"files:{tmp_path}", vectors, vectors.GREEDY).divergences
        assert divergence.label == label
        assert problem in divergence.problem

    def test_nan_where_a_number_belongs_fails(self, vectors: Any, tmp_path: Path) -> None:
        vectors.answer(tmp_path, vectors.FEATURE, c=vectors.f32([[np.nan]]))
        (divergence,) = verdict(f"files:{tmp_path}", vectors, vectors.FEATURE).divergences
        assert divergence.first.got == "nan (0x7fc00000)"

    def test_a_link_that_leaves_the_folder_is_refused(self, vectors: Any, tmp_path: Path) -> None:
        outside = vectors.answer(tmp_path / "elsewhere", vectors.TAP)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / outside.name).symlink_to(outside)
        result = verdict(f"files:{tmp_path / 'mine'}", vectors, vectors.TAP)
        assert "expected a file within" in result.reason

    def test_a_link_to_nowhere_is_an_unreadable_answer(self, vectors: Any, tmp_path: Path) -> None:
        (tmp_path / f"{vectors.TAP}.safetensors").symlink_to(tmp_path / "gone")
        assert "cannot be read" in verdict(f"files:{tmp_path}", vectors, vectors.TAP).reason

    def test_an_answer_that_is_a_folder_is_unreadable(self, vectors: Any, tmp_path: Path) -> None:
        (tmp_path / f"{vectors.TAP}.safetensors").mkdir()
        assert "cannot be read" in verdict(f"files:{tmp_path}", vectors, vectors.TAP).reason


class TestPython:
    """python:MODULE:FACTORY"""

    def test_the_right_arrays_pass_with_their_stages(self, vectors: Any, port: Any) -> None:
        for id_ in vectors.cases:
            assert verdict(port(), vectors, id_).status == PASSED

    def test_inputs_arrive_as_arrays_by_name(self, vectors: Any, port: Any) -> None:
        seen = {}

        def answers(op: str, inputs: dict[str, Any]) -> None:
            seen.update(inputs)

        verdict(port(answers), vectors, vectors.FEATURE)
        assert {name: (array.dtype.name, array.shape) for name, array in seen.items()} == {
            "features": ("float32", (1, 2)),
            "fc": ("float32", (1, 2)),
            "hidden_norm": ("float32", (1,)),
            "eps": ("float32", ()),
        }

    def test_a_float_that_the_dtype_cannot_hold_is_named_with_its_index(self, vectors: Any, port: Any) -> None:
        spec = port(lambda op, inputs: {"y": np.array([1.0, -0.0, 1.001, np.inf])})
        (divergence,) = verdict(spec, vectors, vectors.ROUND).divergences
        assert divergence.problem == "element [2] is 1.001, which BF16 cannot hold"

    @pytest.mark.parametrize("value", ["text", None, [[1], [1, 2]], object()])
    def test_what_is_no_array_fails_by_name(self, vectors: Any, port: Any, value: object) -> None:
        spec = port(lambda op, inputs: {"licensed": value, "accepted": 1})
        assert [d.label for d in verdict(spec, vectors, vectors.GREEDY).divergences] == ["out.licensed"]

    def test_integers_of_another_width_are_taken_if_they_fit(self, vectors: Any, port: Any) -> None:
        spec = port(lambda op, inputs: {"licensed": np.array([5, 7, 0], np.int64), "accepted": 1})
        assert verdict(spec, vectors, vectors.GREEDY).status == PASSED
        spec = port(lambda op, inputs: {"licensed": [5, 7, 0], "accepted": 2**40})
        assert verdict(spec, vectors, vectors.GREEDY).divergences[0].label == "out.accepted"

    def test_an_answer_that_is_no_dict_fails(self, vectors: Any, port: Any) -> None:
        result = verdict(port(lambda op, inputs: [1, 2]), vectors, vectors.GREEDY)
        assert "run() returned list" in result.reason

    @pytest.mark.parametrize("error", ERRORS)
    def test_what_it_raises_fails_that_vector_with_the_place(
        self, vectors: Any, port: Any, error: BaseException
    ) -> None:
        def answers(op: str, inputs: dict[str, Any]) -> None:
            raise error

        result = verdict(port(answers), vectors, vectors.GREEDY)
        assert result.status == FAILED
        assert f"raised {type(error).__name__}: {error} at {__file__}" in result.reason

    @pytest.mark.parametrize("raised", ["ValueError('no device')", "SystemExit(3)", "GeneratorExit('gone')"])
    @pytest.mark.parametrize(
        "text",
        [
            "raise {}",
            "def create(profile): raise {}",
            "class create:\n    def __init__(self, profile): pass\n    def describe(self): raise {}",
        ],
    )
    def test_what_its_start_raises_is_told_with_the_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, raised: str
    ) -> None:
        (tmp_path / "stumbling_port.py").write_text(text.format(raised) + "\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "stumbling_port", raising=False)
        words = f"cannot be built: {raised.split('(')[0]}: .* at .*stumbling_port.py:"
        with pytest.raises(ImplementationError, match=words):
            open_runner("python:stumbling_port:create", 1.0).start("zlab")

    @pytest.mark.parametrize("error", ERRORS)
    def test_an_answer_that_raises_as_it_is_read_fails_that_vector(
        self, vectors: Any, port: Any, error: BaseException
    ) -> None:
        class Late:
            def __array__(self, *given: object, **more: object) -> NoReturn:
                raise error

        result = verdict(port(lambda *_: {"licensed": Late(), "accepted": 1}), vectors, vectors.GREEDY)
        assert f"not an array: {type(error).__name__}: {error}" in result.divergences[0].problem

    def test_an_interrupt_is_the_checks_and_not_the_implementations(self, vectors: Any, port: Any) -> None:
        def interrupted(op: str, inputs: dict[str, Any]) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            verdict(port(interrupted), vectors, vectors.GREEDY)

    def test_a_named_error_on_a_config_op_is_a_refusal(self, vectors: Any, port: Any) -> None:
        def refuses(op: str, inputs: dict[str, Any]) -> None:
            raise ConfigError("taps collapse")

        assert verdict(port(refuses), vectors, vectors.REFUSED).status == PASSED
        assert "raised ConfigError" in verdict(port(refuses), vectors, vectors.GREEDY).reason

    def test_another_error_on_a_config_op_is_no_refusal(self, vectors: Any, port: Any) -> None:
        def stumbles(op: str, inputs: dict[str, Any]) -> None:
            raise KeyError("target_layers")

        assert verdict(port(stumbles), vectors, vectors.REFUSED).status == FAILED

    def test_writing_into_an_input_fails(self, vectors: Any, port: Any) -> None:
        def scribbles(op: str, inputs: dict[str, Any]) -> None:
            inputs["target"][0] += 1

        result = verdict(port(scribbles), vectors, vectors.GREEDY)
        assert result.reason == "wrote into its input 'target'"
        assert verdict(port(), vectors, vectors.GREEDY).status == PASSED

    def test_a_module_that_is_not_there_is_told(self) -> None:
        with pytest.raises(ImplementationError, match="ModuleNotFoundError: No module named 'no_such_port'"):
            open_runner("python:no_such_port:create", 1.0).start("zlab")

    def test_a_factory_that_is_not_there_is_told(self) -> None:
        with pytest.raises(ImplementationError, match="AttributeError"):
            open_runner("python:json:create", 1.0).start("zlab")

    def test_a_description_of_the_wrong_form_is_named(self, port: Any) -> None:
        with pytest.raises(ImplementationError, match=r"describe\(\): ops\[0\]: found 1, expected string"):
            open_runner(port(ops=[1]), 1.0).start("zlab")

    def test_a_description_of_another_profile_is_not_spoken(self, port: Any) -> None:
        with pytest.raises(UnsupportedError, match="describes profile ninfer"):
            open_runner(port(profile="ninfer"), 1.0).start("zlab")

    def test_modules_of_the_working_folder_are_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "port_in_cwd.py").write_text(
            "class P:\n"
            "    def describe(self): return {'name': 'cwd', 'version': '1', 'profile': 'zlab'}\n"
            "def create(profile): return P()\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", os.getcwd())])
        assert open_runner("python:port_in_cwd:create", 1.0).start("zlab").name == "cwd"


PROGRAM = """\
import json, os, shutil, signal, sys, time
from pathlib import Path
from dflash_spec.files import read_tensors, write_tensors
ANSWERS = Path({answers!r})
def reply(**message):
    print(json.dumps(message), flush=True)
def smoke(m):
    tensors = read_tensors(Path(m["inputs"]))
    write_tensors(Path(m["outputs"]), {{"out." + name[3:]: tensor for name, tensor in tensors.items()}})
def run(m):
    shutil.copy(ANSWERS / (m["id"] + ".safetensors"), m["outputs"])
def start(m):
    reply(protocol=1, name="program", version="1", profile=m["profile"])
{changes}
for line in sys.stdin:
    m = json.loads(line)
    with open(ANSWERS / "log", "a") as log:
        log.write(m["cmd"] + " " + m.get("id", "") + chr(10))
    if m["cmd"] == "stop":
        break
    if m["cmd"] == "start":
        start(m)
    else:
        (smoke if m["cmd"] == "smoke" else run)(m)
        reply(seq=m["seq"], ok=True)
"""


class TestStdio:
    """stdio:CMD"""

    @pytest.fixture
    def program(self, vectors: Any, tmp_path: Path) -> Any:
        """Makes a program that gives the right answers, but for what `changes` defines anew."""

        def make(changes: str = "") -> str:
            answers = tmp_path / "answers"
            for id_ in vectors.cases:
                vectors.answer(answers, id_)
            path = tmp_path / "program.py"
            path.write_text(PROGRAM.format(answers=str(answers), changes=changes))
            return f"stdio:{PYTHON} {shlex.quote(str(path))}"

        return make

    @pytest.fixture
    def log(self, tmp_path: Path) -> Any:
        return lambda: (tmp_path / "answers" / "log").read_text().split("\n")

    def test_the_right_answers_pass(self, vectors: Any, program: Any, log: Any) -> None:
        spec = program()
        for id_ in vectors.cases:
            assert verdict(spec, vectors, id_).status == PASSED
        assert log()[:4] == ["start ", "smoke ", f"run {vectors.TAP}", "stop "]

    def test_the_program_is_shown_inputs_alone(self, vectors: Any, program: Any, tmp_path: Path) -> None:
        spec = program(
            "def run(m):\n"
            "    names = sorted(read_tensors(Path(m['inputs'])))\n"
            "    (ANSWERS / 'seen').write_text(' '.join(names))\n"
            "    shutil.copy(ANSWERS / (m['id'] + '.safetensors'), m['outputs'])"
        )
        assert verdict(spec, vectors, vectors.FEATURE).status == PASSED
        assert (tmp_path / "answers" / "seen").read_text() == "in.eps in.fc in.features in.hidden_norm"

    def test_a_crash_fails_that_vector_with_the_end_of_stderr_and_the_next_one_runs(
        self, vectors: Any, program: Any, log: Any
    ) -> None:
        spec = program(
            "true = run\n"
            "def run(m):\n"
            "    if m['op'] == 'tap.concat':\n"
            "        print('line 1', 'out of memory', sep=chr(10), file=sys.stderr)\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    true(m)"
        )
        runner = open_runner(spec, 20.0)
        description = runner.start("zlab")
        first = judge(runner, description, vectors.case(vectors.TAP).entry)
        second = judge(runner, description, vectors.case(vectors.GREEDY).entry)
        runner.close()
        assert first.reason == "was ended by signal SIGKILL at run; its stderr ends: line 1 | out of memory"
        assert second.status == PASSED
        assert [line for line in log() if line.startswith("start")] == ["start ", "start "]

    def test_an_exit_fails_with_its_status(self, vectors: Any, program: Any) -> None:
        result = verdict(program("def run(m): sys.exit(3)"), vectors, vectors.TAP)
        assert result.reason == "ended with exit status 3 at run; its stderr is empty"

    def test_a_program_that_cannot_come_back_fails_every_later_vector_at_once(
        self, vectors: Any, program: Any, tmp_path: Path, log: Any
    ) -> None:
        spec = program(
            "def run(m): sys.exit(3)\n"
            "true = start\n"
            "def start(m):\n"
            "    if (ANSWERS / 'once').exists(): sys.exit(4)\n"
            "    (ANSWERS / 'once').touch()\n"
            "    true(m)"
        )
        runner = open_runner(spec, 20.0)
        description = runner.start("zlab")
        reasons = [judge(runner, description, vectors.case(vectors.TAP).entry).reason for _ in range(3)]
        runner.close()
        assert "exit status 3" in reasons[0]
        assert reasons[1] == reasons[2]
        assert "could not be started again" in reasons[1]
        assert "exit status 4" in reasons[1]
        assert [line for line in log() if line.startswith("start")] == ["start ", "start "]

    def test_a_hang_fails_after_the_timeout_and_takes_its_children_along(
        self, vectors: Any, program: Any, tmp_path: Path
    ) -> None:
        spec = program(
            "import subprocess\n"
            "def run(m):\n"
            "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            "    (ANSWERS / 'child').write_text(str(child.pid))\n"
            "    time.sleep(600)"
        )
        start = time.monotonic()
        result = verdict(spec, vectors, vectors.TAP, timeout=2.0)
        assert "no answer to run within 2 s" in result.reason
        assert time.monotonic() - start < 60
        child = int((tmp_path / "answers" / "child").read_text())
        for _ in range(100):
            if not alive(child):
                break
            time.sleep(0.05)
        assert not alive(child)

    def test_a_process_that_left_the_group_with_the_pipes_does_not_hold_the_check_up(
        self, vectors: Any, program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dflash_vectors.runners.stdio.GRACE", 0.5)
        spec = program(
            "import subprocess\n"
            "def run(m):\n"
            "    command = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
            "    child = subprocess.Popen(command, start_new_session=True)\n"
            "    (ANSWERS / 'child').write_text(str(child.pid))\n"
            "    sys.exit(3)"
        )
        start = time.monotonic()
        result = verdict(spec, vectors, vectors.TAP, timeout=2.0)
        elapsed = time.monotonic() - start
        os.kill(int((tmp_path / "answers" / "child").read_text()), signal.SIGKILL)
        assert result.status == FAILED
        assert elapsed < 30

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ("def run(m): print('loading model...', flush=True)", "'loading model...' is not JSON"),
            ("def run(m): reply(seq=m['seq'] + 1, ok=True)", "seq 3, expected 2"),
            ("def run(m): reply(seq=m['seq'])", "key 'ok' is missing"),
            ("def run(m): reply(seq=m['seq'], ok=False)", "ok: found False, expected True"),
            ("def run(m): reply(seq=m['seq'], ok=1)", "ok: found 1, expected True"),
            ("def run(m): reply(seq=m['seq'], ok=True, time=3)", "unknown key 'time'"),
            ("def run(m): reply(seq=str(m['seq']), ok=True)", "seq: found '2', expected integer"),
            ("def run(m): print([], flush=True)", "expected a JSON object"),
            ("def run(m): reply(seq=m['seq'], error='no kernel')", "reported: no kernel"),
            ("def run(m): pass", "outputs.safetensors is missing"),
            ("def run(m): Path(m['outputs']).write_bytes(b'junk')", "damaged answer"),
            ("def run(m): Path(m['outputs']).symlink_to(ANSWERS / (m['id'] + '.safetensors'))", "file within"),
        ],
    )
    def test_a_run_that_breaks_the_protocol_fails_with_what_was_said(
        self, vectors: Any, program: Any, changes: str, words: str
    ) -> None:
        result = verdict(program(changes), vectors, vectors.TAP)
        assert result.status == FAILED
        assert words in result.reason

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ("def start(m): reply(name='x', version='1', profile=m['profile'])", "key 'protocol' is missing"),
            ("def start(m): reply(protocol=2, name='x', version='1', profile='zlab')", "protocol: found 2, expected 1"),
            ("def start(m): reply(protocol=1, name='x', version='1', profile='ninfer')", "profile 'ninfer', expected"),
            ("def start(m): reply(unsupported='')", "found an empty string"),
            ("def start(m): sys.exit(5)", "exit status 5 at start"),
            ("def smoke(m): pass", "smoke check of the harness: no answer"),
            ("def smoke(m): write_tensors(Path(m['outputs']), {})", r"out.scalar is missing"),
            (
                "def smoke(m):\n"
                "    t = read_tensors(Path(m['inputs']))\n"
                "    t['in.bf16'].values[0, 1] = 0.0\n"
                "    write_tensors(Path(m['outputs']), {'out.' + k[3:]: v for k, v in t.items()})",
                "out.bf16 is BF16 [2, 3] [[1.0, 0.0, 1.5]",
            ),
        ],
    )
    def test_a_harness_that_does_not_work_is_told_before_any_vector(
        self, vectors: Any, program: Any, changes: str, words: str
    ) -> None:
        with pytest.raises(ImplementationError) as caught:
            verdict(program(changes), vectors, vectors.TAP)
        assert words in str(caught.value)

    def test_a_profile_that_is_not_spoken_is_told(self, vectors: Any, program: Any) -> None:
        with pytest.raises(UnsupportedError, match="only ninfer here"):
            verdict(program("def start(m): reply(unsupported='only ninfer here')"), vectors, vectors.TAP)

    @pytest.mark.parametrize("command", ["no-such-program-anywhere", "'unbalanced"])
    def test_a_program_that_cannot_be_started_is_told(self, command: str) -> None:
        with pytest.raises(ImplementationError, match="cannot be started"):
            open_runner(f"stdio:{command}", 1.0).start("zlab")

    def test_a_program_that_does_not_stop_is_ended(
        self, vectors: Any, program: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dflash_vectors.runners.stdio.GRACE", 0.2)
        spec = program("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nimport atexit\natexit.register(time.sleep, 600)")
        start = time.monotonic()
        assert verdict(spec, vectors, vectors.TAP).status == PASSED
        assert time.monotonic() - start < 60


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
