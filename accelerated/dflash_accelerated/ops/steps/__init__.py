"""Steps that are prepared before it is known what the one before them rejected."""

from dflash_accelerated.ops.steps.torch import (
    Block,
    block,
    bonus,
    corrected,
    lengths,
    outputs,
    remap,
    rows,
    valid,
)

__all__ = ["Block", "block", "bonus", "corrected", "lengths", "outputs", "remap", "rows", "valid"]
