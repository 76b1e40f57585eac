"""The target's side of sampling: the rows that can be sampled, their argmax, their distribution, and the draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from dflash_spec.errors import RequestError, TensorError, UnsupportedError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import arguments, elementary, filters, num


class Distribution(NamedTuple):
    """support: [N, S] int64 ids in draw order, -1 past the support. p: [N, S], represented in F32."""

    support: Array
    p: Array


class Greedy(NamedTuple):
    """tokens: [N] int64."""

    tokens: Array


class Choice(NamedTuple):
    """greedy: 1 where the request decodes greedily, else 0. tokens: [N] int64, -1 where it does not."""

    greedy: int
    tokens: Array


class Filtered(NamedTuple):
    """weights: [N, S], represented in F32, and kept: [N] int64, before min-p and top-p, and how many these leave.

    support and p as in Distribution.
    """

    weights: Array
    kept: Array
    support: Array
    p: Array


class Draw(NamedTuple):
    """tokens: [N] int64."""

    tokens: Array


class Proposals(NamedTuple):
    """proposals: [K] int64. q: [K, V], represented in F32."""

    proposals: Array
    q: Array


def public_columns(logits: Array, public: int) -> Array:
    """The logits [N, public] of the ids that take part, of [N, V].

    Raises TensorError unless 1 <= public <= V and each row can be sampled.

    Clause: PROC-001
    Source: Infernix include/infernix/ops/sampling.h.
    """
    if not 1 <= public <= logits.shape[1]:
        raise TensorError(f"public is {public}, expected 1 to {logits.shape[1]}, the columns of the logits")
    return sampleable(logits[:, :public])


def sampleable(rows: Array) -> Array:
    """The rows [N, V] as they are. Raises TensorError unless each has a finite logit and no NaN or +infinity.

    Clause: PROC-022
    Source: Infernix include/infernix/ops/sampling.h; vllm-project/vllm pull 50183; avifenesh/memra issue 87.
    """
    for row, largest in enumerate(rows.max(axis=1)):
        if not np.isfinite(largest):
            raise TensorError(f"logits row {row}: the largest is {largest}, expected a finite number")
    return rows


def greedy(logits: Array, public: int, profile: Profile) -> Greedy:
    """The argmax of each row of logits [N, V], the lowest id on exact ties; nothing is drawn.

    Clause: PROC-002
    Source: Infernix include/infernix/ops/sampling.h.
    """
    rows = public_columns(logits, public)
    return Greedy(np.argmax(rows == rows.max(axis=1, keepdims=True), axis=1))


def choose(adjusted: Array, temperature: float, profile: Profile) -> Choice:
    """Whether the request decodes greedily, and its tokens if so, by adjusted logits [N, V].

    Raises RequestError for a temperature that the profile does not have, and TensorError as `sampleable` does.

    Clause: PROC-010
    Source: Infernix include/infernix/ops/sampling.h.
    """
    sampleable(adjusted)
    if is_greedy(temperature, profile):
        return Choice(1, greedy(adjusted, adjusted.shape[1], profile).tokens)
    return Choice(0, np.full(len(adjusted), -1))


def is_greedy(temperature: float, profile: Profile) -> bool:
    """Whether nothing is drawn at this temperature: at 0 and below it, or below a threshold of the profile's own.

    Both numbers count as F32 holds them, so that a temperature written as the threshold is not below it.

    Raises RequestError for NaN, and for a negative temperature where the profile has none.

    Clause: PROC-021
    Source: z-lab/dflash@44947fb dflash/model.py.
    """
    arguments.known_temperature(temperature, profile)
    threshold = profile.axes["greedy_below"]
    return bool(temperature < float(np.float32(threshold)) if threshold else temperature <= 0)


def capped(rows: Array, cap: int) -> Array:
    """The ids of the `cap` largest entries of each row, largest first and lower id first on ties: [N, V] -> [N, S].

    Clause: PROC-004
    Source: Infernix include/infernix/ops/sampling.h.
    """
    return np.argsort(-rows, axis=1, kind="stable")[:, :cap]


def tempered(logits: Array, temperature: float) -> Array:
    """e^(logit / T - largest / T) of each row: [N, S] -> [N, S], the largest 1.

    Clause: PROC-003
    Source: dflash 0.1.0 _sampling_probs; Infernix src/ops/kernel/sampling_device.cuh.
    """
    scaled = logits / temperature
    return elementary.exp(scaled - scaled.max(axis=1, keepdims=True))


def distribution(logits: Array, temperature: float, public: int, profile: Profile) -> Distribution:
    """The distribution of each row of logits [N, V] at a temperature above 0, without filters.

    With a sampling cap the support is in rank order; without one it is every public id in ascending order.
    Raises RequestError for another temperature, and for one that is not a normal number of F32.
    """
    done = supported(public_columns(logits, public), temperature, 0, 0.0, 1.0, profile)
    return Distribution(done.support, done.p)


def filtered(adjusted: Array, temperature: float, top_k: int, min_p: float, top_p: float, profile: Profile) -> Filtered:
    """The op proc.filter: as `supported`, with weights as F32 shows them."""
    done = supported(adjusted, temperature, top_k, min_p, top_p, profile)
    return done._replace(weights=num.round_to(done.weights, "F32"))


def supported(
    adjusted: Array, temperature: float, top_k: int, min_p: float, top_p: float, profile: Profile
) -> Filtered:
    """What the filters leave of each row of adjusted logits [N, V] at a temperature above 0; weights are not rounded.

    Minus infinity is no candidate. Raises RequestError for a temperature or filter that the profile does not have,
    and TensorError as `sampleable` does.
    """
    if not temperature > 0 or is_greedy(temperature, profile):
        raise RequestError(f"temperature {temperature}, expected a number above 0 at which {profile.name} draws")
    arguments.temperature(temperature)
    arguments.filters(top_k, min_p, top_p, profile)
    rows = sampleable(adjusted)
    ranks = capped(rows, filters.size(top_k, rows.shape[1], profile))
    chosen = np.take_along_axis(rows, ranks, axis=1)
    weights = tempered(chosen, temperature)
    finite = np.isfinite(chosen).sum(axis=1)
    kept = np.array([filters.kept(row[:n], min_p, top_p) for row, n in zip(weights, finite, strict=True)])
    inside = np.arange(weights.shape[1]) < kept[:, np.newaxis]
    support, left = np.where(inside, ranks, -1), np.where(inside, weights, 0.0)
    if not profile.axes["sampling_cap"]:
        support = np.tile(np.arange(rows.shape[1]), (len(rows), 1))
        weights, left = by_id(weights, ranks, rows.shape), by_id(left, ranks, rows.shape)
    p = num.round_to(filters.renormalised(left), "F32")
    return Filtered(weights, kept, support, p)


def by_id(values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
    """Values [N, S] at their ids [N, S] of rows of the given shape [N, V], 0 at the others."""
    spread = np.zeros(shape)
    np.put_along_axis(spread, ids, values, axis=1)
    return spread


def propose(logits: Array, temperature: float, top_k: int, top_p: float, u: Array, profile: Profile) -> Proposals:
    """The op proc.propose: a token of each of the draft's rows [K, V], and the law that drew it.

    Raises UnsupportedError where the profile's proposals are no draws, and what `filtered` raises.

    Clause: PROC-020
    Source: dflash 0.1.0 dflash_generate; huggingface/transformers issue 47932.
    """
    if profile.axes["proposal"] != "sampled":
        raise UnsupportedError(f"proc.propose: profile {profile.name} proposes by {profile.axes['proposal']!r}")
    done = supported(logits, temperature, top_k, 0.0, top_p, profile)
    return Proposals(draw(done.support, done.p, u, profile).tokens, done.p)


def rank(weights: Sequence[Any], goal: Any) -> int:
    """The first rank whose inclusive cumulative weight exceeds `goal`, else the last rank with a weight above 0.

    Takes floats or Fractions. Raises TensorError if no weight is above 0.

    Clause: PROC-005
    Source: Infernix src/ops/kernel/sampling_device.cuh.
    """
    cumulative, last = 0, -1
    for index, weight in enumerate(weights):
        cumulative = cumulative + weight
        if goal < cumulative:
            return index
        last = index if weight > 0 else last
    if last < 0:
        raise TensorError(f"a draw from {len(weights)} weights, expected one above 0")
    return last


def drawable(where: str, p: Sequence[Any]) -> None:
    """Raise TensorError for a row of probabilities [S] that holds a NaN, before anything is drawn from it.

    Comparisons take care of acceptance: no uniform is below NaN.

    Clause: LAW-013
    Source: vllm-project/vllm pull 50183; avifenesh/memra issue 87.
    """
    for index, weight in enumerate(p):
        if weight != weight:
            raise TensorError(f"{where}: probability {index} is NaN, expected a number")


def draw(support: Array, p: Array, u: Array, profile: Profile) -> Draw:
    """One token per row from support [N, S] with probabilities p [N, S] and uniforms u [N].

    Raises TensorError for a row that holds a NaN or nothing above 0.
    """
    for row, weights in enumerate(p):
        drawable(f"proc.draw: row {row}", weights)
    return Draw(np.array([ids[rank(row, goal)] for ids, row, goal in zip(support, p, u, strict=True)], dtype=np.int64))
