"""Rounding to a narrower format in one step."""

from dflash_accelerated.ops.rounding.torch import narrow, round_sum

__all__ = ["narrow", "round_sum"]
