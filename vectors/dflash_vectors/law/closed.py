"""What a round must do, in one formula: the law of its accepted count and tokens, from the laws of both models.

Both laws may depend on the proposals that were accepted before, as those of whole requests do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

Tokens = tuple[int, ...]
Law = Mapping[int, Fraction]
"""Token -> probability. The probabilities add up to exactly 1."""
Wanted = Callable[[Tokens], Law]
"""The target's law after the accepted proposals given."""
Offered = Callable[[Tokens], Law]
"""The law of the next proposal after those given, which were accepted."""
RoundLaw = dict[tuple[int, Tokens], Fraction]
"""(accepted count, licensed tokens) -> probability; outcomes of probability 0 are left out."""


def accepted_mass(rule: str, wanted: Fraction, offered: Fraction) -> Fraction:
    """The probability that a token is proposed and accepted, given what target and draft make of it.

    `corrected` is acceptance by min(1, p / q): the mass that both laws share. A certain proposal is the special case
    q = 1, and greedy verification that of two certain laws. `match` accepts where two independent draws agree; so do
    certain proposals that are chosen by a draw of which the verifier knows nothing.
    """
    return min(wanted, offered) if rule == "corrected" else wanted * offered


def round_law(rule: str, extent: int, wanted: Wanted, offered: Offered) -> RoundLaw:
    """The joint law of the accepted count and the licensed tokens of a round with `extent` proposals.

    The next token is v with the target's probability p(v), whatever was proposed: with the accepted mass as a
    proposal, and with the rest of p(v) as the token that ends the round.

    Clause: LAW-014
    Source: arXiv 2211.17192, section 2.3 and appendix A.1; arXiv 2302.01318, theorem 1; arXiv 2305.09781 for `match`.
    """
    found: RoundLaw = {}

    def follow(prefix: Tokens, mass: Fraction) -> None:
        proposal = offered(prefix) if len(prefix) < extent else {}
        for token, p in wanted(prefix).items():
            shared = accepted_mass(rule, p, proposal.get(token, Fraction(0)))
            if p > shared:
                found[len(prefix), (*prefix, token)] = mass * (p - shared)
            if shared:
                follow((*prefix, token), mass * shared)

    follow((), Fraction(1))
    return found


def extent_of(rule: str, drafts: int, remaining: int) -> int:
    """How many of `drafts` proposals a round verifies with `remaining` tokens of the budget left, room aside."""
    return {"remaining_minus_one": min(drafts, remaining - 1), "remaining": min(drafts, remaining), "block": drafts}[
        rule
    ]


def kept_of(licensed: Tokens, stops: frozenset[int], remaining: int) -> Tokens:
    """The licensed tokens that a request keeps: up to the first stop id, itself included, and at most `remaining`."""
    kept = licensed[:remaining]
    stop = next((at for at, token in enumerate(kept) if token in stops), len(kept))
    return kept[: stop + 1]
