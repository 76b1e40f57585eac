"""Steps that are prepared before it is known what the step before rejected: corrections, blocks and their slots.

A row of samples [W] holds a request's accepted drafts and its correction or bonus; what it does not hold is -1.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import page
from dflash_reference.names import TokenId

NO_SAMPLE = -1
NO_REQUEST = -1


class Valid(NamedTuple):
    """valid: [R] int64."""

    valid: Array


class Remapped(NamedTuple):
    """rejected: [R] int64."""

    rejected: Array


class Rows(NamedTuple):
    """requests: [T] int64, -1 for padding."""

    requests: Array
    refused: int = 0


class Corrected(NamedTuple):
    """corrected: [T] int64 positions."""

    corrected: Array


class Lengths(NamedTuple):
    """verified: [R] int64, the lengths after the verify."""

    verified: Array


class Bonus(NamedTuple):
    """bonus: [R] int64 token ids."""

    bonus: Array


class Block(NamedTuple):
    """ids and positions: [R (K + 1)] int64. keep_index: [R K] int64."""

    ids: Array
    positions: Array
    keep_index: Array


class Outputs(NamedTuple):
    """prefixed: [R, K + 1] and drafts_only: [R, K] int64."""

    prefixed: Array
    drafts_only: Array


class Prepared(NamedTuple):
    """requests: [T]. rejected, verified, bonus: [R]. context_slots: [T]. block_ids, block_positions, slots:
    [R (K + 1)]. keep_index: [R K]. All int64."""

    requests: Array
    rejected: Array
    verified: Array
    bonus: Array
    context_slots: Array
    block_ids: Array
    block_positions: Array
    slots: Array
    keep_index: Array


def valid(sampled: Array, vocabulary: int, profile: Profile) -> Valid:
    """The op async.valid: sampled [R, W] -> [R]."""
    return Valid(is_token(sampled, vocabulary).sum(axis=1))


def is_token(sampled: Array, vocabulary: int) -> Array:
    """Which samples [R, W] are tokens, [R, W] bool.

    Clause: ASYNC-001
    Source: vLLM Neuron DFlash guide, asynchronous rejection and position correction.
    """
    tokens: Array = (sampled != NO_SAMPLE) & (sampled < vocabulary)
    return tokens


def rejected_of(drafts: Array, valid: Array) -> Array:
    """How many of its drafts [R] a step lost that has so many valid samples [R].

    Clause: ASYNC-003
    Source: vLLM Neuron DFlash guide, asynchronous rejection and position correction.
    """
    return (1 + drafts) - valid


def remap(
    previous_ids: Array, previous_sampled: Array, previous_drafts: Array, ids: Array, vocabulary: int, profile: Profile
) -> Remapped:
    """What each request of this step, by id [R], lost in the previous one, given by its P rows.

    Raises TensorError if an id stands twice among either.
    """
    for given in (previous_ids, ids):
        if len(set(given.tolist())) != len(given):
            raise TensorError(f"async.remap: request ids {given.tolist()}, expected each once")
    lost = rejected_of(previous_drafts, is_token(previous_sampled, vocabulary).sum(axis=1))
    return Remapped(np.array([lost_by(row_of(id_, previous_ids), lost) for id_ in ids], dtype=np.int64))


def row_of(id_: int, previous_ids: Array) -> int:
    """The row that a request had in the previous step, -1 if it had none.

    Clause: ASYNC-002
    Source: vLLM Neuron DFlash guide, asynchronous rejection and position correction; vllm-project/vllm pull 45100.
    """
    return next((row for row, other in enumerate(previous_ids) if other == id_), NO_REQUEST)


def lost_by(row: int, lost: Array) -> int:
    """What the request of a row of the previous step lost [P]; 0 for one that was not in it.

    Clause: ASYNC-004
    Source: vLLM Neuron DFlash guide, asynchronous rejection and position correction.
    """
    return 0 if row == NO_REQUEST else int(lost[row])


def rows(last_token_indices: Array, rows: int, profile: Profile) -> Rows:
    """The request of each of `rows` target rows, given where each request's last row stands [R].

    Raises TensorError unless these indices increase from 0 on and lie below `rows`.

    Clause: ASYNC-005
    Source: vLLM Neuron DFlash guide, paged KV integration.
    """
    bounds = [-1, *last_token_indices.tolist()]
    if any(after <= before for before, after in pairwise(bounds)) or bounds[-1] >= rows:
        raise TensorError(f"async.rows: last rows {bounds[1:]}, expected increasing ones from 0 to {rows - 1}")
    requests = np.full(rows, NO_REQUEST, dtype=np.int64)
    for request, (before, last) in enumerate(pairwise(bounds)):
        requests[before + 1 : last + 1] = request
    return Rows(requests)


def positions(positions: Array, requests: Array, rejected: Array, profile: Profile) -> Corrected:
    """Positions [T] of rows of requests [T] that lost rejected [R] in the previous step.

    Raises TensorError for a row of no request.
    """
    if ((requests < 0) | (requests >= len(rejected))).any():
        raise TensorError(f"async.positions: requests {requests.tolist()}, expected 0 to {len(rejected) - 1}")
    return Corrected(corrected(positions, requests, rejected))


def corrected(positions: Array, requests: Array, rejected: Array) -> Array:
    """Positions [T], those of a request moved down by what it lost; padding stays.

    Clause: ASYNC-006
    Source: vLLM Neuron DFlash guide, asynchronous rejection and position correction.
    """
    return positions - np.where(requests == NO_REQUEST, 0, rejected[requests])


def lengths(
    lengths: Array, sampled: Array, current_drafts: Array, drafts: int, vocabulary: int, profile: Profile
) -> Lengths:
    """The lengths [R] less what this step rejected, by its samples [R, W].

    Raises TensorError unless there are draft counts for every request or for none.

    Clause: ASYNC-007
    Source: vLLM Neuron DFlash guide, asynchronous rejection and position correction.
    """
    of_step = drafts_of_step(current_drafts, drafts, len(lengths))
    return Lengths(lengths - rejected_of(of_step, is_token(sampled, vocabulary).sum(axis=1)))


def drafts_of_step(current_drafts: Array, drafts: int, requests: int) -> Array:
    """How many drafts this step verified for each request: [R]. Raises TensorError for counts of some alone.

    Clause: ASYNC-008
    Source: vLLM Neuron DFlash guide, asynchronous rejection and position correction.
    """
    if len(current_drafts) not in (0, requests):
        raise TensorError(f"async.lengths: {len(current_drafts)} draft counts, expected none or {requests}")
    return current_drafts if len(current_drafts) else np.full(requests, drafts)


def bonus(sampled: Array, vocabulary: int, profile: Profile) -> Bonus:
    """The last token of each row of samples [R, W]. Raises TensorError for a row without one.

    Clause: ASYNC-009
    Source: vLLM Neuron DFlash guide, draft block construction; vllm-project/vllm pull 46899.
    """
    found = is_token(sampled, vocabulary)
    if not found.any(axis=1).all():
        raise TensorError(f"async.bonus: samples {sampled.tolist()}, expected a token below {vocabulary} in each row")
    last = sampled.shape[1] - 1 - np.argmax(found[:, ::-1], axis=1)
    return Bonus(sampled[np.arange(len(sampled)), last])


def block(bonus: Array, lengths: Array, drafts: int, mask_id: TokenId, profile: Profile) -> Block:
    """The blocks of all requests one after the other, by their bonus tokens and lengths after the verify [R].

    Raises TensorError for fewer drafts than one.
    """
    if drafts < 1:
        raise TensorError(f"async.block: {drafts} drafts, expected at least 1")
    return Block(
        block_ids(bonus, drafts, mask_id), block_positions(lengths, drafts), draft_rows(len(bonus), drafts)
    )  # fmt: skip


def block_ids(bonus: Array, drafts: int, mask_id: TokenId) -> Array:
    """A bonus and K masks for each request: [R (K + 1)].

    Clause: ASYNC-010
    Source: vLLM Neuron DFlash guide, draft block construction.
    """
    ids = np.full((len(bonus), drafts + 1), mask_id, dtype=np.int64)
    ids[:, 0] = bonus
    return ids.reshape(-1)


def block_positions(lengths: Array, drafts: int) -> Array:
    """Consecutive positions from each request's length on: [R (K + 1)].

    Clause: ASYNC-011
    Source: vLLM Neuron DFlash guide, draft block construction.
    """
    ahead: Array = lengths[:, np.newaxis] + np.arange(drafts + 1)
    return ahead.reshape(-1)


def draft_rows(requests: int, drafts: int) -> Array:
    """The block rows that give drafts, all but the first of each request: [R K].

    Clause: ASYNC-012
    Source: vLLM Neuron DFlash guide, draft block construction.
    """
    return np.arange(requests * (drafts + 1)).reshape(requests, drafts + 1)[:, 1:].reshape(-1)


def outputs(bonus: Array, proposals: Array, profile: Profile) -> Outputs:
    """The proposals [R K] request by request, behind the bonus [R] and alone.

    Raises TensorError unless every request has as many.

    Clause: ASYNC-013
    Source: vLLM Neuron DFlash guide, draft model architecture; sgl-project/sglang issue 26163.
    """
    if not len(bonus) or len(proposals) % len(bonus):
        raise TensorError(f"async.outputs: {len(proposals)} proposals of {len(bonus)} requests, expected K of each")
    drafts_only = proposals.reshape(len(bonus), -1)
    return Outputs(np.concatenate([bonus[:, np.newaxis], drafts_only], axis=1), drafts_only)


def prepare(
    positions: Array, last_token_indices: Array, sampled: Array, current_drafts: Array, ids: Array,
    previous_ids: Array, previous_sampled: Array, previous_drafts: Array, table: Array, block_size: int,
    max_length: int, drafts: int, mask_id: TokenId, vocabulary: int, profile: Profile,
) -> Prepared:  # fmt: skip
    """All that a proposal needs of R requests with target rows [T]; the arguments are those of the single ops.

    Clause: ASYNC-014
    Source: vLLM Neuron DFlash guide, draft model architecture.
    """
    requests = rows(last_token_indices, len(positions), profile).requests
    rejected = remap(previous_ids, previous_sampled, previous_drafts, ids, vocabulary, profile).rejected
    at = corrected(positions, requests, rejected)
    verified = lengths(at[last_token_indices] + 1, sampled, current_drafts, drafts, vocabulary, profile).verified
    context_slots = page.writes(table, requests, at, verified, block_size, max_length, profile).slots
    anchors = bonus(sampled, vocabulary, profile).bonus
    own = block(anchors, verified, drafts, mask_id, profile)
    owners = np.repeat(np.arange(len(ids)), drafts + 1)
    slots = page.writes(table, owners, own.positions, verified + drafts + 1, block_size, max_length, profile).slots
    return Prepared(requests, rejected, verified, anchors, context_slots, own.ids, own.positions, slots, own.keep_index)
