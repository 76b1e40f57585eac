"""The engine as an implementation that vectors can check: `dflash_accelerated.conformance:create`.

`native` and `triton` are factories too: the same engine, whose ops run the kernels of that name where they have one.
Each op is answered by the very functions that `Engine` runs; nothing is computed here that the engine does not compute,
but for storage that it has no use for itself (pages, feature rings, split heads): such an op has a folder in `ops`.
Profiles that are stated on some ops only are answered on these.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from dflash_spec.config import operations
from dflash_spec.errors import DFlashError, UnsupportedError
from dflash_spec.registry import load_ops, load_profile
from dflash_spec.tensors import FLOATS, Array

from dflash_accelerated.conformance import (
    blocks,
    dflash2,
    layers,
    models,
    primitives,
    rings,
    sampling,
    states,
    steps,
    verification,
)
from dflash_accelerated.conformance.call import Answer, Call, to_arrays
from dflash_accelerated.kernels import resolve_kernels
from dflash_accelerated.numerics import Kernels, Numerics

NAMES: dict[Kernels, str] = {
    "torch": "accelerated",
    "native": "accelerated-native",
    "triton": "accelerated-triton",
}
"""What the engine calls itself, by the kernels that it runs."""

DECIDING = rings.HANDLERS | steps.HANDLERS | states.HANDLERS
"""Those that also say where they refuse nothing."""
HANDLERS = (
    primitives.HANDLERS | blocks.HANDLERS | layers.HANDLERS | sampling.HANDLERS | verification.HANDLERS
    | models.HANDLERS | dflash2.HANDLERS | DECIDING
)  # fmt: skip

CPU = torch.device("cpu")

READ = ("read_draft", "convert_draft", "read_dflash2", "convert_dflash2", "read_target", "check_folder", "width")
CONFIG_OPS = {
    "ninfer": tuple(f"config.{name}" for name in (*READ, "head_index")),
    "zlab": tuple(f"config.{name}" for name in (*READ, "taps_half_even")),
}
"""The config ops whose code `Engine.from_pretrained` runs, or the adapters' own reading of a config, by profile."""


class Implementation:
    """The engine in one profile, in the profile's own dtype, on the CPU, with the kernels given."""

    def __init__(self, profile: str, kernels: Kernels = "torch") -> None:
        self._profile = load_profile(profile)
        self._numerics = Numerics.of(self._profile, kernels=resolve_kernels(kernels, CPU))
        self._config_ops = CONFIG_OPS.get(profile, ())
        own = set(self._profile.ops)
        self._ops = {op for op in (*HANDLERS, *self._config_ops) if not own or op in own}

    def describe(self) -> dict[str, Any]:
        """Name, version, profile, and the ops and dtypes that it declares."""
        return {
            "name": NAMES[self._numerics.kernels],
            "version": version("dflash-oracle"),
            "profile": self._profile.name,
            "ops": sorted(self._ops),
            "dtypes": list(FLOATS),
        }

    def run(self, op: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, and stages under `stage.<name>`, floats as float32.

        An op of the engine with an output `refused` answers that alone where the engine raises a named error. Raises
        UnsupportedError for an op that is not declared, and what the op itself raises.
        """
        if op not in self._ops:
            raise UnsupportedError(f"op {op!r}, expected one of those that describe() lists")
        declared = load_ops()[op]
        may_refuse = op in HANDLERS and any(spec.name == "refused" for spec in declared.outputs)
        try:
            answer = self._answer(op, inputs)
            if may_refuse and op in DECIDING:
                answer["refused"] = 0
        except UnsupportedError:
            raise
        except DFlashError:
            if not may_refuse:
                raise
            answer = {"refused": 1}
        return to_arrays(answer, [spec.name for spec in declared.stages])

    def _answer(self, op: str, inputs: Mapping[str, Array]) -> Answer:
        if op in self._config_ops:
            answer: Answer = operations.OPERATIONS[op](**inputs, profile=self._profile)._asdict()
            return answer
        return HANDLERS[op](Call(inputs, self._numerics))


def create(profile: str) -> Implementation:
    """The factory that a checker calls: every op in PyTorch. Raises SpecDataError for an unknown profile.

    Sets PyTorch to one thread for the whole process: vectors are so small that a pool of threads mostly waits for
    itself (on two busy cores all vectors took 50 s with it and 6 s without).
    """
    return _made(profile, "torch")


def native(profile: str) -> Implementation:
    """As `create`, with the kernels in C. Raises RequestError where they cannot be built, for want of a compiler."""
    return _made(profile, "native")


def triton(profile: str) -> Implementation:
    """As `create`, with Triton's kernels in its interpreter. Raises RequestError without TRITON_INTERPRET=1."""
    return _made(profile, "triton")


def _made(profile: str, kernels: Kernels) -> Implementation:
    torch.set_num_threads(1)
    return Implementation(profile, kernels)
