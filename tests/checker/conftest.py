"""A small vector set, made by hand with the file codec: the checker is tested without the builder of vectors."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dflash_spec.files import read_tensors, serialize, write_tensors
from dflash_spec.tensors import Tensor
from dflash_vectors import differences
from dflash_vectors.cases import GoldenCase, load_case, read_index
from dflash_vectors.commands import checking
from dflash_vectors.commands.check_vectors import main

Tensors = dict[str, Tensor]


class VectorSet:
    """A folder of vectors that a test may write, spoil and index."""

    TAP = "zlab-tap-concat-recorded-order"
    FEATURE = "zlab-context-feature-one-row"
    ROUND = "ninfer-num-round-bf16-midpoint"
    GREEDY = "zlab-law-greedy-one-accepted"
    REFUSED = "zlab-config-taps-half-even-collapsing"
    KEY = "ninfer-rng-uniform-highest-key"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cases: dict[str, dict[str, Any]] = {}

    @staticmethod
    def f32(values: Any) -> Tensor:
        return Tensor.of("F32", np.array(values, np.float64))

    @staticmethod
    def i32(values: Any) -> Tensor:
        return Tensor.of("I32", np.array(values))

    def add(self, id_: str, op: str, clauses: tuple[str, ...], tensors: Mapping[str, Tensor], **more: Any) -> Path:
        """Write a vector and index it. The profile is the id's first word."""
        metadata = {"id": id_, "op": op, "profile": id_.split("-")[0], "clauses": list(clauses), **more}
        content = serialize(tensors, metadata)
        path = self.folder / f"{clauses[0].split('-')[0].lower()}" / f"{id_}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        entry = {"op": op, "profile": metadata["profile"], "clauses": list(clauses), "tags": []}
        self.cases[id_] = {"path": str(path.relative_to(self.folder)), **entry}
        self.seal(id_)
        return path

    def path(self, id_: str) -> Path:
        return self.folder / str(self.cases[id_]["path"])

    def seal(self, id_: str) -> None:
        """Let the index say what the file of a vector is now."""
        content = self.path(id_).read_bytes()
        self.cases[id_] |= {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        (self.folder / "index.json").write_text(json.dumps({"cases": self.cases}))

    def case(self, id_: str) -> GoldenCase:
        return load_case(next(entry for entry in read_index(self.folder) if entry.id == id_))

    def expected(self, id_: str) -> Tensors:
        """The right answer to a vector, with its stages."""
        tensors = read_tensors(self.path(id_))
        return {name: tensor for name, tensor in tensors.items() if name.startswith(("out.", "stage."))}

    def answer(self, folder: Path, id_: str, **changed: Tensor | None) -> Path:
        """Write the right answer to a vector into `folder`, with outputs replaced, or left out where they are None."""
        tensors = self.expected(id_)
        for name, tensor in changed.items():
            tensors.pop(f"out.{name}", None)
            tensors |= {f"out.{name}": tensor} if tensor is not None else {}
        path = folder / f"{id_}.safetensors"
        write_tensors(path, tensors)
        return path


@pytest.fixture
def vectors(tmp_path: Path) -> VectorSet:
    """Six vectors: exact floats, bounds with a stage, bits, decisions, a refusal, 64-bit integers."""
    made = VectorSet(tmp_path / "vectors")
    f32, i32 = made.f32, made.i32
    residuals = f32([[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]]])
    tap = {"in.residuals": residuals, "in.ids": i32([1, 0]), "out.features": f32([[9, 10, 5, 6], [11, 12, 7, 8]])}
    made.add(made.TAP, "tap.concat", ("TAP-002",), tap, catches="ids are sorted", effect="acceptance")
    # (3, 4)·(1, 2) = 11, and 11 / sqrt(11²) · 2 = 2
    feature = {"in.features": f32([[3, 4]]), "in.fc": f32([[1, 2]]), "in.hidden_norm": f32([2]), "in.eps": f32(0)}
    feature |= {"stage.00.projected": f32([[11]]), "bound.stage.00.projected": f32([[0.25]])}
    feature |= {"out.c": f32([[2]]), "bound.out.c": f32([[0.125]])}
    made.add(made.FEATURE, "context.feature", ("CTX-001", "CTX-002"), feature, blame={"c": "CTX-002"})
    rounded = {"in.hi": f32([1 + 2**-8, -0.0, np.nan, np.inf]), "in.lo": f32([0, 0, 0, 0])}
    rounded["out.y"] = Tensor.of("BF16", np.array([1.0, -0.0, np.nan, np.inf]))
    made.add(made.ROUND, "num.round_bf16", ("NUM-001",), rounded)
    greedy = {"in.proposals": i32([5, 6]), "in.target": i32([5, 7, 8])}
    greedy |= {"out.licensed": i32([5, 7, 0]), "out.accepted": i32(1)}
    made.add(made.GREEDY, "law.greedy", ("LAW-001",), greedy)
    collapsing = {"in.target_layers": i32(2), "in.taps": i32(5), "out.refused": i32(1)}
    made.add(made.REFUSED, "config.taps_half_even", ("CFG-001",), collapsing)
    key = {"in.seed": Tensor.of("U64", np.array([0], np.uint64)), "in.position": i32([0]), "in.purpose": i32([0])}
    key |= {"in.sub": Tensor.of("U32", np.array([0], np.uint32))}
    key |= {"out.key": Tensor.of("U64", np.array([2**64 - 2], np.uint64)), "out.u": f32([0.5])}
    made.add(made.KEY, "rng.uniform", ("RNG-001",), key)
    return made


@pytest.fixture
def port(vectors: VectorSet, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a Python implementation and returns how the command line names it.

    `answers(op, inputs)` answers; where it returns None, or is not given, the right answer is given, with its stages.
    `declares` is laid over what describe() says.
    """
    right = {
        (entry["profile"], entry["op"]): {
            name.removeprefix("out."): tensor.values.copy() for name, tensor in vectors.expected(id_).items()
        }
        for id_, entry in vectors.cases.items()
    }
    numbers = iter(range(100))

    def make(answers: Callable[[str, dict[str, Any]], Any] | None = None, **declares: Any) -> str:
        def create(profile: str) -> SimpleNamespace:
            def run(op: str, inputs: dict[str, Any]) -> Any:
                given = answers(op, inputs) if answers is not None else None
                return right[profile, op] if given is None else given

            described = {"name": "made port", "version": "7", "profile": profile, **declares}
            return SimpleNamespace(describe=lambda: described, run=run)

        name = f"made_port_{next(numbers)}"
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(create=create))
        return f"python:{name}:create"

    return make


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The records of known differences, none unless a test writes some; and nothing that names faults."""
    monkeypatch.setattr(checking, "fault_namer", lambda: None)
    path = tmp_path / "differences.yaml"
    monkeypatch.setattr(checking, "read_differences", lambda: differences.read_differences(path))
    return path


@pytest.fixture
def check(vectors: VectorSet, records: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command on the hand-made vectors; returns exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["--vectors", str(vectors.folder), *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run
