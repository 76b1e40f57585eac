"""Paged caches: slots of positions, what is not written, and the pages that a block needs ahead."""

from dflash_accelerated.ops.pages.torch import clamped_slots, lookahead, pool_bytes, scatter, slots, writes

__all__ = ["clamped_slots", "lookahead", "pool_bytes", "scatter", "slots", "writes"]
