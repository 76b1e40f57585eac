"""The corrections of an asynchronous step in PyTorch. Samples I64 [R, W] are tokens, or -1 where there is none.

Source: vLLM Neuron DFlash guide, asynchronous rejection and position correction, and draft block construction.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from dflash_spec.errors import TensorError
from torch import Tensor


class Block(NamedTuple):
    """Ids and positions I64 [R (K + 1)], and the rows I64 [R K] that give drafts."""

    ids: Tensor
    positions: Tensor
    keep_index: Tensor


def valid(sampled: Tensor, vocabulary: int) -> Tensor:
    """How many samples of each row are tokens, wherever they stand. Clause: ASYNC-001."""
    return _tokens(sampled, vocabulary).sum(1)


def remap(
    previous_ids: Tensor, previous_sampled: Tensor, previous_drafts: Tensor, ids: Tensor, vocabulary: int
) -> Tensor:
    """What each request lost in the previous step, found by its id; 0 for one that was not in it.

    Raises TensorError where an id stands twice.

    Clauses: ASYNC-002, ASYNC-003, ASYNC-004. Source: vllm-project/vllm pull 45100.
    """
    for given in (previous_ids, ids):
        if len(set(given.tolist())) != len(given):
            raise TensorError(f"request ids {given.tolist()}, expected each once")
    lost = 1 + previous_drafts - valid(previous_sampled, vocabulary)
    return (ids[:, None] == previous_ids).long() @ lost


def rows(last: Tensor, count: int) -> Tensor:
    """The request of each of `count` rows, where `last` I64 [R] are the requests' last rows; -1 for padding.

    Raises TensorError unless these increase within the rows.

    Clause: ASYNC-005.
    """
    bounds = torch.cat((last.new_tensor([-1]), last))
    if bool((bounds.diff() <= 0).any()) or int(bounds[-1]) >= count:
        raise TensorError(f"last rows {last.tolist()}, expected increasing ones of {count} rows")
    found = torch.searchsorted(last, torch.arange(count))
    return torch.where(found < len(last), found, -1)


def corrected(positions: Tensor, requests: Tensor, rejected: Tensor) -> Tensor:
    """Positions of rows, moved down by what their requests lost; those of no request, -1, stay. Clause: ASYNC-006."""
    if bool((requests >= len(rejected)).any()):
        raise TensorError(f"rows of requests {requests.tolist()}, expected below {len(rejected)}")
    return positions - torch.where(requests < 0, 0, rejected[requests])


def lengths(before: Tensor, sampled: Tensor, current: Tensor, drafts: int, vocabulary: int) -> Tensor:
    """Lengths I64 [R] less what this step rejected, of `current` drafts, or of K for each where that is empty.

    Raises TensorError for counts of some requests alone.

    Clauses: ASYNC-007, ASYNC-008.
    """
    if len(current) not in (0, len(before)):
        raise TensorError(f"{len(current)} draft counts, expected 0 or {len(before)}")
    verified = current if len(current) else torch.full_like(before, drafts)
    return before - (1 + verified - valid(sampled, vocabulary))


def bonus(sampled: Tensor, vocabulary: int) -> Tensor:
    """The last token of each row. Raises TensorError for a row without one.

    Clause: ASYNC-009. Source: vllm-project/vllm pull 46899.
    """
    columns = torch.arange(sampled.shape[1])
    last = torch.where(_tokens(sampled, vocabulary), columns, -1).amax(1)
    if bool((last < 0).any()):
        raise TensorError(f"samples {sampled.tolist()}, expected a token below {vocabulary} in each row")
    return sampled.gather(1, last[:, None])[:, 0]


def block(anchors: Tensor, starts: Tensor, drafts: int, mask_id: int) -> Block:
    """The blocks of R requests, their anchors and K masks from `starts` on. Raises TensorError for fewer than 1 draft.

    Clauses: ASYNC-010, ASYNC-011, ASYNC-012.
    """
    if drafts < 1:
        raise TensorError(f"{drafts} drafts, expected at least 1")
    ids = torch.full((len(anchors), drafts + 1), mask_id)
    ids[:, 0] = anchors
    columns = torch.arange(drafts + 1)
    every = torch.arange(len(anchors) * (drafts + 1)).view(-1, drafts + 1)
    return Block(ids.view(-1), (starts[:, None] + columns).view(-1), every[:, 1:].reshape(-1))


def outputs(anchors: Tensor, proposals: Tensor) -> tuple[Tensor, Tensor]:
    """Proposals I64 [R K], request by request, behind their anchors [R, K + 1] and alone [R, K].

    Raises TensorError unless every request has as many.

    Clause: ASYNC-013. Source: sgl-project/sglang issue 26163.
    """
    if not len(anchors) or len(proposals) % len(anchors):
        raise TensorError(f"{len(proposals)} proposals of {len(anchors)} requests, expected as many of each")
    alone = proposals.view(len(anchors), -1)
    return torch.cat((anchors[:, None], alone), 1), alone


def _tokens(sampled: Tensor, vocabulary: int) -> Tensor:
    return (sampled != -1) & (sampled < vocabulary)
