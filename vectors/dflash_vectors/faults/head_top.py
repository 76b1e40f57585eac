"""Faults of DFlash2's candidates and of indexed heads."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import head, num
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

TOPK = "Infernix include/infernix/ops/linear_topk.h"
PORT = "https://github.com/natpate/ninfer-windows/pull/4"
INDEX = "Infernix src/models/qwen3_5/load/text.cpp and execution/draft.cpp"
LOGITS = "dflash 0.1.0 DFlashDraftModel.compute_logits"


@fault("dflash_reference.head.ranked", clauses=("HEAD-005",), report=TOPK, effect="acceptance")
def candidates_tie_to_the_higher_id(true: Function) -> Function:
    """Equal scores are in the order of falling ids."""
    return lambda scores, ids, top: true(scores, -np.asarray(ids), top)


@fault("dflash_reference.head.ranked", clauses=("HEAD-005",), report=PORT, effect="acceptance")
def positive_candidates_inverted(true: Function) -> Function:
    """The inverse of the order-preserving key swaps its branches: positive scores rank by falling size."""
    return lambda scores, ids, top: true(np.where(scores > 0, 1e30 - scores, scores), ids, top)


@fault("dflash_reference.head.ranked", clauses=("HEAD-005",), report=PORT, effect="acceptance")
def candidates_compared_as_bits(true: Function) -> Function:
    """Scores are compared as unsigned codes, in which every negative number is larger than every positive one."""
    return lambda scores, ids, top: true(np.where(scores < 0, 1e30 - scores, scores), ids, top)


@fault("dflash_reference.head.ranked", clauses=("HEAD-005",), effect="acceptance",
    report="dflash 0.1.0 CandidateSelector, whose topk is not sorted",
)  # fmt: skip
def candidates_unsorted(true: Function) -> Function:
    """The right candidates are in the order of their ids."""

    def wrong(scores: Array, ids: Array, top: int) -> Array:
        ranks = np.asarray(true(scores, ids, top))
        return np.take_along_axis(ranks, np.argsort(np.asarray(ids)[ranks], axis=1), axis=1)

    return wrong


@fault("dflash_reference.head.ranked", clauses=("HEAD-005",), effect="acceptance",
    report="https://github.com/sgl-project/sglang/pull/29907",
)  # fmt: skip
def candidates_of_the_first_row_for_all(true: Function) -> Function:
    """All rows of a block get the first row's candidates."""

    def wrong(scores: Array, ids: Array, top: int) -> Array:
        ranks = np.asarray(true(scores, ids, top))
        return np.broadcast_to(ranks[:1], ranks.shape)

    return wrong


@fault("dflash_reference.head.top", clauses=("HEAD-005",), report=TOPK, effect="acceptance")
def zero_scores_ranked_by_sign(true: Function) -> Function:
    """A sum that starts from its first product keeps -0, which an integer key puts below +0."""

    def wrong(hidden: Array, head: Array, **named: Any) -> Any:
        sign = np.where(np.signbit(hidden[:, :1] * head[:, 0]), -1e-30, 0.0)
        done = true(hidden=hidden, head=head, **named)
        if done.unary.any():
            return done
        order = np.argsort(-sign[:, : named["public"]], axis=1, kind="stable")[:, : named["top"]]
        return done._replace(candidates=np.asarray(named["global_ids"])[order])

    return by_name(true, wrong)


@fault("dflash_reference.head.represent_scores", clauses=("HEAD-006",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/52816",
)  # fmt: skip
def candidate_scores_in_bf16(true: Function) -> Function:
    """The dense logits are BF16, and candidates are ranked and kept by them."""
    return lambda scores: num.round_to(scores, "BF16")


@fault("dflash_reference.head.represent_scores", clauses=("HEAD-006",), effect="acceptance",
    report="https://github.com/1CatAI/1Cat-vLLM/pull/253",
)  # fmt: skip
def candidate_scores_in_fp16(true: Function) -> Function:
    """Scores are held in half precision."""
    return lambda scores: num.round_to(scores, "F16")


@fault("dflash_reference.head.top", clauses=("HEAD-006",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/52816",
)  # fmt: skip
def candidate_scores_added_in_bf16(true: Function) -> Function:
    """Every partial sum of a score is rounded to BF16."""

    def wrong(hidden: Array, global_ids: Array, public: int, top: int, **named: Any) -> Any:
        total = np.zeros((len(hidden), public))
        for channel in range(hidden.shape[1]):
            total = num.round_to(total + hidden[:, channel, np.newaxis] * named["head"][:public, channel], "BF16")
        ranks = head.ranked(total, global_ids[:public], top)
        return head.Top(global_ids[ranks], np.take_along_axis(total, ranks, axis=1))

    return by_name(true, wrong)


@fault("dflash_reference.head.ranked", clauses=("HEAD-007",), report=TOPK, effect="acceptance")
def candidates_tie_by_local_row(true: Function) -> Function:
    """The tie rule goes by the head's row, and rows are mapped afterwards, as DFlash does."""
    return lambda scores, ids, top: true(scores, np.arange(scores.shape[1]), top)


@fault("dflash_reference.head.top", clauses=("HEAD-007",), effect="output",
    report="https://github.com/sgl-project/sglang/pull/29907",
)  # fmt: skip
def candidate_rows_taken_for_ids(true: Function) -> Function:
    """Rows of an indexed head are used as token ids."""

    def wrong(global_ids: Array, **named: Any) -> Any:
        return true(global_ids=np.arange(len(global_ids)), **named)

    return by_name(true, wrong)


@fault("dflash_reference.head.indexed_argmax", clauses=("HEAD-008",), report=INDEX, effect="acceptance")
def indexed_argmax_ties_by_global_id(true: Function) -> Function:
    """The lowest global id of equal logits is proposed, as DFlash2 ranks them."""

    def wrong(logits: Array, global_ids: Array, profile: Any) -> Any:
        tied = logits == logits.max(axis=1, keepdims=True)
        return head.Argmax(np.where(tied, global_ids, np.iinfo(np.int64).max).min(axis=1))

    return wrong


@fault("dflash_reference.head.indexed_argmax", clauses=("HEAD-008",), report=INDEX, effect="output")
def indexed_argmax_not_mapped(true: Function) -> Function:
    """The head's row is proposed as it is."""
    return lambda logits, global_ids, profile: true(logits, np.arange(len(global_ids)), profile)


@fault("dflash_reference.head.capped", clauses=("HEAD-009",), report=LOGITS, effect="acceptance", profiles=("zlab",))
def multiplier_left_out(true: Function) -> Function:
    """The output multiplier is not applied."""
    return lambda logits, multiplier, softcap: true(logits, 1.0, softcap)


@fault("dflash_reference.head.capped", clauses=("HEAD-009",), effect="acceptance", profiles=("zlab",),
    report="https://github.com/vllm-project/vllm/pull/41703",
)  # fmt: skip
def softcap_left_out(true: Function) -> Function:
    """The soft-cap is not applied."""
    return lambda logits, multiplier, softcap: true(logits, multiplier, 0.0)


@fault("dflash_reference.head.capped", clauses=("HEAD-009",), report=LOGITS, effect="acceptance", profiles=("zlab",))
def multiplier_after_the_cap(true: Function) -> Function:
    """The logit is bent first and multiplied afterwards."""
    return lambda logits, multiplier, softcap: multiplier * true(logits, 1.0, softcap)


@fault("dflash_reference.head.capped", clauses=("HEAD-009",), report=LOGITS, effect="acceptance", profiles=("zlab",))
def softcap_clips(true: Function) -> Function:
    """The cap cuts instead of bending."""

    def wrong(logits: Array, multiplier: float, softcap: float) -> Array:
        scaled: Array = logits * multiplier
        return np.clip(scaled, -softcap, softcap) if softcap > 0 else scaled

    return wrong


@fault("dflash_reference.head.top", clauses=("HEAD-009",), effect="acceptance", profiles=("zlab",),
    report="https://github.com/vllm-project/vllm/pull/52816, qwen3_dflash2.py",
)  # fmt: skip
def cap_after_the_candidates_are_chosen(true: Function) -> Function:
    """Candidates are ranked by raw logits, and only their scores are bent."""

    def wrong(multiplier: float, softcap: float, **named: Any) -> Any:
        done = true(multiplier=1.0, softcap=0.0, **named)
        return done._replace(unary=head.represent_scores(head.capped(done.unary, multiplier, softcap)))

    return by_name(true, wrong)
