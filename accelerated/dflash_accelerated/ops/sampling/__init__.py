"""The processed target distribution and draws from it."""

from dflash_accelerated.ops.sampling.torch import Distribution, distribution, draw, drawn_rank

__all__ = ["Distribution", "distribution", "draw", "drawn_rank"]
