"""Whatever files, declarations and programs hold, a check of them ends in a named error and in clean lines."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash_spec.errors import ImplementationError, TensorFileError
from dflash_spec.files import read_metadata, read_tensors, serialize, write_tensors
from dflash_vectors.cases import read_index
from dflash_vectors.checker import judge
from dflash_vectors.runners import open_runner
from dflash_vectors.style import printable
from dflash_vectors.verdict import DAMAGED, FAILED, PASSED

DEEP = "[" * 100_000
DECLARED = '"name": "x", "version": "1", "profile": "zlab"'


def index(vectors: Any, text: str | None = None, **change: Any) -> None:
    """Write the index anew: as `text`, or with `change` laid over the entry of TAP."""
    vectors.cases[vectors.TAP] |= change
    written = json.dumps({"cases": vectors.cases}) if text is None else text
    (vectors.folder / "index.json").write_text(written)


def verdict(spec: str, vectors: Any, id_: str) -> Any:
    runner = open_runner(spec, 20.0)
    try:
        return judge(runner, runner.start("zlab"), next(e for e in read_index(vectors.folder) if e.id == id_))
    finally:
        runner.close()


class TestVectors:
    """The vector set."""

    @pytest.mark.parametrize("way", ["tap/\0", "tap/\ud800", "tap/" + "x" * 5000])
    def test_a_path_that_no_system_has_is_named(self, vectors: Any, way: str) -> None:
        index(vectors, path=way)
        with pytest.raises(TensorFileError):
            vectors.case(vectors.TAP)

    def test_a_link_to_itself_is_named(self, vectors: Any) -> None:
        path = vectors.path(vectors.TAP)
        path.unlink()
        path.symlink_to(path.name)
        with pytest.raises(TensorFileError, match=r"cannot be (followed|read)"):
            vectors.case(vectors.TAP)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (DEEP, "not JSON"),
            ('{"cases": {"a": ' + "[" * 900 + "]" * 900 + "}}", "expected the keys"),
            ('{"cases": {}, "cases": {}}', "a key occurs twice"),
            ('{"cases": {}}', "is empty, expected at least one vector"),
            ('{"cases": {"zlab-a\\n": {}}}', "an id is letters"),
        ],
    )
    def test_an_index_that_is_wrong_in_an_unusual_way_is_named(self, vectors: Any, text: str, words: str) -> None:
        index(vectors, text)
        with pytest.raises(TensorFileError, match=words) as caught:
            read_index(vectors.folder)
        assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize(
        "change",
        [
            *({"clauses": value} for value in (5, None, "TAP-002", [["TAP-002"]])),
            *({"blame": value} for value in (5, None, [1], "TAP-002", {"features": "TAP-999"}, {"features": [1]})),
        ],
    )
    def test_metadata_of_another_form_is_damage(self, vectors: Any, change: dict[str, Any]) -> None:
        path = vectors.path(vectors.TAP)
        path.write_bytes(serialize(read_tensors(path), read_metadata(path) | change))
        vectors.seal(vectors.TAP)
        with pytest.raises(TensorFileError, match=f"metadata {next(iter(change))} is"):
            vectors.case(vectors.TAP)

    def test_a_stage_that_is_there_twice_is_damage(self, vectors: Any) -> None:
        path = vectors.path(vectors.FEATURE)
        tensors = read_tensors(path)
        tensors["stage.01.projected"] = tensors["stage.00.projected"]
        path.write_bytes(serialize(tensors, read_metadata(path)))
        vectors.seal(vectors.FEATURE)
        with pytest.raises(TensorFileError, match="two tensors for stage projected"):
            vectors.case(vectors.FEATURE)

    def test_a_tensor_name_that_moves_the_cursor_is_damage(self, vectors: Any) -> None:
        path = vectors.path(vectors.TAP)
        path.write_bytes(serialize(read_tensors(path) | {"in.a\x1b[2J": vectors.i32(1)}, read_metadata(path)))
        vectors.seal(vectors.TAP)
        with pytest.raises(TensorFileError, match="not in"):
            vectors.case(vectors.TAP)

    def test_damage_is_told_even_where_the_op_is_not_supported(self, vectors: Any, port: Any, check: Any) -> None:
        index(vectors, op="context.feature")
        code, out, _ = check("--implementation", port(ops=["law.greedy"]), "--profile", "zlab")
        assert code == 2
        assert "metadata op is 'tap.concat', the index says 'context.feature'" in " ".join(out.split())
        assert verdict(port(ops=["law.greedy"]), vectors, vectors.TAP).status == DAMAGED


class TestAnswers:
    """files:DIR and python:MODULE:FACTORY"""

    def test_an_answer_that_is_a_link_to_itself_fails(self, vectors: Any, tmp_path: Path) -> None:
        path = tmp_path / f"{vectors.TAP}.safetensors"
        path.symlink_to(path.name)
        assert verdict(f"files:{tmp_path}", vectors, vectors.TAP).reason.startswith("damaged answer: ")

    def test_an_answer_that_is_a_pipe_fails_without_being_waited_for(self, vectors: Any, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / f"{vectors.TAP}.safetensors")
        assert "not a regular file" in verdict(f"files:{tmp_path}", vectors, vectors.TAP).reason

    def test_a_declaration_that_is_a_link_to_itself_is_named(self, vectors: Any, tmp_path: Path) -> None:
        (tmp_path / "implementation.json").symlink_to("implementation.json")
        with pytest.raises(ImplementationError, match=r"implementation\.json"):
            verdict(f"files:{tmp_path}", vectors, vectors.TAP)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (DEEP, "not JSON"),
            (f'{{{DECLARED}, "ops": ["tap.concat"], "ops": []}}', "a key occurs twice"),
            (f'{{{DECLARED}, "ops": {"[" * 900}{"]" * 900}}}', "expected string"),
        ],
    )
    def test_a_declaration_that_is_wrong_in_an_unusual_way_is_named(
        self, vectors: Any, tmp_path: Path, text: str, words: str
    ) -> None:
        (tmp_path / "implementation.json").write_text(text)
        with pytest.raises(ImplementationError, match=words) as caught:
            verdict(f"files:{tmp_path}", vectors, vectors.TAP)
        assert len(str(caught.value)) < 1000

    def test_a_stage_that_is_answered_twice_fails(self, vectors: Any, port: Any, tmp_path: Path) -> None:
        tensors = vectors.expected(vectors.FEATURE)
        write_tensors(
            tmp_path / f"{vectors.FEATURE}.safetensors", tensors | {"stage.projected": tensors["stage.00.projected"]}
        )
        assert "two tensors for stage.projected" in verdict(f"files:{tmp_path}", vectors, vectors.FEATURE).reason
        twice = {"c": [[2]], "stage.projected": [[11]], "stage.00.projected": [[11]]}
        assert "two tensors for stage.projected" in verdict(port(lambda *_: twice), vectors, vectors.FEATURE).reason

    def test_an_implementation_that_takes_its_inputs_apart_is_judged(self, vectors: Any, port: Any) -> None:
        def empties(op: str, inputs: dict[str, Any]) -> None:
            inputs.clear()

        assert verdict(port(empties), vectors, vectors.GREEDY).status == PASSED

    def test_an_error_that_cannot_be_printed_fails_that_vector(self, vectors: Any, port: Any) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        def raises(op: str, inputs: dict[str, Any]) -> None:
            raise Mute

        assert "Mute, which cannot say what it is" in verdict(port(raises), vectors, vectors.GREEDY).reason

    @pytest.mark.parametrize("way", ["text", "--json", "--out"])
    def test_names_and_errors_from_outside_are_printed_clean(
        self, vectors: Any, port: Any, check: Any, tmp_path: Path, way: str
    ) -> None:
        hostile = "a\x1b[2J\ud800b\nc\u202e"

        def raises(op: str, inputs: dict[str, Any]) -> Any:
            if op == "law.greedy":
                raise ValueError(hostile)
            return {"features": np.zeros(1), hostile: 1} if op == "tap.concat" else None

        spec = port(raises, name=hostile, version=hostile)
        out = tmp_path / "run.jsonl"
        words = {"text": [], "--json": ["--json"], "--out": ["--out", str(out)]}[way]
        code, shown, _ = check("--implementation", spec, *words)
        shown += out.read_text() if way == "--out" else ""
        assert code == 1
        assert not {c for c in shown if not c.isprintable()} - {"\n"}
        assert printable(hostile) in shown.replace("\\\\", "\\")


class TestPrograms:
    """stdio:CMD"""

    @pytest.fixture
    def program(self, tmp_path: Path) -> Any:
        """Makes the example program with its answer to `run` replaced."""

        def make(changes: str) -> str:
            path = tmp_path / "program.py"
            path.write_text(PROGRAM.format(changes=changes))
            return f"stdio:{shlex.quote(sys.executable)} {shlex.quote(str(path))}"

        return make

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ("print('[' * 100_000, flush=True)", "is not JSON"),
            ('print(\'{"seq": 2, "ok": true, "seq": 3}\', flush=True)', "repeats a key"),
            ("os.mkdir(m['outputs']); reply(seq=m['seq'], ok=True)", "damaged answer"),
            ("os.mkdir(m['outputs']); os.mkdir(m['outputs'] + '/x'); reply(seq=m['seq'], ok=True)", "damaged answer"),
            ("os.remove(m['inputs']); os.mkdir(m['inputs']); reply(seq=m['seq'], ok=True)", "no answer"),
            ("shutil.rmtree(os.path.dirname(m['inputs'])); reply(seq=m['seq'], ok=True)", "no answer"),
            ("os.kill(os.getpid(), 40)", "was ended by signal 40"),
        ],
    )
    def test_a_program_that_does_something_unusual_fails_that_vector_and_the_next_is_asked(
        self, vectors: Any, program: Any, changes: str, words: str
    ) -> None:
        runner = open_runner(program(changes), 20.0)
        description = runner.start("zlab")
        results = [judge(runner, description, vectors.case(vectors.TAP).entry) for _ in range(2)]
        runner.close()
        assert [result.status for result in results] == [FAILED, FAILED]
        assert all(words in result.reason for result in results)

    def test_no_folder_for_tensors_is_told(self, program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", "/nowhere")
        with pytest.raises(ImplementationError, match="no folder for tensors can be made"):
            open_runner(program("pass"), 20.0).start("zlab")


PROGRAM = """\
import json, os, shutil, sys
from pathlib import Path
from dflash_spec.files import read_tensors, write_tensors
def reply(**message):
    print(json.dumps(message), flush=True)
def run(m):
    {changes}
for line in sys.stdin:
    m = json.loads(line)
    if m["cmd"] == "start":
        reply(protocol=1, name="program", version="1", profile=m["profile"])
    elif m["cmd"] == "smoke":
        tensors = read_tensors(Path(m["inputs"]))
        write_tensors(Path(m["outputs"]), {{"out." + name[3:]: tensor for name, tensor in tensors.items()}})
        reply(seq=m["seq"], ok=True)
    elif m["cmd"] == "run":
        run(m)
"""
