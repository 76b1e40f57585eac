"""Traces on disk: what is written is read, and whatever is damaged is refused by file and name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_spec.errors import TraceError
from dflash_spec.files import read_metadata, read_tensors, write_tensors
from dflash_spec.tensors import Tensor
from dflash_vectors import planted
from dflash_vectors.trace import Recorder, Trace

PAIR = planted.pair("small")
HIDDEN, PUBLIC = PAIR.options.hidden, PAIR.public
TEXTS = {name: json.dumps(config).encode() for name, config in
         (("target", PAIR.target_config), ("draft", PAIR.draft_config))}  # fmt: skip
ROWS = np.arange(3 * HIDDEN, dtype=np.float32).reshape(3, HIDDEN) / 8


def recorder(folder: Path, **more: Any) -> Recorder:
    given: dict[str, Any] = {
        "name": "engine", "version": "0.3", "profile": "zlab", "prompt": [3, 1, 4], "drafts": 4, "max_new": 40,
        "stop_ids": [2], "public": PUBLIC, **TEXTS,
    }  # fmt: skip
    return Recorder(folder, **{**given, **more})


def record(folder: Path, rounds: int = 3) -> None:
    """A trace whose rounds each accept one of two proposals."""
    made = recorder(folder)
    made.prefill(7, frontiers={"execution": 3}, stages={"target.logits": np.zeros((1, 4), np.float32)})
    frontier, anchor = 3, 7
    for number in range(rounds):
        made.round(
            frontier=frontier, anchor=anchor, proposals=[5, 6], accepted=1, licensed=[5, 8 + number], kept=2,
            stages={"c": ROWS + number}, frontiers={"kv": frontier + 2}, hashes={"kv": bytes([number, 255])},
            extras={"mine": np.arange(4) + number},
        )  # fmt: skip
        frontier, anchor = frontier + 2, 8 + number
    made.end("cancelled", [7])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "trace"
    record(folder)
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "trace"))


def test_what_is_recorded_is_read_back(folder: Path) -> None:
    trace = Trace.open(folder)
    asked = trace.configuration
    assert (asked.name, asked.version, asked.prompt, asked.stop_ids) == ("engine", "0.3", (3, 1, 4), (2,))
    assert (asked.target_config, asked.draft_config) == (TEXTS["target"], TEXTS["draft"])
    assert trace.prefill is not None
    assert (trace.prefill.first, trace.prefill.frontiers) == (7, {"execution": 3})
    second = list(trace.rounds())[1]
    assert (second.frontier, second.anchor, second.extent, second.accepted, second.kept) == (5, 8, 2, 1, 2)
    assert (second.proposals.tolist(), second.licensed.tolist()) == ([5, 6], [5, 9])
    np.testing.assert_array_equal(second.stages["c"].values, ROWS + 1)
    assert second.hashes == {"kv": b"\x01\xff"}
    assert second.extras["mine"].values.tolist() == [1, 2, 3, 4]
    assert trace.end is not None
    assert (trace.end.reason, trace.end.tokens) == ("cancelled", (7,))


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (torch.tensor([[1.5, -0.25]], dtype=torch.bfloat16), "BF16"),
        (torch.tensor([[1.5, -0.25]], dtype=torch.float16, requires_grad=True), "F16"),
        (np.array([[1.5, -0.25]], dtype=np.float32), "F32"),
        ([[1.5, -0.25]], "F32"),
    ],
    ids=["torch-bf16", "torch-f16-with-gradient", "numpy", "list"],
)
def test_tensors_are_stored_in_the_dtype_that_they_have(given: Any, dtype: str, tmp_path: Path) -> None:
    made = recorder(tmp_path / "trace")
    made.round(frontier=3, anchor=7, proposals=[], accepted=0, licensed=[5], kept=1, stages={"c": given})
    tensor = Trace.open(tmp_path / "trace").round(0).stages["c"]
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.values, np.array([[1.5, -0.25]], np.float32))


def test_a_run_that_is_killed_leaves_every_round_that_had_ended(tmp_path: Path) -> None:
    code = (
        f"import os, signal, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nimport test_format\n"
        f"made = test_format.recorder(Path({str(tmp_path / 'trace')!r}))\nmade.prefill(7)\n"
        "for number in range(2):\n"
        "    made.round(frontier=3 + number, anchor=7, proposals=[], accepted=0, licensed=[7], kept=1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    trace = Trace.open(tmp_path / "trace")
    assert [round_.frontier for round_ in trace.rounds()] == [3, 4]
    assert trace.end is None


def test_the_recorder_needs_neither_torch_nor_the_reference(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom dflash_vectors.trace import Recorder\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'dflash_reference', 'safetensors'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_trace_is_never_written_into_a_folder_that_holds_something(folder: Path) -> None:
    with pytest.raises(TraceError, match="expected a new or an empty folder"):
        recorder(folder)


GOOD: dict[str, Any] = {"frontier": 3, "anchor": 7, "proposals": [5], "accepted": 0, "licensed": [5], "kept": 1}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stages": {"hiden": ROWS}}, "round 0: stage 'hiden', expected some of features, c, layer.0"),
        ({"stages": {"layer.2": ROWS}}, "stage 'layer.2'"),
        ({"stages": {"candidates": ROWS}}, "stage 'candidates'"),
        ({"frontiers": {"cache": 3}}, "frontier 'cache', expected some of execution, kv, context"),
        ({"stages": {"c": np.array([0.1])}}, "round 0: stage c: .*not representable in F32"),
        ({"proposals": [1.5]}, "round 0: proposals: F32"),
        ({"licensed": [[1]]}, "round 0: licensed: I64"),
        ({"stages": {"c": "text"}}, "round 0: stage c"),
    ],
)
def test_what_a_recorder_is_given_wrongly_it_says_at_once(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=message):
        recorder(tmp_path / "trace").round(**{**GOOD, **wrong})


def changed(name: str, **tensors: Any) -> Callable[[Path], None]:
    """A file whose tensors are others; None takes one out."""

    def change(folder: Path) -> None:
        held = read_tensors(folder / name)
        for full, values in tensors.items():
            label = full.replace("__", ".")
            held.pop(label, None)
            if values is not None:
                held[label] = values if isinstance(values, Tensor) else Tensor.of("I64", np.array(values))
        write_tensors(folder / name, held, read_metadata(folder / name))

    return change


def said(name: str, **members: Any) -> Callable[[Path], None]:
    """A file whose metadata says something else; None takes a member out."""

    def change(folder: Path) -> None:
        metadata = {**read_metadata(folder / name), **members}
        kept = {key: value for key, value in metadata.items() if value is not None}
        write_tensors(folder / name, read_tensors(folder / name), kept)

    return change


def cut(name: str, size: int) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def swapped(folder: Path) -> None:
    one, two = folder / ROUND, folder / "round-000002.safetensors"
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)


def of_another_run(folder: Path) -> None:
    record(folder.parent / "other")
    shutil.copy(folder.parent / "other" / ROUND, folder / ROUND)


def bad_config(folder: Path) -> None:
    changed("start.safetensors", draft_config=Tensor("U8", np.frombuffer(b'{"a": 1}', np.uint8)))(folder)


START, ROUND, END = "start.safetensors", "round-000001.safetensors", "end.safetensors"
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no-beginning": (lambda folder: (folder / START).unlink(), "found no start.safetensors"),
    "gap": (lambda folder: (folder / ROUND).unlink(), "round 1 is missing, though there is round-000002"),
    "rounds-lost-at-the-end": (
        lambda folder: (folder / "round-000002.safetensors").unlink(), "the run had 3 rounds, found 2"),
    "named-otherwise": (
        lambda folder: (folder / ROUND).rename(folder / "round-1.safetensors"), "expected a name such as round-000037"),
    "two-of-one-number": (
        lambda folder: shutil.copy(folder / ROUND, folder / "round-0000001.safetensors"), "a second file of round 1"),
    "reordered": (swapped, "round-000001.*: holds round 2, expected 1"),
    "of-another-run": (of_another_run, "round-000001.*of run '.*', expected '"),
    "truncated": (cut(ROUND, 900), "round-000001.*truncated"),
    "empty": (cut(ROUND, 0), "round-000001.*truncated or not safetensors"),
    "beginning-truncated": (cut(START, 400), "start.safetensors"),
    "not-a-trace": (said(START, format="vectors"), "metadata 'format' is 'vectors'"),
    "another-version": (said(START, version=2), "version 2 of the format, expected 1"),
    "unknown-member": (said(START, temprature=1.0), "unknown metadata 'temprature'"),
    "unknown-profile": (said(START, profile="mine"), "profile 'mine', expected one of"),
    "unknown-draws": (said(START, draws="mine"), "draws 'mine', expected one of keyed, opaque"),
    "a-text-for-a-number": (said(START, drafts="4"), "metadata 'drafts' is '4', expected int"),
    "no-drafts": (said(START, drafts=None), "metadata 'drafts' is None"),
    "seed-out-of-range": (said(START, seed=2**64), "metadata 'seed' is 18446744073709551616"),
    "dtype-of-another-profile": (said(START, dtypes={"ACT": "BF16"}), "ACT is held in BF16, expected F32, as profile"),
    "unknown-role": (said(START, dtypes={"KV": "F32"}), "dtypes 'KV'"),
    "unknown-sampling": (said(START, sampling={"mirostat": 1}), "sampling 'mirostat'"),
    "chunks-of-another-prompt": (said(START, chunks=[2]), "chunks \\[2\\], expected lengths that add up to 3"),
    "public-beyond-the-table": (said(START, public=10**6), "public is 1000000, expected 1 to"),
    "config-that-is-none": (bad_config, "start.safetensors: draft config"),
    "prompt-out-of-range": (changed(START, prompt=[3, 10**6]), "prompt\\[1\\] is 1000000, expected 0 to"),
    "stop-id-out-of-range": (changed(START, stop_ids=[PUBLIC]), "stop_ids\\[0\\]"),
    "empty-prompt": (changed(START, prompt=Tensor("I64", np.zeros(0, np.int64))), "the prompt's length is 0"),
    "no-anchor": (changed(ROUND, in__anchor=None), "tensor 'in.anchor' is missing"),
    "anchor-out-of-range": (changed(ROUND, in__anchor=10**6), "in.anchor is 1000000, expected 0 to"),
    "negative-token": (changed(ROUND, decision__licensed=[5, -1]), "decision.licensed\\[1\\] is -1, expected 0 to"),
    "negative-frontier": (changed(ROUND, in__frontier=-3), "in.frontier is -3"),
    "frontier-of-floats": (
        changed(ROUND, in__frontier=Tensor.of("F32", np.array(3.0))), "in.frontier is F32 \\[\\], expected I64 \\[\\]"),
    "accepted-beyond-the-extent": (changed(ROUND, decision__accepted=3), "decision.accepted is 3, expected 0 to 2"),
    "too-few-proposals": (changed(ROUND, decision__proposals=[5]), "decision.proposals is I64 \\[1\\], expected"),
    "too-many-licensed": (changed(ROUND, decision__licensed=[5, 6, 7]), "number of decision.licensed is 3"),
    "kept-beyond-the-licensed": (changed(ROUND, decision__kept=3), "decision.kept is 3, expected 0 to 2"),
    "unknown-tensor": (changed(ROUND, hidden=[1]), "unexpected tensor 'hidden'; stages of this draft are stage.feat"),
    "stage-of-integers": (changed(ROUND, stage__c=[[1]]), "stage.c is I64 \\[1, 1\\], expected rows of BF16, F16, F32"),
    "stage-of-one-dimension": (
        changed(ROUND, stage__c=Tensor.of("F32", np.ones(3))), "stage.c is F32 \\[3\\], expected rows"),
    "hash-that-is-none": (changed(ROUND, hash__kv=[1]), "hash.kv is I64 \\[1\\], expected U8"),
    "first-out-of-range": (changed("prefill.safetensors", decision__first=10**6), "decision.first is 1000000"),
    "unknown-reason": (said(END, reason="tired"), "reason 'tired', expected one of stop, length"),
    "end-of-another-length": (said(END, rounds=4), "the run had 4 rounds, found 3"),
}  # fmt: skip


def read_all(folder: Path) -> None:
    trace = Trace.open(folder)
    assert trace.prefill is not None
    assert list(trace.rounds())
    assert trace.end is not None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_trace_is_refused_with_file_and_name(damage: str, folder: Path) -> None:
    read_all(folder)
    spoil, message = DAMAGES[damage]
    spoil(folder)
    with pytest.raises(TraceError, match=message) as refused:
        read_all(folder)
    assert str(folder) in str(refused.value)


def test_candidates_of_a_dflash2_draft_are_ids(tmp_path: Path) -> None:
    second = planted.pair("small", backend="dflash2")
    texts = {"target": json.dumps(second.target_config).encode(), "draft": json.dumps(second.draft_config).encode()}
    made = recorder(tmp_path / "trace", public=second.public, **texts)
    rows = second.options.vocabulary
    made.round(**GOOD, stages={"candidates": np.array([[*range(15), rows]])})
    with pytest.raises(TraceError, match=rf"the largest of stage\.candidates is {rows}, expected 0 to {rows - 1}"):
        Trace.open(tmp_path / "trace").round(0)


def test_a_file_left_by_a_write_that_was_cut_off_is_not_taken_for_a_round(folder: Path) -> None:
    (folder / ".writing-abc").write_bytes(b"half")
    read_all(folder)
