"""Writing a trace: each file appears whole, as soon as what it holds is known, so that a run that dies leaves a trace.

A folder with a file for each round, not one file: a safetensors header comes first and names every tensor, so one file
could be written only at the end, from memory. This way neither writer nor reader ever holds more than a round, a
crash costs the round that it interrupts, and a round can be looked at with any viewer of such files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from dflash_spec.errors import TraceError
from dflash_spec.files import write_tensors
from dflash_spec.tensors import Tensor

from dflash_vectors.trace.format import (
    END,
    FORMAT,
    PREFILL,
    START,
    VERSION,
    Configuration,
    End,
    Prefill,
    Round,
    round_file,
)  # fmt: skip


def _integers(values: object) -> Tensor:
    return Tensor.of("I64", np.asarray(values, dtype=np.int64))


def _bytes(content: bytes) -> Tensor:
    return Tensor("U8", np.frombuffer(content, dtype=np.uint8))


class Writer:
    """Writes one trace. The folder must be new or empty: a trace is never mixed with another."""

    def __init__(self, folder: Path, configuration: Configuration) -> None:
        """Write the configuration. Raises TraceError where the folder holds something, OSError where it cannot be."""
        self.folder = Path(folder)
        self.rounds = 0
        self._run = configuration.run
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise TraceError(f"{self.folder}: found something there, expected a new or an empty folder")
        tensors = {
            "target_config": _bytes(configuration.target_config),
            "draft_config": _bytes(configuration.draft_config),
            "prompt": _integers(configuration.prompt),
            "stop_ids": _integers(configuration.stop_ids),
        }
        if configuration.allowed is not None:
            tensors["allowed"] = _bytes(configuration.allowed)
        self._write(START, tensors, {"version": VERSION, **_asked(configuration)})

    def prefill(self, prefill: Prefill) -> None:
        """The prompt's pass."""
        self._write(PREFILL, {"decision.first": _integers(prefill.first), **_shared(prefill)}, {})

    def round(self, round_: Round) -> None:
        """The next round. Raises TraceError where it has another number."""
        if round_.number != self.rounds:
            raise TraceError(f"{self.folder}: round {round_.number}, expected {self.rounds}, the next one")
        tensors = {
            "in.frontier": _integers(round_.frontier),
            "in.anchor": _integers(round_.anchor),
            "in.extent": _integers(round_.extent),
            "decision.proposals": _integers(round_.proposals),
            "decision.accepted": _integers(round_.accepted),
            "decision.licensed": _integers(round_.licensed),
            "decision.kept": _integers(round_.kept),
            **_shared(round_),
        }
        self._write(round_file(self.rounds), tensors, {"round": self.rounds})
        self.rounds += 1

    def end(self, end: End) -> None:
        """That the run ended, and how."""
        tensors = {} if end.tokens is None else {"decision.tokens": _integers(end.tokens)}
        self._write(END, tensors, {"reason": end.reason, "rounds": end.rounds})

    def _write(self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        write_tensors(self.folder / name, tensors, {"format": FORMAT, "run": self._run, **metadata})


def _asked(configuration: Configuration) -> dict[str, Any]:
    """The metadata of the first file."""
    return {
        "name": configuration.name,
        "implementation_version": configuration.version,
        "profile": configuration.profile,
        "drafts": configuration.drafts,
        "max_new": configuration.max_new,
        "public": configuration.public,
        "capacity": configuration.capacity,
        "temperature": configuration.temperature,
        "seed": configuration.seed,
        "chunks": list(configuration.chunks),
        "draws": configuration.draws,
        "sampling": dict(configuration.sampling),
        "dtypes": dict(configuration.dtypes),
    }


def _shared(part: Prefill | Round) -> dict[str, Tensor]:
    """What prefill and rounds have alike."""
    return {
        **{f"frontier.{name}": _integers(value) for name, value in part.frontiers.items()},
        **{f"stage.{name}": tensor for name, tensor in part.stages.items()},
        **{f"hash.{name}": _bytes(digest) for name, digest in part.hashes.items()},
        **{f"extra.{name}": tensor for name, tensor in part.extras.items()},
    }
