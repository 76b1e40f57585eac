"""Faults of ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

PACKAGE = "dflash 0.1.0 dflash_generate"


@fault(
    "dflash_reference.stop.preview", clauses=("STOP-001",), effect="output",
    report="https://github.com/LostRuins/koboldcpp/issues/1276",
)  # fmt: skip
def text_goes_on_after_the_stop(true: Function) -> Function:
    """A round is emitted whole, and its stop ends nothing."""
    return lambda licensed, stop_ids, remaining, profile: true(licensed, stop_ids[:0], remaining, profile)


@fault(
    "dflash_reference.stop.through_first_stop", clauses=("STOP-001",), effect="output",
    report="https://github.com/vllm-project/vllm/pull/12193",
)  # fmt: skip
def last_of_two_stops_taken(true: Function) -> Function:
    """The text ends at the last stop id of the round."""

    def wrong(tokens: Array, stop_ids: Array) -> int:
        places = np.flatnonzero(np.isin(tokens, stop_ids))
        return int(places[-1]) + 1 if len(places) else len(tokens)

    return wrong


@fault(
    "dflash_reference.stop.through_first_stop", clauses=("STOP-001",), effect="output",
    report="https://github.com/sgl-project/sglang/pull/21723",
)  # fmt: skip
def stop_seen_only_at_the_end(true: Function) -> Function:
    """Only the last token of a round is compared with the stop ids."""
    return lambda tokens, stop_ids: len(tokens)


@fault(
    "dflash_reference.stop.through_first_stop", clauses=("STOP-001",), effect="output",
    report="https://github.com/Luce-Org/lucebox-hub/commit/d180d39",
)  # fmt: skip
def only_the_first_stop_id_ends(true: Function) -> Function:
    """One end token is compared, the others of the list are not."""
    return lambda tokens, stop_ids: true(tokens, stop_ids[:1])


@fault("dflash_reference.stop.through_first_stop", clauses=("STOP-001",), report=PACKAGE, effect="output")
def only_four_stop_ids_held(true: Function) -> Function:
    """The list of stop ids has a fixed length, and ids past it end nothing."""
    return lambda tokens, stop_ids: true(tokens, stop_ids[:4])


@fault("dflash_reference.stop.preview", clauses=("STOP-001",), report=PACKAGE, effect="output")
def stop_token_dropped(true: Function) -> Function:
    """The stop token itself is not kept."""

    def wrong(licensed: Array, stop_ids: Array, remaining: int, profile: Any) -> Any:
        preview = true(licensed, stop_ids, remaining, profile)
        stopped = bool(np.isin(licensed[preview.kept - 1], stop_ids))
        return preview._replace(kept=preview.kept - int(stopped))

    return wrong


@fault("dflash_reference.stop.preview", clauses=("STOP-001",), report=PACKAGE, effect="liveness")
def stop_cuts_but_does_not_end(true: Function) -> Function:
    """Tokens after the stop are dropped, but the request goes on."""

    def wrong(licensed: Array, stop_ids: Array, remaining: int, profile: Any) -> Any:
        preview = true(licensed, stop_ids, remaining, profile)
        return preview._replace(terminal=int(preview.kept == remaining))

    return wrong


@fault("dflash_reference.stop.preview", clauses=("STOP-003",), report="z-lab/dflash@44947fb dflash/model.py",
    effect="output", profiles=("zlab",),
)  # fmt: skip
def last_round_overshoots(true: Function) -> Function:
    """The last round is kept whole, one token past the budget."""

    def wrong(licensed: Array, stop_ids: Array, remaining: int, profile: Any) -> Any:
        preview = true(licensed, stop_ids, len(licensed) + 1, profile)
        return preview._replace(terminal=int(preview.terminal or preview.kept >= remaining))

    return wrong


@fault("dflash_reference.stop.preview", clauses=("STOP-003",), report=PACKAGE, effect="liveness")
def full_budget_does_not_end(true: Function) -> Function:
    """A round that uses the budget up leaves the request running."""

    def wrong(licensed: Array, stop_ids: Array, remaining: int, profile: Any) -> Any:
        preview = true(licensed, stop_ids, remaining, profile)
        stopped = bool(np.isin(licensed[preview.kept - 1], stop_ids))
        return preview._replace(terminal=int(stopped))

    return wrong


@fault("dflash_reference.stop.preview", clauses=("STOP-003",), report=PACKAGE, effect="output")
def ends_one_token_early(true: Function) -> Function:
    """A request ends when one token of its budget is left."""

    def wrong(licensed: Array, stop_ids: Array, remaining: int, profile: Any) -> Any:
        preview = true(licensed, stop_ids, remaining, profile)
        return preview._replace(terminal=int(preview.terminal or preview.kept == remaining - 1))

    return wrong


@fault(
    "dflash_reference.engine.play_round", clauses=("STOP-002",), effect="output",
    report="https://github.com/openvinotoolkit/openvino.genai/pull/1951",
)  # fmt: skip
def proposals_scanned_for_stops(true: Function) -> Function:
    """A proposed stop id ends the request, though the target rejected it."""

    def wrong(state: Any, *rest: Any) -> Any:
        played, pending = true(state, *rest)
        if played.proposal is not None and np.isin(played.proposal.proposals, state.settings.stop_ids).any():
            state.ended = True
        return played, pending

    return wrong


@fault("dflash_reference.engine.first_token", clauses=("STOP-004",), report=PACKAGE, effect="output")
def first_token_never_ends(true: Function) -> Function:
    """The token that follows the prompt is not compared with the stop ids."""

    def wrong(state: Any, *rest: Any) -> Any:
        features = true(state, *rest)
        state.ended = state.remaining == 0
        return features

    return wrong
