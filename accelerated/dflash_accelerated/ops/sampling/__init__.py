"""Inverse-CDF draws."""

from dflash_accelerated.ops.sampling.torch import Proposed, draw, drawn_rank, propose

__all__ = ["Proposed", "draw", "drawn_rank", "propose"]
