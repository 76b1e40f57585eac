"""What given proposals and uniforms decide, and the law of given proposals, in rational arithmetic.

An outcome is (accepted, tokens): how many proposals were accepted, and the licensed tokens, accepted + 1 of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.law.families import Round, Row

Outcome = tuple[int, tuple[int, ...]]
Weights = Mapping[int, Fraction]
NONE = Fraction(0)


def left(p: Weights, q: Weights) -> dict[int, Fraction]:
    """What p has more than q of each id, in the order of p."""
    return {id_: max(weight - q.get(id_, NONE), NONE) for id_, weight in p.items()}


def verdict_law(proposals: Sequence[int], p: Sequence[Weights], q: Sequence[Weights]) -> dict[Outcome, Fraction]:
    """The law of a round whose proposals are given, each with a probability above 0 in its row of `q`.

    Its mean over the proposals, each weighed by its probability, is the law of a round in closed form.
    """
    law: dict[Outcome, Fraction] = defaultdict(Fraction)
    mass = Fraction(1)
    for slot, id_ in enumerate(proposals):
        passes = min(Fraction(1), p[slot].get(id_, NONE) / q[slot][id_])
        if passes < 1:  # so q has more than p somewhere, and p more than q elsewhere
            rest = left(p[slot], q[slot])
            total = sum(rest.values())
            for corrected_, weight in rest.items():
                law[slot, (*proposals[:slot], corrected_)] += mass * (1 - passes) * weight / total
        mass *= passes
    for id_, share in p[-1].items():
        law[len(proposals), (*proposals, id_)] += mass * share
    return {outcome: chance for outcome, chance in law.items() if chance}


def continued(law: Mapping[Outcome, Fraction], p: Sequence[Weights]) -> dict[tuple[int, ...], Fraction]:
    """The law of the first P + 1 tokens: a round that ends earlier goes on with plain draws of the rows after it."""
    found: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    for (_, tokens), mass in law.items():
        chains = {tokens: mass}
        for row in p[len(tokens) :]:
            chains = {(*chain, id_): m * share for chain, m in chains.items() for id_, share in row.items() if share}
        for chain, m in chains.items():
            found[chain] += m
    return dict(found)


def drawn(weights: Iterable[tuple[int, Fraction]], goal: Fraction) -> int:
    """The id of the first rank whose inclusive cumulative weight is above `goal`, else the last with a weight."""
    ranked = [(id_, weight) for id_, weight in weights if weight]
    for (id_, _), total in zip(ranked, accumulate(weight for _, weight in ranked), strict=True):
        if goal < total:
            return id_
    return ranked[-1][0]


def shares(weights: Iterable[Fraction]) -> list[Fraction]:
    """Where a draw from these weights changes: each cumulative weight over their sum."""
    totals = list(accumulate(weights))
    return [total / totals[-1] for total in totals] if totals and totals[-1] else []


def raw_q(asked: Round, slot: int, proposal: int) -> Weights:
    """The weights that a proposal was drawn with; a certain one has them all."""
    return asked.q[slot].raw if asked.q else {proposal: Fraction(1)}


def decided(asked: Round, proposals: Sequence[int], uniforms: Sequence[float], profile: Profile) -> Outcome:
    """What the profile's rules say of given proposals and uniforms, the accept ones and then the terminal one."""
    *coins, last = map(Fraction, uniforms)
    for slot, (id_, coin) in enumerate(zip(proposals, coins, strict=True)):
        q = raw_q(asked, slot, id_)
        wanted, offered = asked.p[slot].raw.get(id_, NONE), q.get(id_, NONE)
        covers = profile.axes["accept_test"] == "covered_or_strict" and bool(asked.q) and wanted >= offered
        if not (covers or _product(coin, offered) < wanted):
            return slot, (*proposals[:slot], corrected(asked.p[slot], q, last, profile))
    return len(proposals), (*proposals, drawn(asked.p[-1].raw.items(), last))


def _product(coin: Fraction, offered: Fraction) -> Fraction:
    """Their product in FP32, which both are numbers of."""
    return Fraction(float(np.float32(float(coin)) * np.float32(float(offered))))


def corrected(row: Row, q: Weights, uniform: Fraction, profile: Profile) -> int:
    """The correction of a rejected proposal: from what is left of the row, or where that is nothing, by the profile."""
    rest = left(row.raw, q)
    total = sum(rest.values())
    if total:
        return drawn(rest.items(), uniform * total)
    if profile.axes["zero_residual"] == "top_token":
        return row.ids[0]
    return drawn(row.raw.items(), uniform * sum(row.raw.values()))


def matched(asked: Round, proposals: Sequence[int], uniforms: Sequence[float]) -> Outcome:
    """What sample-and-match decides: each row's own draw, up to the first that is not the proposal."""
    drew = [drawn(row.raw.items(), Fraction(u)) for row, u in zip(asked.p, uniforms, strict=True)]
    for slot, (id_, token) in enumerate(zip(proposals, drew, strict=False)):
        if id_ != token:
            return slot, tuple(drew[: slot + 1])
    return len(proposals), tuple(drew)


def possible(asked: Round, proposals: Sequence[int], profile: Profile) -> set[Outcome]:
    """Every outcome that some choice of uniforms has, by the profile's rules on the weights as they are.

    They need not sum to 1: a proposal that holds all the weight there is can still be rejected, by the largest coins.
    """
    found: set[Outcome] = set()
    for slot, id_ in enumerate(proposals):
        row, q = asked.p[slot], raw_q(asked, slot, id_)
        if row.raw.get(id_, NONE) < q[id_]:
            rest = {token for token, weight in left(row.raw, q).items() if weight}
            if not rest and profile.axes["zero_residual"] == "top_token":
                rest = {row.ids[0]}
            rest = rest or {token for token, weight in row.raw.items() if weight}
            found |= {(slot, (*proposals[:slot], token)) for token in rest}
        if not row.raw.get(id_, NONE):
            return found
    return found | {(len(proposals), (*proposals, token)) for token, weight in asked.p[-1].raw.items() if weight}
