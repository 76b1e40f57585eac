"""Recording a trace from inside an engine: a call before the first round, one a round, and one at the end.

    recorder = Recorder("trace", name="my-engine", version="0.3", profile="zlab", target="pair/target",
                        draft="pair/draft", prompt=ids, drafts=7, max_new=200, stop_ids=[2])
    recorder.prefill(first)
    recorder.round(frontier=f, anchor=a, proposals=p, accepted=n, licensed=l, kept=k, stages={"features": x, "c": c})
    recorder.end("length")

Nothing is imported but the spec. Tensors may be NumPy's, torch's on any device, or anything that NumPy takes.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dflash_spec.errors import TensorError, TraceError
from dflash_spec.tensors import Array, Tensor

from dflash_vectors.trace.format import FRONTIERS, REASONS, VERIFIED, Configuration, End, Prefill, Round
from dflash_vectors.trace.writer import Writer

FLOAT_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F32"}
"""The end of a dtype's name, in any library, and what it is stored as. FP64 values must be FP32 values."""


def as_tensor(values: Any, where: str = "tensor") -> Tensor:
    """`values` in the dtype that they have: floats as BF16, F16 or F32, everything else as I64.

    Raises TraceError for values that NumPy does not take, or that the dtype does not hold.
    """
    if isinstance(values, Tensor):
        return values
    kind = str(getattr(values, "dtype", "")).rpartition(".")[2]
    try:
        if hasattr(values, "detach"):  # torch has types that NumPy lacks; FP32 holds each of them
            values = values.detach().cpu()
            values = values.float() if values.is_floating_point() else values
        array = np.asarray(values)
        if kind in FLOAT_NAMES or array.dtype.kind == "f":
            return Tensor.of(FLOAT_NAMES.get(kind, "F32"), _plain(array), where)
        return Tensor.of("I64", array, where)
    except (TensorError, TypeError, ValueError, RuntimeError) as error:
        raise TraceError(f"{where}: {error}") from error


def _plain(array: Array) -> Array:
    return array if array.dtype.kind == "f" else array.astype(np.float32)


def as_ids(values: Any, where: str) -> Array:
    """Token ids as int64 [N]. Raises TraceError."""
    tensor = as_tensor(values, where)
    if tensor.shape == (0,):  # an empty list has no integers that would tell its type
        return np.zeros(0, np.int64)
    if tensor.dtype != "I64" or len(tensor.shape) != 1:
        raise TraceError(f"{where}: {tensor.dtype} {list(tensor.shape)}, expected a list of token ids")
    return tensor.values


def config_text(source: str | Path | bytes) -> bytes:
    """The text of a `config.json`: itself, or that of a file or folder. Raises TraceError."""
    if isinstance(source, bytes):
        return source
    path = Path(source)
    try:
        return (path / "config.json" if path.is_dir() else path).read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error


class Recorder:
    """Records one request. Whatever is wrong with what it is given, it says at once, with the field's name."""

    def __init__(
        self, folder: str | Path, *, name: str, version: str, profile: str,
        target: str | Path | bytes, draft: str | Path | bytes, prompt: Any, drafts: int, max_new: int,
        stop_ids: Any = (), public: int | None = None, capacity: int | None = None, temperature: float = 0.0,
        seed: int = 0, chunks: Sequence[int] = (), draws: str = "keyed", sampling: Mapping[str, float] | None = None,
        dtypes: Mapping[str, str] | None = None, allowed: bytes | None = None,
    ) -> None:  # fmt: skip
        """Begin a trace in `folder`, which must be new or empty.

        `target` and `draft` are the models' folders, or the texts of their configs; `drafts` is K. The rest is as in
        `Configuration`. Raises TraceError, and ConfigError for a config that cannot be read.
        """
        self.configuration = Configuration(
            name, version, profile, uuid.uuid4().hex, config_text(target), config_text(draft),
            tuple(map(int, as_ids(prompt, "prompt"))), int(drafts), int(max_new),
            tuple(map(int, as_ids(stop_ids, "stop_ids"))), public, capacity, float(temperature), int(seed),
            tuple(map(int, chunks)), draws, dict(sampling or {}), dict(dtypes or {}), allowed,
        )  # fmt: skip
        self._stages = self.configuration.stages
        self._writer = Writer(Path(folder), self.configuration)

    def prefill(
        self, first: int, *, stages: Mapping[str, Any] | None = None, frontiers: Mapping[str, int] | None = None,
        hashes: Mapping[str, bytes] | None = None, extras: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """The token after the prompt. Stages: `target.features` [T, n·H] and `target.logits` [1, V]."""
        more = self._more("prefill", VERIFIED, stages, frontiers, hashes, extras)
        self._writer.prefill(Prefill(int(first), *more))

    def round(
        self, *, frontier: int, anchor: int, proposals: Any, accepted: int, licensed: Any, kept: int,
        extent: int | None = None, stages: Mapping[str, Any] | None = None, frontiers: Mapping[str, int] | None = None,
        hashes: Mapping[str, bytes] | None = None, extras: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """One round, as it ends.

        `anchor` stands at position `frontier`; `proposals` are the ones that were verified, `extent` in number. Of the
        `licensed` tokens, `accepted` + 1, the first `kept` were kept; an engine that knows only these gives these.
        Raises TraceError, and OSError from the disk.
        """
        number = self._writer.rounds
        where = f"round {number}"
        proposed = as_ids(proposals, f"{where}: proposals")
        self._writer.round(
            Round(
                number, int(frontier), int(anchor), len(proposed) if extent is None else int(extent), proposed,
                int(accepted), as_ids(licensed, f"{where}: licensed"), int(kept),
                *self._more(where, self._stages, stages, frontiers, hashes, extras),
            )
        )  # fmt: skip

    def end(self, reason: str, tokens: Any = None) -> None:
        """That the run ended, for one of REASONS, and the answer as it was given out."""
        if reason not in REASONS:
            raise TraceError(f"end: reason {reason!r}, expected one of {', '.join(REASONS)}")
        given = None if tokens is None else tuple(map(int, as_ids(tokens, "end: tokens")))
        self._writer.end(End(reason, self._writer.rounds, given))

    def _more(
        self, where: str, known: tuple[str, ...], stages: Mapping[str, Any] | None,
        frontiers: Mapping[str, int] | None, hashes: Mapping[str, bytes] | None, extras: Mapping[str, Any] | None,
    ) -> tuple[Mapping[str, int], Mapping[str, Tensor], Mapping[str, bytes], Mapping[str, Tensor]]:  # fmt: skip
        for what, names, allowed in (("stage", stages, known), ("frontier", frontiers, FRONTIERS)):
            for name in names or ():
                if name not in allowed:
                    raise TraceError(f"{where}: {what} {name!r}, expected some of {', '.join(allowed)}")
        return (
            {name: int(value) for name, value in (frontiers or {}).items()},
            {name: as_tensor(values, f"{where}: stage {name}") for name, values in (stages or {}).items()},
            {name: bytes(digest) for name, digest in (hashes or {}).items()},
            {name: as_tensor(values, f"{where}: extra {name}") for name, values in (extras or {}).items()},
        )
