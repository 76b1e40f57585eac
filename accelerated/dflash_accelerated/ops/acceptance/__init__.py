"""How many proposals the target accepts, and the token that ends the round."""

from dflash_accelerated.ops.acceptance.chains import Chains
from dflash_accelerated.ops.acceptance.laws import SparseLaw, joined, one_hot
from dflash_accelerated.ops.acceptance.matching import matched
from dflash_accelerated.ops.acceptance.torch import Verdict, accepted_count, licensed, terminal, verdict

__all__ = [
    "Chains",
    "SparseLaw",
    "Verdict",
    "accepted_count",
    "joined",
    "licensed",
    "matched",
    "one_hot",
    "terminal",
    "verdict",
]
