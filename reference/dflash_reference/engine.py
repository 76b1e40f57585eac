"""The engine loop: prefill, propose, verify, accept, commit, until the request ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from dflash_spec.config import draft_count
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import block, commit, context, draft, draft2, law, penalties, processing, request, rng
from dflash_reference import target as target_model
from dflash_reference.models import Draft, Draft2, Target
from dflash_reference.names import Position, TokenId
from dflash_reference.request import Request, Settings


class Drawn(NamedTuple):
    """A DFlash proposal whose tokens were drawn: candidates [P, V] are all ids, and q [P, V] is their law in F32.

    The rest as in draft.Proposal.
    """

    layers: tuple[Array, ...]
    hidden: Array
    logits: Array
    proposals: Array
    candidates: Array
    q: Array


Proposal = draft.Proposal | draft2.Proposal | Drawn


@dataclass(frozen=True)
class Round:
    """What one round saw and decided.

    `frontier` is F, the anchor's position, and `extent` is P. `features` [T, n·H] became the context rows `c` [T, H]
    at its start. `proposal` is None where P = 0. `target_logits` is [P + 1, V], `licensed` [accepted + 1].
    """

    frontier: Position
    anchor: TokenId
    extent: int
    features: Array
    c: Array
    proposal: Proposal | None
    target_logits: Array
    accepted: int
    licensed: Array
    kept: int


class Generation(NamedTuple):
    """The new tokens; and of each round the count that the law accepted, before an end cuts it, and the proposals."""

    tokens: list[TokenId]
    accepted: list[int]
    proposals: list[list[TokenId]]


def generate(
    target: Target, draft_model: Draft, prompt: Sequence[int] | Array, settings: Settings, profile: Profile,
    record: Callable[[Round], None] | None = None,
) -> Generation:  # fmt: skip
    """Serve one request of token ids `prompt`, speculatively; `record` is called with each round as it ends.

    Tokens stand at positions that both models have: the capacity is the smaller of their position counts.
    Raises RequestError for a bad argument, ConfigError for a draft count that the profile refuses, and TensorError
    where target and draft do not fit, or where a row of logits cannot be sampled.
    """
    request.check_pair(target, draft_model)
    drafts = draft_count(profile, draft_model.config.block_size, settings.drafts)
    capacity = min(target.config.max_positions, draft_model.config.max_positions)
    state = Request(target, prompt, settings, profile, capacity)
    rows = context.Context(draft_model.config)
    features = first_token(state, draft_model.config.taps)
    pending = commit.pending(features, Position(0), len(state.prompt), profile)
    generation = Generation(state.tokens, [], [])
    while not state.ended:
        round_, pending = play_round(state, draft_model, rows, pending, drafts)
        generation.accepted.append(round_.accepted)
        generation.proposals.append(
            [] if round_.proposal is None else round_.proposal.proposals[: round_.extent].tolist()
        )
        if record is not None:
            record(round_)
    return generation


def first_token(state: Request, taps: Sequence[int]) -> Array:
    """Prefill, and keep the token that follows the prompt, which may end the request: the features [T, n·H].

    Of a prompt whose first tokens the cache holds, only the T others are fed.

    Clause: STOP-004
    Source: dflash 0.1.0 dflash_generate.
    """
    ids = np.array(state.prompt[state.cache.length :], dtype=np.int64)
    features = np.zeros((0, len(taps) * state.target.config.hidden_size))
    if len(ids):
        chunks = state.settings.chunks or (len(ids),)
        done = target_model.prefill(state.target, state.cache, ids, chunks, taps, state.profile)
        features, state.tail = done.features, done.residuals[-1][-1]
    key = rng.plain_keys(len(state.prompt), state.frontier, state.profile).prefill
    state.anchor = choose(state, logits_of(state, state.tail[np.newaxis]), key)
    state.keep(np.array([state.anchor]), own_law=True)
    return features


def play_round(
    state: Request, model: Draft, rows: context.Context, pending: commit.Pending, drafts: int
) -> tuple[Round, commit.Pending]:
    """One round from the anchor on; `pending` are the feature rows that the context lacks, before and after."""
    frontier, anchor, profile = state.frontier, state.anchor, state.profile
    c = catch_up(model, rows, pending, profile)
    extent = block.extent(drafts, state.remaining, state.capacity, frontier, profile).extent
    proposal = propose(state, model, rows, drafts, extent) if extent else None
    proposals = np.zeros(0, dtype=np.int64) if proposal is None else proposal.proposals[:extent]
    ids = block.verify_inputs(anchor, proposals, frontier, extent, profile).ids
    residuals = target_model.extend(state.target, state.cache, ids, profile)
    logits = logits_of(state, residuals[-1])
    accepted, licensed = judge(state, proposals, logits, proposal)
    licensed = licensed[: accepted + 1]
    kept = state.keep(licensed, has_law(proposal))
    state.tail = commit.continuation(residuals[-1], kept, state.tail)
    state.advance(commit.commit(anchor, licensed, kept, frontier, state.cache.length, profile))
    captured = target_model.captured(state.target, residuals, model.config.taps, profile)
    round_ = Round(frontier, anchor, extent, pending.features, c, proposal, logits, accepted, licensed, kept)
    return round_, commit.pending(captured, frontier, kept, profile)


def propose(state: Request, model: Draft, rows: context.Context, drafts: int, extent: int) -> Proposal:
    """The proposals of one block, by the draft's own kind, of which the first `extent` will be verified."""
    given = state.target.embedding, target_model.head(state.target), state.anchor, state.frontier, drafts, extent
    greedy = processing.is_greedy(state.settings.temperature, state.profile)
    if isinstance(model, Draft2):
        temperature = 0.0 if greedy else state.settings.temperature
        u = np.zeros(drafts) if greedy else proposal_uniforms(state, drafts)
        return draft2.propose(model, rows, *given, state.public, temperature, u, state.profile)
    done = draft.propose(model, rows, *given, state.public, state.profile)
    return done if greedy or state.profile.axes["proposal"] == "argmax" else draw_proposals(state, done)


def draw_proposals(state: Request, done: draft.Proposal) -> Drawn:
    """The proposals of a DFlash block drawn anew, each from its own row, filtered as the request asks for."""
    asked, rows = state.settings, processing.public_columns(done.logits, state.public)
    own = asked.temperature, asked.top_k, asked.top_p, proposal_uniforms(state, len(rows))
    proposals, q = processing.propose(rows, *own, state.profile)
    return Drawn(done.layers, done.hidden, done.logits, proposals, np.tile(np.arange(q.shape[1]), (len(q), 1)), q)


def proposal_uniforms(state: Request, count: int) -> Array:
    """The uniforms of the first `count` proposals of a block."""
    return state.uniforms(rng.proposal_keys(state.frontier, count, state.profile).keys)


def has_law(proposal: Proposal | None) -> bool:
    """Whether the tokens of a proposal have a law of their own, and are not each certain."""
    return isinstance(proposal, draft2.Proposal | Drawn)


def catch_up(model: Draft, rows: context.Context, pending: commit.Pending, profile: Profile) -> Array:
    """Bring the context up to the frontier before anything is proposed from there: the rows added, c [T, H].

    Clause: CTX-010
    Source: NInfer docs/maintainer/dflash.md, proposal.
    """
    return context.materialise(model, rows, pending.features, pending.positions, profile)


def logits_of(state: Request, x: Array) -> Array:
    """The target's logits [R, V] of its last residual rows x [R, H]."""
    target = state.target
    return target_model.logits(x, target.norm, target_model.head(target), target.config.eps, state.profile).logits


def adjusted(state: Request, logits: Array, proposals: Array) -> Array:
    """What is sampled of the target's logits [P + 1, V] of a pass that verifies proposals [P], [P + 1, V].

    Masks and counts of a row are those of plain decoding after the proposals before it.
    """
    profile, unused = state.profile, logits.shape[1] - state.public
    allowed = np.pad(state.allowed_after(proposals), ((0, 0), (0, unused)))
    overlay = penalties.overlay(state.anchor, proposals, profile).overlay
    fined = state.settings.presence, state.settings.frequency
    counts = np.pad(state.counts, (0, unused))
    return penalties.adjust(logits, state.public, allowed, counts, overlay, *fined, profile).adjusted


def distribution(state: Request, rows: Array) -> processing.Filtered:
    """What the request's temperature and filters make of adjusted logits [R, V]."""
    asked = state.settings
    return processing.supported(rows, asked.temperature, asked.top_k, asked.min_p, asked.top_p, state.profile)


def choose(state: Request, logits: Array, key: Array) -> TokenId:
    """The target's own next token after logits [1, V]; `key` [3] is that of the draw, if there is one."""
    rows = adjusted(state, logits, np.zeros(0, dtype=np.int64))
    choice = processing.choose(rows, state.settings.temperature, state.profile)
    if choice.greedy:
        return TokenId(int(choice.tokens[0]))
    law_ = distribution(state, rows)
    return TokenId(int(processing.draw(law_.support, law_.p, state.uniforms(key[np.newaxis]), state.profile).tokens[0]))


def judge(state: Request, proposals: Array, logits: Array, proposal: Proposal | None) -> law.Verdict:
    """The verdict on proposals [P] by the target's logits [P + 1, V] as the request asks for.

    Where `proposal` has a law of its own, it is this law that is corrected.
    """
    profile, frontier, extent = state.profile, state.frontier, len(proposals)
    rows = adjusted(state, logits, proposals)
    choice = processing.choose(rows, state.settings.temperature, profile)
    if choice.greedy:
        return law.greedy(proposals, choice.tokens, profile)
    support, p = distribution(state, rows)[2:]
    if profile.axes["accept_test"] == "match":
        return law.match(proposals, support, p, match_uniforms(state, extent + 1), profile)
    u_accept = state.uniforms(rng.round_keys(frontier, extent, extent, profile).accept)
    if isinstance(proposal, draft2.Proposal | Drawn):
        drawn = proposals, proposal.candidates[:extent], proposal.q[:extent], support, p, u_accept
        accepted = law.accepted_sparse(*drawn, profile)
        return law.sparse(*drawn, terminal_uniform(state, extent, accepted), profile)
    accepted = law.accepted_one_hot(proposals, support, p, u_accept)
    return law.one_hot(proposals, support, p, u_accept, terminal_uniform(state, extent, accepted), profile)


def match_uniforms(state: Request, rows: int) -> Array:
    """The uniforms of the target's own draw in each of `rows` rows: those that plain steps at their positions take."""
    steps = [rng.plain_keys(len(state.prompt), state.frontier + row, state.profile).decode for row in range(rows)]
    return state.uniforms(np.stack(steps))


def terminal_uniform(state: Request, extent: int, accepted: int) -> Any:
    """The uniform of the token that ends the round."""
    key = rng.round_keys(state.frontier, extent, accepted, state.profile).terminal
    return state.uniforms(key[np.newaxis])[0]


def decode_plain(target: Target, prompt: Sequence[int] | Array, settings: Settings, profile: Profile) -> list[TokenId]:
    """Serve the request by the target alone, one token at a time. Raises RequestError for a bad argument.

    Where decoding is greedy, or proposals are matched with the target's own draws, these are the tokens of
    `generate`, as far as the draft has positions; elsewhere others of the same law, since the keys differ.
    """
    state = Request(target, prompt, settings, profile, target.config.max_positions)
    first_token(state, ())
    while not state.ended:
        residuals = target_model.extend(target, state.cache, np.array([state.anchor]), profile)
        key = rng.plain_keys(len(state.prompt), state.frontier, profile).decode
        licensed = np.array([choose(state, logits_of(state, residuals[-1]), key)])
        kept = state.keep(licensed, own_law=True)
        state.advance(commit.commit(state.anchor, licensed, kept, state.frontier, state.cache.length, profile))
    return state.tokens
