"""Engines that begin to do one thing wrong in round FROM: the reference, or the authors' package, with a fault in it.

Each fault is a change of the running code, made as the bug would be; what it does to tokens, tensors and state is the
engine's own doing. `place` is where a replay must find it first, `clause` the rule that it must blame.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import dflash.model as package
import numpy as np
import torch
from dflash_reference import law
from dflash_vectors import faults
from dflash_vectors.faults import Function, patched

FROM = 37
"""The first wrong round. The pairs of the tests accept 2 of 4 proposals there, so that it rejects some."""

Spoil = Callable[[Any], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Faulty:
    """One wrong engine. It is found in round `round`, FROM where nothing else is said."""

    name: str
    spoil: Spoil
    place: str
    clause: str
    round: int = FROM
    backends: tuple[str, ...] = ("dflash", "dflash2")
    stops: str = "decoy"


def later(watcher: Any, target: str, maker: Callable[[Function], Function]) -> AbstractContextManager[None]:
    """The reference with `target` replaced from round FROM on."""

    def switched(true: Function) -> Function:
        wrong = maker(true)
        return lambda *given, **named: (wrong if watcher.rounds >= FROM else true)(*given, **named)

    return patched(target, switched)


def known(name: str) -> Spoil:
    """A registered fault of the reference."""
    (fault,) = [fault for fault in faults.all_faults() if fault.name == name]
    return lambda watcher: later(watcher, fault.target, fault.replacement)


def replaced(target: str, maker: Callable[[Function], Function]) -> Spoil:
    """A fault of the reference made here."""
    return lambda watcher: later(watcher, f"dflash_reference.{target}", maker)


def count_of_another_row(true: Function) -> Function:
    """The accepted count is that of another request, whose proposals the target says to the end."""
    return lambda proposals, target: len(proposals)


def token_of_the_next_row(true: Function) -> Function:
    """The token that ends the round is read from one row too far."""

    def wrong(proposals: Any, target: Any, profile: Any) -> law.Verdict:
        accepted, licensed = true(proposals, target, profile)
        licensed[accepted] = target[(accepted + 1) % len(target)]
        return law.Verdict(accepted, licensed)

    return wrong


def committed_twice(true: Function) -> Function:
    """The commit is applied to the state that it has already made."""

    def wrong(anchor: Any, licensed: Any, kept: int, frontier: int, rows: int, profile: Any) -> Any:
        done = true(anchor, licensed, kept, frontier, rows, profile)
        return done._replace(next_frontier=done.next_frontier + kept)

    return wrong


def shifted_slice(true: Function) -> Function:
    """In the flattened batch the features are sliced from the request's number on, not from that times the width."""

    def wrong(captured: Any, frontier: int, committed: int, profile: Any) -> Any:
        return true(np.roll(captured, -1, axis=0), frontier, committed, profile)

    return wrong


def count_of_round_one(true: Function) -> Function:
    """How many rows were committed was captured in the first round, and is used for all of them."""
    held: list[int] = []

    def wrong(captured: Any, frontier: int, committed: int, profile: Any) -> Any:
        held.append(committed)
        return true(captured, frontier, min(held[0], len(captured)), profile)

    return wrong


def count_captured_once(watcher: Any) -> AbstractContextManager[None]:
    """As above; the count is that of the very first round, though it does harm only from FROM on."""
    held: list[int] = []

    def maker(true: Function) -> Function:
        def wrong(captured: Any, frontier: int, committed: int, profile: Any) -> Any:
            if watcher.rounds == 0 and len(captured) == watcher.recorder.configuration.drafts + 1:
                held.append(committed)
            used = held[0] if watcher.rounds >= FROM else committed
            return true(captured, frontier, used, profile)

        return wrong

    return patched("dflash_reference.commit.pending", maker)


def one_too_few(true: Function) -> Function:
    """The last licensed token is held back."""
    return lambda licensed, *rest: true(licensed[:-1] if len(licensed) > 1 else licensed, *rest)


def second_best(true: Function) -> Function:
    """The proposals are the second best of their rows."""

    def wrong(logits: Any, public: int, profile: Any) -> Any:
        rows = np.array(logits)
        best = true(rows, public, profile).proposals
        rows[np.arange(len(rows)), best] = -np.inf
        return true(rows, public, profile)

    return wrong


def target_one_early(true: Function) -> Function:
    """The verify pass counts its positions from the row before the anchor's."""

    def wrong(w: Any, x: Any, keys: Any, values: Any, positions: Any, *rest: Any) -> Any:
        with patched("dflash_reference.layer.rope_table", lambda real: lambda at, *more: real(at - 1, *more)):
            return true(w, x, keys, values, positions, *rest)

    return wrong


FIRST = ("dflash",)
"""The backend of faults that both have alike."""

REFERENCE = (
    Faulty("target-not-cut-back", known("cut-does-nothing"), "frontier.kv", "COMMIT-002"),
    Faulty("context-one-round-late", known("context-one-round-late"), "stage.c", "CTX-010"),
    Faulty("rejected-rows-become-context", known("rejected-rows-become-context"), "stage.features", "CTX-009", 38),
    Faulty("features-of-another-slice", replaced("commit.pending", shifted_slice), "stage.features", "CTX-009", 38),
    Faulty("count-captured-in-round-one", count_captured_once, "stage.features", "CTX-009", 38),
    Faulty("count-of-another-row", replaced("law.matching_prefix", count_of_another_row), "decision.accepted",
           "LAW-001", backends=FIRST),
    Faulty("token-of-the-next-row", replaced("law.greedy", token_of_the_next_row), "decision.licensed", "LAW-002",
           backends=FIRST),
    Faulty("committed-twice", replaced("commit.commit", committed_twice), "frontier.execution", "COMMIT-008",
           backends=FIRST),
    Faulty("context-keys-restart", known("context-positions-counted-again"), "stage.layer.1", "CTX-006"),
    Faulty("one-token-too-few", replaced("stop.preview", one_too_few), "decision.kept", "STOP-002", backends=FIRST),
    Faulty("second-best", replaced("head.argmax", second_best), "decision.proposals", "HEAD-002", backends=FIRST),
    Faulty("target-positions-off-by-one", replaced("target.decoder_layer", target_one_early), "stage.target.features",
           "BLK-006"),
)  # fmt: skip


def _is_targets(cache: Any) -> bool:
    """The pairs' targets have three layers, and their drafts two."""
    return len(cache.layers) == 3


def not_cut(of_target: bool) -> Spoil:
    """The package does not crop the cache of one of its models."""

    @contextmanager
    def spoil(watcher: Any) -> Iterator[None]:
        crop = package._crop_to

        def wrong(cache: Any, length: int) -> None:
            if watcher.rounds < FROM or _is_targets(cache) != of_target:
                crop(cache, length)

        with mock.patch.object(package, "_crop_to", wrong):
            yield

    return spoil


def draft_call(change: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> Spoil:
    """The package's draft is called with other arguments."""

    @contextmanager
    def spoil(watcher: Any) -> Iterator[None]:
        def hook(_module: Any, given: Any, named: dict[str, Any]) -> Any:
            return (given, change(watcher, dict(named))) if watcher.rounds >= FROM else None

        handle = watcher.model.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    return spoil


def restarted(watcher: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Positions begin at 0 with the rows of the last commit."""
    return {**named, "position_ids": named["position_ids"] - named["position_ids"][:, :1]}


def masked_anchor(watcher: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The mask's embedding stands in the anchor's slot too."""
    rows = named["noise_embedding"].clone()
    rows[:, 0] = rows[:, 1]
    return {**named, "noise_embedding": rows}


def rolled_features(watcher: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The features of the last commit come in another order."""
    return {**named, "target_hidden": named["target_hidden"].roll(1, dims=1)}


@contextmanager
def entering_taps(watcher: Any) -> Iterator[None]:
    """The package reads the residual that enters a block, not the one that leaves it."""
    extract = package.extract_context_feature

    def wrong(states: Any, ids: Any) -> Any:
        return extract(states, [id_ - 1 for id_ in ids] if watcher.rounds >= FROM else ids)

    with mock.patch.object(package, "extract_context_feature", wrong):
        yield


@contextmanager
def unwritten_tail_scanned(watcher: Any) -> Iterator[None]:
    """The stop scan looks at the whole output buffer, whose unwritten tail holds the mask id."""
    isin = torch.isin

    def wrong(tokens: Any, stops: Any) -> Any:
        found = isin(tokens, stops)
        loop = sys._getframe(1).f_locals
        if watcher.rounds >= FROM and "produced" in loop and isin(loop["output_ids"], stops).any():
            found[-1] = True
        return found

    with mock.patch.object(torch, "isin", wrong):
        yield


@contextmanager
def anchor_as_every_predecessor(watcher: Any) -> Iterator[None]:
    """The walk conditions each step on the anchor, not on the token before it."""
    anchor: list[Any] = []

    def hook(_module: Any, given: Any, rows: Any) -> Any:
        if watcher.rounds < FROM:
            return None
        anchor.append(rows)
        return anchor[0] if len(anchor) % watcher.recorder.configuration.drafts != 1 else anchor.__setitem__(0, rows)

    handle = watcher.model.candidate_selector.predecessor_codebook.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def round_the_block(watcher: Any) -> Iterator[None]:
    """The convolution of a block's first row reads its last one in place of nothing."""
    convolve = package._grouped_dynamic_convolve

    def wrong(hidden: Any, dynamic: Any, base: Any, size: int) -> Any:
        if watcher.rounds < FROM:
            return convolve(hidden, dynamic, base, size)
        joined = [torch.cat([rows[:, -1:], rows], dim=1) for rows in (hidden, dynamic)]
        return convolve(*joined, base, size)[:, 1:]

    with mock.patch.object(package, "_grouped_dynamic_convolve", wrong):
        yield


@contextmanager
def silent(watcher: Any, spoil: Spoil) -> Iterator[None]:
    """An engine with a fault that records no frontiers."""
    record = watcher.recorder.round
    with spoil(watcher), mock.patch.object(watcher.recorder, "round", lambda frontiers, **named: record(**named)):
        yield


PACKAGE = (
    Faulty("target-cache-not-cropped", not_cut(True), "frontier.kv", "COMMIT-002"),
    Faulty("draft-cache-not-cropped", not_cut(False), "frontier.context", "DRAFT-014"),
    Faulty("taps-entering", entering_taps, "stage.features", "TAP-001"),
    Faulty("positions-restarted", draft_call(restarted), "stage.layer.0", "CTX-006"),
    Faulty("mask-in-the-anchors-slot", draft_call(masked_anchor), "stage.layer.0", "BLK-001"),
    Faulty("features-in-another-order", draft_call(rolled_features), "stage.features", "CTX-009", backends=FIRST),
    Faulty("unwritten-tail-scanned", unwritten_tail_scanned, "end.reason", "STOP-012", stops="mask"),
    Faulty("anchor-as-every-predecessor", anchor_as_every_predecessor, "stage.scores", "SEL-002",
           backends=("dflash2",)),
    Faulty("convolution-round-the-block", round_the_block, "stage.layer.0", "CONV-004", backends=("dflash2",)),
)  # fmt: skip
