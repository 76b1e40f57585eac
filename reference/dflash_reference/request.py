"""One request: what was asked, whether that is possible, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from dflash_spec.errors import RequestError, TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import arguments, commit, penalties, rng, stop
from dflash_reference.models import Draft, Target
from dflash_reference.names import Position, TokenId
from dflash_reference.target import Cache


@dataclass(frozen=True)
class Settings:
    """What is asked. Lengths and counts are in tokens.

    `drafts` is K, None for the draft file's own; `public` counts the ids that a text can hold, None for the whole
    table; `chunks` are the lengths of the prefill's chunks, empty for one chunk. At temperature 0 decoding is greedy
    and `seed` is not used; another temperature counts by its F32 value, which must be a normal number. Integers and
    the temperature may be NumPy scalars, and `stop_ids` and `chunks` integer arrays.

    Filters and penalties are as in the profile, whose defaults here are none. `allowed` is 1 for each of the public
    ids that may be emitted, None for all; `grammar` gets the tokens that come before a row, those emitted and then
    the block's proposals before it, and returns such a mask for this row, which is joined to `allowed`.
    """

    drafts: int | None
    max_new: int
    stop_ids: tuple[int, ...] = ()
    public: int | None = None
    temperature: float = 0.0
    seed: int = 0
    chunks: tuple[int, ...] = ()
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    allowed: Sequence[int] | Array | None = None
    grammar: Callable[[Sequence[TokenId]], Sequence[int] | Array] | None = None


class Request:
    """A request between rounds. Raises RequestError where it cannot be served.

    The target has consumed the tokens at [0, frontier), `tail` [H] is its last residual row, and `anchor` the token at
    `frontier`. Tokens stand at the positions [0, capacity).
    """

    def __init__(
        self, target: Target, prompt: Sequence[int] | Array, settings: Settings, profile: Profile, capacity: int
    ) -> None:
        rows = target.config.vocab_size
        self.target, self.profile, self.capacity = target, profile, capacity
        self.public = rows if settings.public is None else arguments.integer("public", settings.public, 1, rows)
        self.prompt = arguments.integers("prompt", prompt, 0, self.public - 1)
        if not 1 <= len(self.prompt) <= capacity:
            raise RequestError(
                f"prompt of {len(self.prompt)} tokens, expected 1 to {capacity}, the positions there are"
            )
        self.settings = _checked(settings, self.public, len(self.prompt), profile)
        self.allowed = arguments.mask("allowed", self.settings.allowed, self.public)
        self.budget = min(self.settings.max_new, capacity - len(self.prompt) + 1)
        self.cache = Cache(target.config)
        self.frontier = Position(len(self.prompt))
        self.anchor = TokenId(-1)
        self.tail: Array = np.zeros(0)
        self.tokens: list[TokenId] = []
        self.counts = np.zeros(self.public, dtype=np.int64)
        self.ended = False

    @property
    def remaining(self) -> int:
        """How many tokens the budget has left."""
        return self.budget - len(self.tokens)

    def uniforms(self, keys: Array) -> Array:
        """The uniforms [N] of draws with the given keys [N, 3]."""
        position, purpose, sub = keys.T
        return rng.uniform(np.full(len(keys), self.settings.seed, np.uint64), position, purpose, sub, self.profile).u

    def allowed_after(self, proposals: Array) -> Array:
        """The masks of the rows of a verify pass of proposals [P], [P + 1, public] of bool.

        A proposal that its own row forbids is never accepted: the grammar is not asked what may follow it, and the
        rows after it are never read. Raises RequestError where the grammar returns no mask.
        """
        rows = np.tile(self.allowed, (len(proposals) + 1, 1))
        if self.settings.grammar is None:
            return rows
        before = list(self.tokens)
        for row, proposal in zip(rows, [*proposals.tolist(), None], strict=True):
            row &= arguments.mask("grammar", self.settings.grammar(tuple(before)), self.public)
            if proposal is None or not row[proposal]:
                break
            before.append(TokenId(proposal))
        return rows

    def keep(self, licensed: Array, own_law: bool) -> int:
        """Append those of the licensed tokens [L] that are kept, and end the request where one of them ends it: N.

        `own_law` tells whether the round's proposals were drawn. Licensed tokens are all that is looked at: a
        rejected proposal ends nothing.

        Clause: STOP-002
        Source: openvinotoolkit/openvino.genai pull 1951.
        """
        stop_ids = np.array(self.settings.stop_ids, dtype=np.int64)
        kept, terminal = stop.preview(licensed, stop_ids, self.remaining, self.profile)
        before = np.array(self.prompt), np.array(self.tokens, dtype=np.int64)
        self.counts = penalties.count(*before, licensed, kept, int(own_law), self.public, self.profile).counts
        self.tokens.extend(TokenId(int(token)) for token in licensed[:kept])
        self.ended = bool(terminal)
        return kept

    def advance(self, done: commit.Round) -> None:
        """Move to the state after a round."""
        self.cache.cut(done.target_rows_kept)
        self.anchor, self.frontier = TokenId(done.next_anchor), Position(done.next_frontier)


def check_pair(target: Target, draft: Draft) -> None:
    """Raise TensorError where the draft cannot read this target's rows."""
    hidden, layers = target.config.hidden_size, target.config.layers
    if draft.config.hidden_size != hidden:
        raise TensorError(f"draft: hidden size {draft.config.hidden_size}, expected the target's {hidden}")
    if max(draft.config.taps) >= layers:
        raise TensorError(f"draft: taps {list(draft.config.taps)}, expected ids below {layers}, the target's blocks")
    if draft.config.mask_id >= target.config.vocab_size:
        raise TensorError(f"draft: mask id {draft.config.mask_id}, expected one below {target.config.vocab_size}")


def _checked(settings: Settings, public: int, length: int, profile: Profile) -> Settings:
    """The settings with Python's own numbers, for a prompt of `length` tokens. Raises RequestError."""
    top_k, min_p, top_p = arguments.filters(settings.top_k, settings.min_p, settings.top_p, profile)
    return replace(
        settings,
        max_new=arguments.integer("max_new", settings.max_new, 1, arguments.COUNT_LIMIT),
        stop_ids=arguments.integers("stop_ids", settings.stop_ids, 0, public - 1),
        temperature=arguments.temperature(settings.temperature),
        seed=arguments.integer("seed", settings.seed, 0, arguments.SEED_LIMIT),
        chunks=arguments.integers("chunks", settings.chunks, 1, length),
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        presence=arguments.penalty("presence", settings.presence, profile),
        frequency=arguments.penalty("frequency", settings.frequency, profile),
    )
