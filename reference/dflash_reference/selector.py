"""DFlash2's selector: a walk through the candidates of each proposal row, and the law by which it went."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import elementary, filters, head, num, processing
from dflash_reference.names import TokenId


class Projected(NamedTuple):
    """g: [P, rank], represented in ACT."""

    g: Array


class Walk(NamedTuple):
    """scores: [P, C], represented in F32. proposals: [P] int64 token ids. q: [P, C], represented in F32."""

    scores: Array
    proposals: Array
    q: Array


def project(hidden: Array, projection: Array, profile: Profile) -> Projected:
    """The selector's rows, from the draft's hidden rows [P, H] and its projection [rank, H]."""
    return Projected(represent_row(num.contract(hidden, projection), profile))


def represent_row(g: Array, profile: Profile) -> Array:
    """Round the selector's rows to ACT, any shape.

    Clause: SEL-007
    Source: Infernix src/models/qwen3_5/execution/draft.cpp.
    """
    return num.round_to(g, profile.dtypes["ACT"])


def walk(
    candidates: Array, unary: Array, g: Array, predecessor: Array, successor: Array, anchor: TokenId,
    temperature: float, u: Array, profile: Profile,
) -> Walk:  # fmt: skip
    """One candidate of each step, from the anchor on, each conditioned on the one that was chosen before it.

    candidates and unary [P, C], g [P, rank], codebooks [V, rank] by global token id, u [P]. The greedy walk uses no u.
    Raises TensorError if a token has no codebook row.

    Clause: SEL-002
    Source: NInfer docs/maintainer/dflash.md, selector.
    """
    _check(np.append(candidates.ravel(), anchor), len(predecessor))
    scores, q = np.zeros(unary.shape), np.zeros(unary.shape)
    proposals = np.zeros(len(unary), dtype=np.int64)
    before = int(anchor)
    for step, ids in enumerate(candidates):
        edges = scored(unary[step], predecessor[before], g[step], successor[ids])
        scores[step] = num.round_to(edges, "F32")
        chosen, q[step] = step_of(scores[step], temperature, u[step], profile)
        before = int(ids[chosen])
        proposals[step] = before
    return Walk(scores, proposals, q)


def scored(unary: Array, predecessor: Array, g: Array, successor: Array) -> Array:
    """unary [C] + the sum over ranks of predecessor [rank] · g [rank] · successor [C, rank] -> [C], not rounded.

    Clause: SEL-001
    Source: NInfer docs/maintainer/dflash.md, selector; dflash 0.1.0 CandidateSelector.
    """
    return unary + num.contract(predecessor * g, successor)


def step_of(scores: Array, temperature: float, u: float, profile: Profile) -> tuple[int, Array]:
    """The chosen rank by scores [C], and the law q [C] that chose it."""
    if not temperature > 0:
        return best(scores)
    q = softened(scores, temperature)
    return drawn(q, u, profile), q


def best(scores: Array) -> tuple[int, Array]:
    """The lowest rank with the largest score, and the law that is certain of it.

    Clause: SEL-003
    Source: Infernix include/infernix/ops/candidate_selector.h.
    """
    chosen = int(head.first_largest(scores[np.newaxis])[0])
    certain = np.zeros(len(scores))
    certain[chosen] = 1.0
    return chosen, certain


def softened(scores: Array, temperature: float) -> Array:
    """The softmax of scores [C] / temperature, represented in F32.

    Clause: SEL-004
    Source: NInfer docs/maintainer/dflash.md, selector.
    """
    powers = elementary.exp((scores - scores.max()) / temperature)
    return num.round_to(powers / num.sum_last(powers), "F32")


def drawn(q: Array, u: float, profile: Profile) -> int:
    """The first rank whose cumulative q [C] exceeds u, by the very q that is kept.

    FP32 values can add up to less than u: then the last rank, or in other profiles the last with a q above 0.

    Clause: SEL-005
    Source: Infernix include/infernix/ops/candidate_selector.h.
    """
    if profile.axes["walk_fallback"] == "last_rank" and not u < filters.mass(q):
        return len(q) - 1
    return processing.rank(q.tolist(), u)


def _check(tokens: Array, rows: int) -> None:
    for token in tokens:
        if not 0 <= token < rows:
            raise TensorError(f"selector.walk: token {token}, expected 0 to {rows - 1}, the codebooks' rows")
