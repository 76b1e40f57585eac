"""A request that can be kept, forked, restored and continued between its rounds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from dflash_spec.config import draft_count
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import commit, engine, request, state
from dflash_reference.context import Context
from dflash_reference.models import Draft, Target
from dflash_reference.names import Position, TokenId
from dflash_reference.request import Request, Settings


class Kept(NamedTuple):
    """An image of a request, and the tokens [F] that it was computed from."""

    image: state.Image
    identity: tuple[int, ...]


@dataclass
class Session:
    """A request with all that its next round reads: target, draft, context, and the feature rows it lacks."""

    request: Request
    model: Draft
    rows: Context
    pending: commit.Pending
    drafts: int

    def play(self) -> engine.Round:
        """One round. Raises RequestError if the request has ended."""
        if self.request.ended:
            raise RequestError(f"a round after {len(self.request.tokens)} tokens, expected none: the request has ended")
        round_, self.pending = engine.play_round(self.request, self.model, self.rows, self.pending, self.drafts)
        return round_

    def run(self) -> list[TokenId]:
        """Every round that is left: all new tokens."""
        while not self.request.ended:
            self.play()
        return self.request.tokens

    def catch_up(self) -> None:
        """Make context of the rows that are pending, so that the state can be kept or forked."""
        engine.catch_up(self.model, self.rows, self.pending, self.request.profile)
        self.pending = state.nothing_pending(self.pending.features.shape[1])

    def held(self) -> state.Held:
        """The state as it is kept and forked: it is not copied."""
        own = self.request
        return state.Held(own.cache, self.rows, own.frontier, self.pending, own.anchor, own.tail)

    def keep(self) -> Kept:
        """An image of where the request stands. Raises StateError if rows are pending."""
        text = (*self.request.prompt, *self.request.tokens)
        return Kept(state.keep(self.held(), self.request.profile), text[: self.request.frontier])

    def fork(self) -> Session:
        """A second session that goes on from here, and shares nothing with this one. Raises StateError as `keep`."""
        held = state.fork(self.held(), self.request.profile)
        other = copy.copy(self.request)
        other.cache, other.frontier, other.anchor, other.tail = held.target, held.frontier, held.anchor, held.tail
        other.tokens, other.counts = list(self.request.tokens), self.request.counts.copy()
        return Session(other, self.model, held.draft, held.pending, self.drafts)


def opened(
    target: Target, model: Draft, prompt: Sequence[int] | Array, settings: Settings, profile: Profile,
    kept: Kept | None = None,
) -> Session:  # fmt: skip
    """A session after its prefill, of which an image `kept` of the prompt's beginning spares those tokens.

    Raises what engine.generate raises, and StateError for an image of another text or whose parts do not agree.
    """
    request.check_pair(target, model)
    drafts = draft_count(profile, model.config.block_size, settings.drafts)
    own = Request(target, prompt, settings, profile, min(target.config.max_positions, model.config.max_positions))
    rows = Context(model.config)
    if kept is not None:
        held = state.restored(kept.image, len(model.config.taps) * target.config.hidden_size)
        state.restore(np.array(own.prompt), np.array(kept.identity), held.target.length, held.draft.length, profile)
        own.cache, own.tail, rows = held.target, held.tail, held.draft
    start = Position(own.cache.length)
    features = engine.first_token(own, model.config.taps)
    return Session(own, model, rows, commit.pending(features, start, len(features), profile), drafts)
