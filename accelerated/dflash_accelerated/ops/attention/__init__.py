"""Attention of a forward's own rows over what is stored of their sequences, and over each other."""

from dflash_accelerated.ops.attention.spans import Seat, Spans, StaticSpans, Store
from dflash_accelerated.ops.attention.torch import Rows, attend, attend_rows, visibility

__all__ = ["Rows", "Seat", "Spans", "StaticSpans", "Store", "attend", "attend_rows", "visibility"]
