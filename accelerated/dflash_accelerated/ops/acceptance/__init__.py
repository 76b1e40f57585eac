"""How many proposals the target accepts, and the token that ends the round."""

from dflash_accelerated.ops.acceptance.torch import (
    SparseLaw,
    Verdict,
    accepted_count,
    greedy,
    licensed,
    sparse_accepted_count,
    sparse_terminal,
    terminal,
)

__all__ = [
    "SparseLaw",
    "Verdict",
    "accepted_count",
    "greedy",
    "licensed",
    "sparse_accepted_count",
    "sparse_terminal",
    "terminal",
]
