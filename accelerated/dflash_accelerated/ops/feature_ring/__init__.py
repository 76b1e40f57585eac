"""Rings of target features that the verify pass itself writes, as Luce has them."""

from dflash_accelerated.ops.feature_ring.torch import append, live, positions, sync, window

__all__ = ["append", "live", "positions", "sync", "window"]
