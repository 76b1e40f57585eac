"""Margins: how far each discrete decision of a vector is from going the other way.

A decision is a margin and what a correct port may be off by there. Where the inputs of the decision are stored in
the vector themselves, a port reads the same numbers, and only sums that it forms can be off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dflash_reference import num
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.bounds import candidates, sampling
from dflash_vectors.bounds.algebra import U, Value, gamma
from dflash_vectors.errors import BuildError
from dflash_vectors.suite import Case


@dataclass(frozen=True)
class Decision:
    """`margin` is infinite where there is no alternative; `doubt` is what a correct port may be off by."""

    name: str
    margin: float
    doubt: float


def from_largest(row: Array) -> Array:
    """A row in descending order. Stable: which of -0 and +0 comes first in another sort differs between CPUs."""
    return np.sort(np.asarray(row, dtype=np.float64), kind="stable")[::-1]


def lead(row: Array) -> float:
    """How far the largest entry of a row is ahead of the second; infinite without a finite second."""
    ordered = from_largest(row)
    if len(ordered) < 2 or not np.isfinite(ordered[1]):
        return np.inf
    return float(ordered[0] - ordered[1])


def edge(goal: float, weights: Array) -> float:
    """Distance of `goal` to the nearest cumulative sum of `weights` that ends a rank."""
    sums, total = [], 0.0
    for weight in weights:
        total += float(weight)
        if weight > 0:
            sums.append(total)
    return min((abs(goal - end) for end in sums), default=np.inf)


def _argmax(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    name = "tokens" if "tokens" in result else "proposals"
    for row in inputs["logits"][:, : inputs["public"]]:
        yield Decision(name, lead(row), 0.0)


def _support(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    cap = profile.axes["sampling_cap"]
    if cap:
        for row in inputs["logits"][:, : inputs["public"]]:
            ordered = from_largest(row)[: cap + 1]
            gaps = ordered[:-1] - ordered[1:]
            yield Decision("support", float(gaps.min()) if len(gaps) else np.inf, 0.0)


def _draw(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    for weights, u in zip(inputs["p"], inputs["u"], strict=True):
        yield Decision("tokens", edge(float(u), weights), gamma(len(weights)))


def _one_hot(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    accepted, proposals = int(result["accepted"]), inputs["proposals"]
    for slot in range(min(accepted + 1, len(proposals))):
        held = inputs["p"][slot][inputs["support"][slot] == proposals[slot]]
        yield Decision("accepted", abs(float(inputs["u_accept"][slot]) - float(held.sum())), 0.0)
    weights = inputs["p"][accepted]
    if accepted < len(proposals):
        weights = np.where(inputs["support"][accepted] == proposals[accepted], 0.0, weights)
        mass = float(num.sum_last(weights))
        yield Decision("licensed", edge(inputs["u_terminal"] * mass, weights), gamma(len(weights) + 2) * mass)
    else:
        yield Decision("licensed", edge(inputs["u_terminal"], weights), gamma(len(weights)))


def gaps(scores: Array, count: int) -> Array:
    """How far each of the `count` largest is ahead of the next, the last of them ahead of all that are left out."""
    ordered = from_largest(scores)[: count + 1]
    return ordered[:-1] - ordered[1:]


def _indexed(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    for row in inputs["logits"]:
        yield Decision("proposals", lead(row), 0.0)


def _top(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    scores = candidates.scores(inputs)
    for row, error in zip(scores.v, scores.e, strict=True):
        between = gaps(num.round_to(row, "F32"), inputs["top"])
        yield Decision("candidates", float(between.min(initial=np.inf)), 2 * float(error.max()))


def _walk(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    temperature, scores = inputs["temperature"], candidates.edges(inputs, result["proposals"])
    law = candidates.law(scores, temperature) if temperature > 0 else None
    for step, row in enumerate(result["scores"]):
        if law is None:
            yield Decision("proposals", lead(row), 2 * float(scores.e[step].max()))
        else:
            doubt = float(num.sum_last(law.e[step])) + gamma(len(row))
            yield Decision("proposals", edge(float(inputs["u"][step]), result["q"][step]), doubt)


def _held(token: int, ids: Array, weights: Array) -> float:
    return float(weights[ids == token].sum())


def _sparse(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    accepted, proposals = int(result["accepted"]), inputs["proposals"]
    for slot in range(min(accepted + 1, len(proposals))):
        p = _held(proposals[slot], inputs["support"][slot], inputs["p"][slot])
        q = _held(proposals[slot], inputs["candidates"][slot], inputs["q"][slot])
        yield Decision("accepted", abs(p - float(num.round_to(inputs["u_accept"][slot] * q, "F32"))), 0.0)
    weights, support = inputs["p"][accepted], inputs["support"][accepted]
    if accepted < len(proposals):
        drawn = [_held(token, inputs["candidates"][accepted], inputs["q"][accepted]) for token in support]
        weights = np.where(support >= 0, np.maximum(weights - np.array(drawn), 0.0), 0.0)
    mass = float(num.sum_last(weights)) if accepted < len(proposals) else 1.0
    yield Decision("licensed", edge(inputs["u_terminal"] * mass, weights), gamma(len(weights) + 3) * mass)


def _choose(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    threshold = profile.axes["greedy_below"]
    if threshold:
        yield Decision("greedy", abs(inputs["temperature"] - threshold), 2 * U * threshold)
    for row in inputs["adjusted"] if result["greedy"] else ():
        yield Decision("tokens", lead(row), 0.0)


def _left(name: str, rows: Array, asked: Mapping[str, Any], kept: Array, profile: Profile) -> Iterator[Decision]:
    """Which ids the filters leave of each row: the order that is returned, and each end of what is left."""
    capped = bool(profile.axes["sampling_cap"])
    limit = asked["top_k"] if 0 < asked["top_k"] <= (profile.axes["sampling_cap"] or rows.shape[1]) else None
    width = limit or profile.axes["sampling_cap"] or rows.shape[1]
    weights = sampling.weighed(rows, asked["temperature"])
    for row, v, e, count in zip(rows, weights.v, weights.e, kept, strict=True):
        order = np.argsort(-row, kind="stable")
        if capped:
            yield Decision("support", float(gaps(row[np.isfinite(row)], width).min(initial=np.inf)), 0.0)
        for end in sorted({int(count), width}) if not capped else ():
            yield from _cut(name, row[order], end)
        ranked = Value(v[order][:width], e[order][:width])
        yield from _min_p(name, ranked, asked.get("min_p", 0.0))
        yield from _top_p(name, ranked, asked["top_p"], int(count))


def _cut(name: str, ordered: Array, end: int) -> Iterator[Decision]:
    """The last of what is left against the first that is not; a port may compare them divided by the temperature."""
    if end < len(ordered) and np.isfinite(ordered[end]):
        inside, outside = float(ordered[end - 1]), float(ordered[end])
        yield Decision(name, inside - outside, 4 * U * (abs(inside) + abs(outside)))


def _min_p(name: str, ranked: Value, min_p: float) -> Iterator[Decision]:
    off = ranked.e + min_p * ranked.e[0] + 2 * U * min_p
    for side in (ranked.v >= min_p, ranked.v < min_p) if min_p > 0 else ():
        if side[1:].any():
            near = int(np.argmin(np.where(side, np.abs(ranked.v - min_p) - off, np.inf)))
            yield Decision(name, abs(float(ranked.v[near]) - min_p), float(off[near]))


def _top_p(name: str, ranked: Value, top_p: float, count: int) -> Iterator[Decision]:
    """The share at which the scan ended, and the one before it; the last candidate's is 1, without an alternative."""
    share = sampling.cumulative(ranked)
    for place in (count - 2, count - 1) if top_p < 1 else ():
        if 0 <= place < len(share.v) - 1 and ranked.v[place + 1 :].any():
            yield Decision(name, abs(float(share.v[place]) - top_p), float(share.e[place]))


def _filter(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    yield from _left("kept", inputs["adjusted"], inputs, result["kept"], profile)


def _propose(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    q = result["q"]
    yield from _left("q", inputs["logits"], inputs, (q > 0).sum(axis=1), profile)
    for row, error, u in zip(q, sampling.proposed(inputs, q).e, inputs["u"], strict=True):
        yield Decision("proposals", edge(float(u), row), float(num.sum_last(error)) + gamma(len(row)))


def _match(inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> Iterator[Decision]:
    for row, u in zip(inputs["p"][: int(result["accepted"]) + 1], inputs["u"], strict=False):
        yield Decision("licensed", edge(float(u), row), gamma(len(row)))


Finder = Callable[[Mapping[str, Any], Mapping[str, Array], Profile], Iterator[Decision]]
FINDERS: dict[str, Finder] = {
    "head.argmax": _argmax,
    "proc.greedy": _argmax,
    "proc.distribution": _support,
    "proc.draw": _draw,
    "law.one_hot": _one_hot,
    "head.indexed_argmax": _indexed,
    "shard.head": _indexed,
    "head.top": _top,
    "selector.walk": _walk,
    "law.sparse": _sparse,
    "proc.choose": _choose,
    "proc.filter": _filter,
    "proc.propose": _propose,
    "law.match": _match,
}


def check_margins(case: Case, decisions: list[Decision]) -> dict[str, list[float | None]]:
    """Margins by output, None where there is no alternative, as the vector records them.

    Raises BuildError that names the case and the decision, if a margin is not above its doubt and the case is not
    tagged `tie`.
    """
    margins: dict[str, list[float | None]] = {}
    for decision in decisions:
        row = margins.setdefault(decision.name, [])
        if decision.margin <= decision.doubt and "tie" not in case.tags:
            raise BuildError(
                f"case {case.id}: {decision.name}, decision {len(row)}: margin {decision.margin:.3g}, expected more "
                f"than {decision.doubt:.3g}, what a correct port may be off by (tag a case of the tie rule `tie`)"
            )
        row.append(decision.margin if np.isfinite(decision.margin) else None)
    return margins
