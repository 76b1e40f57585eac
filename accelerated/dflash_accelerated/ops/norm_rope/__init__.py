"""The norm and the rotation of a layer's query and key heads, in one step."""

from dflash_accelerated.ops.norm_rope.torch import norm_rope

__all__ = ["norm_rope"]
