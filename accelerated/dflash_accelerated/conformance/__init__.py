"""The engine as an implementation that vectors can check: `dflash_accelerated.conformance:create`.

Each op is answered by the very functions that `Engine` runs; nothing is computed here that the engine does not compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from dflash_spec.config import operations
from dflash_spec.errors import UnsupportedError
from dflash_spec.registry import load_ops, load_profile
from dflash_spec.tensors import FLOATS, Array

from dflash_accelerated.conformance import blocks, dflash2, layers, models, primitives, verification
from dflash_accelerated.conformance.call import Answer, Call, to_arrays
from dflash_accelerated.numerics import Numerics

HANDLERS = (
    primitives.HANDLERS | blocks.HANDLERS | layers.HANDLERS | verification.HANDLERS | models.HANDLERS | dflash2.HANDLERS
)

READ = ("read_draft", "convert_draft", "read_dflash2", "convert_dflash2", "read_target", "check_folder", "width")
CONFIG_OPS = {
    "ninfer": tuple(f"config.{name}" for name in (*READ, "head_index")),
    "zlab": tuple(f"config.{name}" for name in (*READ, "taps_half_even")),
}
"""The config ops whose code `Engine.from_pretrained` runs, or the adapters' own reading of a config, by profile."""


class Implementation:
    """The engine in one profile, in the profile's own dtype, on the CPU."""

    def __init__(self, profile: str) -> None:
        self._profile = load_profile(profile)
        self._numerics = Numerics.of(self._profile)

    def describe(self) -> dict[str, Any]:
        """Name, version, profile, and the ops and dtypes that it declares."""
        name = self._profile.name
        return {
            "name": "accelerated",
            "version": version("dflash-oracle"),
            "profile": name,
            "ops": sorted([*HANDLERS, *CONFIG_OPS[name]]),
            "dtypes": list(FLOATS),
        }

    def run(self, op: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, and stages under `stage.<name>`, floats as float32.

        Raises UnsupportedError for an op that is not declared, and what the op itself raises.
        """
        if op in CONFIG_OPS[self._profile.name]:
            answer: Answer = operations.OPERATIONS[op](**inputs, profile=self._profile)._asdict()
        elif op in HANDLERS:
            answer = HANDLERS[op](Call(inputs, self._numerics))
        else:
            raise UnsupportedError(f"op {op!r}, expected one of those that describe() lists")
        stages = [spec.name for spec in load_ops()[op].stages]
        return to_arrays(answer, stages)


def create(profile: str) -> Implementation:
    """The factory that a checker calls. Raises SpecDataError for an unknown profile.

    Sets PyTorch to one thread for the whole process: vectors are so small that a pool of threads mostly waits for
    itself (on two busy cores all vectors took 50 s with it and 6 s without).
    """
    torch.set_num_threads(1)
    return Implementation(profile)
