"""How many proposals the target accepts, and the token that ends the round."""

from dflash_accelerated.ops.acceptance.torch import Verdict, accepted_count, greedy, licensed, terminal

__all__ = ["Verdict", "accepted_count", "greedy", "licensed", "terminal"]
