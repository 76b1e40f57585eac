"""The authors' package, dflash 0.1.0, as a peer: every answer is computed by its own functions, modules and loop.

Not declared, because the package has no code of its own that answers them: keyed randomness, rounding, a draw by itself
with a given uniform (it draws with `torch.multinomial`), trainer configs, and the target's forward, which is
transformers'.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from dflash_spec.errors import UnsupportedError
from dflash_spec.tensors import Array

from dflash_vectors.peers import authors_config, authors_dflash2, authors_loop, authors_modules, authors_sampling

OPS = {
    **authors_modules.OPS, **authors_dflash2.OPS, **authors_loop.OPS, **authors_sampling.OPS, **authors_config.OPS,
}  # fmt: skip


class Authors:
    """Answers the ops of OPS in FP32."""

    def describe(self) -> dict[str, Any]:
        return {
            "name": "dflash",
            "version": version("dflash"),
            "profile": "zlab",
            "ops": sorted(OPS),
            "dtypes": ["F32"],
        }

    def run(self, op: str, inputs: dict[str, Array]) -> dict[str, Any]:
        """Outputs by name and stages as `stage.<name>`.

        Raises UnsupportedError for an op or a case that the package cannot answer, ConfigError where it fails on a
        config, and whatever else the package raises.
        """
        if op not in OPS:
            raise UnsupportedError(f"op {op}: dflash has no code of its own that answers it")
        with torch.inference_mode():
            return OPS[op](**inputs)


def create(profile: str) -> Authors:
    """The package in profile zlab. Raises UnsupportedError for another one."""
    if profile != "zlab":
        raise UnsupportedError(f"the dflash package follows profile zlab, not {profile}")
    return Authors()
