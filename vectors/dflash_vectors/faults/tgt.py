"""Faults of the target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from dflash_reference import num, target
from dflash_reference.models import Layer
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

QWEN3 = "transformers 5.24.0 Qwen3ForCausalLM"


@fault("dflash_reference.target.up_to_itself", clauses=("TGT-001",), effect="output",
    report="https://github.com/Luce-Org/lucebox-hub/commit/4926c39",
)  # fmt: skip
def verify_rows_see_later_proposals(true: Function) -> Function:
    """No causal mask is applied while several rows are verified."""
    return lambda positions, length: np.ones((len(positions), length), dtype=bool)


@fault("dflash_reference.target.up_to_itself", clauses=("TGT-001",), effect="output",
    report="NInfer docs/maintainer/dflash.md, verification",
)  # fmt: skip
def verify_rows_blind_to_themselves(true: Function) -> Function:
    """A row attends to what was cached before it, and not to itself."""
    return lambda positions, length: np.arange(length) < positions[:, np.newaxis]


@fault("dflash_reference.target.within", clauses=("TGT-002",), effect="output",
    report="https://github.com/huggingface/transformers/pull/48280",
)  # fmt: skip
def target_window_of_the_first_row(true: Function) -> Function:
    """The window of several verify rows starts where the first row's does."""
    return lambda positions, length, window: true(np.full_like(positions, positions[0]), length, window)


@fault("dflash_reference.target.within", clauses=("TGT-002",), effect="output",
    report="https://github.com/huggingface/transformers/pull/48280",
)  # fmt: skip
def target_window_one_wider(true: Function) -> Function:
    """A sliding layer sees the key at distance S."""
    return lambda positions, length, window: true(positions, length, window + 1)


@fault("dflash_reference.target.extend", clauses=("TGT-003",), effect="output",
    report="https://github.com/Luce-Org/lucebox-hub/commit/f79e15a",
)  # fmt: skip
def positions_start_again_with_each_chunk(true: Function) -> Function:
    """The first row of a later chunk stands at position 0."""

    def wrong(model: Any, cache: Any, ids: Array, profile: Profile) -> Any:
        return true(model, SimpleNamespace(length=0, keys=cache.keys, values=cache.values), ids, profile)

    return wrong


@fault("dflash_reference.target.logits", clauses=("TGT-004",), report=QWEN3, effect="output")
def head_on_the_unnormed_row(true: Function) -> Function:
    """The head reads the residual row."""

    def wrong(x: Array, norm: Array, head: Array, eps: float, profile: Profile) -> Any:
        done: target.Logits = true(x, norm, head, eps, profile)
        return done._replace(logits=num.round_to(num.contract(x, head), profile.dtypes["LOGIT"]))

    return wrong


@fault("dflash_reference.target.head", clauses=("TGT-005",), report=QWEN3, effect="crash")
def tied_head_looked_up(true: Function) -> Function:
    """The head is always lm_head.weight."""
    return lambda model: model.weights["lm_head.weight"]


@fault("dflash_reference.target.head", clauses=("TGT-005",), report=QWEN3, effect="output")
def tied_head_left_random(true: Function) -> Function:
    """A tied head is not bound to the embedding table and keeps what it was initialised with."""

    def wrong(model: Any) -> Array:
        return np.roll(model.embedding, 1, axis=0) if model.config.tied else true(model)

    return wrong


@fault("dflash_reference.target.decoder_layer", clauses=("TGT-006",), report="transformers 5.24.0 Qwen3Attention",
    effect="output",
)  # fmt: skip
def target_without_head_norm_weights(true: Function) -> Function:
    """The target's layer is an older family's, whose queries and keys have no norm of their own."""

    def wrong(w: Layer, *rest: Any) -> Any:
        return true(w._replace(q_norm=np.ones_like(w.q_norm), k_norm=np.ones_like(w.k_norm)), *rest)

    return wrong
