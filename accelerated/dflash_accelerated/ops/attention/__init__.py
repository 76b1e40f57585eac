"""Attention over rows held in several parts, and who sees whom."""

from dflash_accelerated.ops.attention.torch import Rows, attend, visibility

__all__ = ["Rows", "attend", "visibility"]
