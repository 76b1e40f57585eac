"""The reference's engine on keyed rows: its own code for every decision, exact laws in place of FP32 ones.

Models are replaced by `model`, and a request's uniforms by those of `symbolic`. What is left is the code under proof:
extent, penalties, masks, filters, proposals, verification, counts, stops, budget, and the keys of all draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
from dflash_reference import block, commit, draft, draft2, engine, processing, rng, selector
from dflash_reference.names import Position, TokenId
from dflash_reference.request import Request, Settings
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, patched
from dflash_vectors.law import model
from dflash_vectors.law.configs import BACKENDS, FILTERS, PENALTIES, TEMPERATURES, Config
from dflash_vectors.law.symbolic import Draws

CAPACITY = 1000
SEED = 20_260_701
Identity = Callable[[tuple[int, ...]], int]
"""Which uniform a draw with a key (position, purpose, sub-index) takes."""


def settings_of(config: Config) -> Settings:
    """What a request asks for, behind the names of its levels."""
    filter_, penalty = FILTERS[config.filter], PENALTIES[config.penalty]
    return Settings(
        config.drafts, 1 + config.budget, tuple(sorted(model.stop_ids(config))), config.vocabulary,
        TEMPERATURES[config.temperature], SEED, (), filter_.top_k, filter_.top_p, filter_.min_p,
        penalty.presence, penalty.frequency, None, _grammar(config) if penalty.mask == "moving" else None,
    )  # fmt: skip


def _grammar(config: Config) -> Callable[[Sequence[TokenId]], Array]:
    return lambda before: model.allowed_ids(config, tuple(before))


def hashed(key: tuple[int, ...]) -> int:
    """The 64 bits that the reference makes of a key: draws with equal bits are one draw."""
    return int(rng.draw_key(SEED, *key)[0])


class Lane(Request):
    """A request after its prefill, whose uniforms are those of `draws`."""

    def __init__(self, config: Config, identity: Identity, draws: Draws, emitted: tuple[int, ...], counts: Array):
        self.config, self._identity, self._draws = config, identity, draws
        self.profile, self.capacity = load_profile(BACKENDS[config.backend].profile), CAPACITY
        self.public, self.prompt, self.settings = config.vocabulary, model.PROMPT, settings_of(config)
        fixed = PENALTIES[config.penalty].mask == "fixed"
        self.allowed = model.allowed_ids(config, ()) if fixed else np.ones(self.public, dtype=np.bool_)
        self.budget = 1 + config.budget
        self.frontier = Position(len(self.prompt) + len(emitted) - 1)
        self.tokens = [TokenId(token) for token in emitted]
        self.anchor = self.tokens[-1] if self.tokens else TokenId(-1)
        self.counts, self.ended = counts, False

    def uniforms(self, keys: Array) -> Array:
        """The uniforms [N] of draws with the given keys [N, 3], as numbers that do not know their values."""
        held = np.empty(len(keys), dtype=object)
        held[:] = [self._draws.uniform(self._identity(tuple(key))) for key in keys.tolist()]
        return held

    def logits(self, proposals: Array) -> Array:
        """The target's logits [P + 1, V and padding] of a pass that verifies proposals [P]."""
        text = (*self.prompt, *self.tokens)
        drafts = tuple(proposals.tolist())
        return np.array([model.target_logits(self.public, text + drafts[:row]) for row in range(len(drafts) + 1)])

    def any_chain(self, extent: int) -> Array:
        """Proposals [P] that can be any ids, each as likely as another."""
        coins = [self._draws.uniform(f"proposal {slot}") for slot in range(extent)]
        ends = [Fraction(token + 1, self.public) for token in range(self.public)]
        return np.array([next(token for token, end in enumerate(ends) if coin < end) for coin in coins], np.int64)

    def advance(self, done: commit.Round) -> None:
        """Move to the state after a round; the target has no cache here."""
        self.anchor, self.frontier = TokenId(done.next_anchor), Position(done.next_frontier)


def play_round(lane: Lane) -> int:
    """One round, as engine.play_round has it: the accepted count. The lane is then after the round."""
    extent = block.extent(lane.config.drafts, lane.remaining, CAPACITY, lane.frontier, lane.profile).extent
    proposal = propose(lane, extent) if extent else None
    proposals = np.zeros(0, dtype=np.int64) if proposal is None else proposal.proposals[:extent]
    accepted, licensed = engine.judge(lane, proposals, lane.logits(proposals), proposal)
    _keep(lane, licensed[: accepted + 1], engine.has_law(proposal), extent + 1)
    return int(accepted)


def play_plain(lane: Lane, key: Array) -> None:
    """One token by the target alone, as engine.decode_plain and engine.first_token have it."""
    token = engine.choose(lane, lane.logits(np.zeros(0, dtype=np.int64)), key)
    _keep(lane, np.array([token], dtype=np.int64), True, 1)


def _keep(lane: Lane, licensed: Array, own_law: bool, rows: int) -> None:
    kept = lane.keep(licensed, own_law)
    lane.advance(commit.commit(lane.anchor, licensed, kept, lane.frontier, lane.frontier + rows, lane.profile))


def propose(lane: Lane, extent: int) -> engine.Proposal:
    """The block of the lane's kind of draft, as engine.propose has it."""
    text, drafter = (*lane.prompt, *lane.tokens), BACKENDS[lane.config.backend].drafter
    if drafter == "selector":
        return walk(lane, text)
    logits = np.array([model.draft_logits(lane.config, text, slot) for slot in range(extent)])
    chosen = lane.any_chain(extent) if drafter == "any" else np.argmax(logits, axis=1)
    done = draft.Proposal((), logits, logits, chosen)
    if drafter in ("argmax", "any"):
        return done
    if lane.profile.axes["proposal"] == "sampled":
        return engine.draw_proposals(lane, done)
    u = engine.proposal_uniforms(lane, extent)
    proposals, q = processing.propose(logits, lane.settings.temperature, 0, 1.0, u, load_profile("zlab"))
    return engine.Drawn((), logits, logits, proposals, np.tile(np.arange(lane.public), (extent, 1)), q)


def walk(lane: Lane, text: tuple[int, ...]) -> draft2.Proposal:
    """A walk through the candidates of K slots, as selector.walk has it, on scores by the token before."""
    drafts, before, u = lane.config.drafts, int(lane.anchor), engine.proposal_uniforms(lane, lane.config.drafts)
    ids = np.array([model.candidates(lane.config, text, slot) for slot in range(drafts)])
    unary = np.array([model.draft_logits(lane.config, text, slot)[row] for slot, row in enumerate(ids)])
    scores, q = np.zeros(ids.shape), np.empty(ids.shape, dtype=object)
    proposals = np.zeros(drafts, dtype=np.int64)
    for slot in range(drafts):
        scores[slot] = model.edge_scores(lane.config, text, slot, before)
        chosen, q[slot] = selector.step_of(scores[slot], lane.settings.temperature, u[slot], lane.profile)
        before = proposals[slot] = int(ids[slot, chosen])
    return draft2.Proposal((), unary, ids, unary, unary, scores, proposals, q)


def normalised(p: Any) -> Array:
    """Rows of FP32 probabilities [..., S] as Fractions that add up to 1; rows that do already stay as they are."""
    rows = np.asarray(p)
    flat = rows.reshape(-1, rows.shape[-1])
    held = np.empty(flat.shape, dtype=object)
    for index, row in enumerate(flat.tolist()):
        weights = [Fraction(weight) for weight in row]
        total = sum(weights)
        held[index] = [weight / total for weight in weights] if total else weights
    return held.reshape(rows.shape)


def as_they_are(p: Any) -> Array:
    """Rows of FP32 probabilities [..., S] as the Fractions that they are; they add up to nearly 1."""
    rows = np.asarray(p)
    held = np.empty(rows.size, dtype=object)
    held[:] = [Fraction(weight) for weight in rows.ravel().tolist()]
    return held.reshape(rows.shape)


@contextmanager
def exact_rows(made: Callable[[Any], Array]) -> Iterator[None]:
    """Every law that the reference computes is a row of Fractions, `made` of FP32 probabilities, and computed once."""

    def supported(true: Function) -> Function:
        return remembered(lambda *given: (done := true(*given))._replace(p=made(done.p)))

    def softened(true: Function) -> Function:
        return remembered(lambda *given: made(true(*given)))

    with ExitStack() as stack:
        for target, replacement in (
            ("dflash_reference.processing.supported", supported),
            ("dflash_reference.selector.softened", softened),
            ("dflash_reference.penalties.adjust", remembered),
        ):
            stack.enter_context(patched(target, replacement))
        yield


def remembered(function: Function) -> Function:
    """The function, which runs once for equal arguments."""
    known: dict[tuple[Any, ...], Any] = {}

    def recalled(*given: Any) -> Any:
        key = tuple((value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value for value in given)
        if key not in known:
            known[key] = function(*given)
        return known[key]

    return recalled
