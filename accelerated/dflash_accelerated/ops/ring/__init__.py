"""Rings: where a row goes, and which rows are live."""

from dflash_accelerated.ops.ring.torch import capacity, check_follows, checked_slots, live, positions_held, slots

__all__ = ["capacity", "check_follows", "checked_slots", "live", "positions_held", "slots"]
