"""State slots that are copied whole or in part, and chains of snapshots."""

from dflash_accelerated.ops.state_slots.torch import Chain, chain, copy

__all__ = ["Chain", "chain", "copy"]
