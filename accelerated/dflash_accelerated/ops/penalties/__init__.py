"""The logits that sampling sees: public ids, masks, and what was said before."""

from dflash_accelerated.ops.penalties.torch import Adjusted, Mask, Penalties, adjust, overlay, unusable

__all__ = ["Adjusted", "Mask", "Penalties", "adjust", "overlay", "unusable"]
