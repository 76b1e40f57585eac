"""The engine loop: prefill, propose, verify, accept, commit, until the request ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from dflash_spec.config import draft_count, read_draft_config, read_target_config
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import block, commit, context, draft, draft2, law, processing, request, rng
from dflash_reference import target as target_model
from dflash_reference.models import Draft, Draft2, Target, draft_of
from dflash_reference.names import Position, TokenId
from dflash_reference.request import Request, Settings


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
    proposal: draft.Proposal | draft2.Proposal | None
    target_logits: Array
    accepted: int
    licensed: Array
    kept: int


class Generation(NamedTuple):
    """The new tokens; and of each round the count that the law accepted, before an end cuts it, and the proposals."""

    tokens: list[TokenId]
    accepted: list[int]
    proposals: list[list[TokenId]]


class Generate(NamedTuple):
    """proposals: [rounds, K] int64, those that were verified, then -1. tokens: [N]. accepted: [rounds]."""

    proposals: Array
    tokens: Array
    accepted: Array


def generate(
    target: Target, draft_model: Draft, prompt: Sequence[int] | Array, settings: Settings, profile: Profile,
    record: Callable[[Round], None] | None = None,
) -> Generation:  # fmt: skip
    """Serve one request of token ids `prompt`, speculatively; `record` is called with each round as it ends.

    Tokens stand at positions that both models have: the capacity is the smaller of their position counts.
    Raises RequestError for a bad argument, ConfigError for a draft count that the profile refuses, TensorError
    where target and draft do not fit, and UnsupportedError where the profile samples its proposals.
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

    Clause: STOP-004
    Source: dflash 0.1.0 dflash_generate.
    """
    ids = np.array(state.prompt, dtype=np.int64)
    chunks = state.settings.chunks or (len(ids),)
    done = target_model.prefill(state.target, state.cache, ids, chunks, taps, state.profile)
    key = rng.plain_keys(len(ids), state.frontier, state.profile).prefill
    state.anchor = choose(state, logits_of(state, done.residuals[-1][-1:]), key)
    state.keep(np.array([state.anchor]))
    return done.features


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
    kept = state.keep(licensed)
    state.advance(commit.commit(anchor, licensed, kept, frontier, state.cache.length, profile))
    captured = target_model.captured(state.target, residuals, model.config.taps, profile)
    round_ = Round(frontier, anchor, extent, pending.features, c, proposal, logits, accepted, licensed, kept)
    return round_, commit.pending(captured, frontier, kept, profile)


def propose(
    state: Request, model: Draft, rows: context.Context, drafts: int, extent: int
) -> draft.Proposal | draft2.Proposal:
    """The proposals of one block, by the draft's own kind, of which the first `extent` will be verified."""
    given = state.target.embedding, target_model.head(state.target), state.anchor, state.frontier, drafts, extent
    if not isinstance(model, Draft2):
        return draft.propose(model, rows, *given, state.public, state.profile)
    u = np.zeros(drafts)
    if state.settings.temperature > 0:
        u = state.uniforms(rng.proposal_keys(state.frontier, drafts, state.profile).keys)
    return draft2.propose(model, rows, *given, state.public, state.settings.temperature, u, state.profile)


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


def choose(state: Request, logits: Array, key: Array) -> TokenId:
    """The target's own next token after logits [1, V]; `key` [3] is that of the draw, if there is one."""
    temperature, profile = state.settings.temperature, state.profile
    if not temperature > 0:
        return TokenId(int(processing.greedy(logits, state.public, profile).tokens[0]))
    support, p = processing.distribution(logits, temperature, state.public, profile)
    return TokenId(int(processing.draw(support, p, state.uniforms(key[np.newaxis]), profile).tokens[0]))


def judge(
    state: Request, proposals: Array, logits: Array, proposal: draft.Proposal | draft2.Proposal | None
) -> law.Verdict:
    """The verdict on proposals [P] by the target's logits [P + 1, V] at the request's temperature.

    Where `proposal` has a law of its own, it is this law that is corrected.
    """
    temperature, profile, frontier, extent = state.settings.temperature, state.profile, state.frontier, len(proposals)
    if not temperature > 0:
        return law.greedy(proposals, processing.greedy(logits, state.public, profile).tokens, profile)
    support, p = processing.distribution(logits, temperature, state.public, profile)
    u_accept = state.uniforms(rng.round_keys(frontier, extent, extent, profile).accept)
    if isinstance(proposal, draft2.Proposal):
        drawn = proposals, proposal.candidates[:extent], proposal.q[:extent], support, p, u_accept
        accepted = law.accepted_sparse(*drawn, profile)
        return law.sparse(*drawn, terminal_uniform(state, extent, accepted), profile)
    accepted = law.accepted_one_hot(proposals, support, p, u_accept)
    return law.one_hot(proposals, support, p, u_accept, terminal_uniform(state, extent, accepted), profile)


def terminal_uniform(state: Request, extent: int, accepted: int) -> float:
    """The uniform of the token that ends the round."""
    key = rng.round_keys(state.frontier, extent, accepted, state.profile).terminal
    return float(state.uniforms(key[np.newaxis])[0])


def decode_plain(target: Target, prompt: Sequence[int] | Array, settings: Settings, profile: Profile) -> list[TokenId]:
    """Serve the request by the target alone, one token at a time. Raises RequestError for a bad argument.

    At temperature 0 these are the tokens of `generate`, as far as the draft has positions; above it, others of the
    same law, since the keys differ.
    """
    state = Request(target, prompt, settings, profile, target.config.max_positions)
    first_token(state, ())
    while not state.ended:
        residuals = target_model.extend(target, state.cache, np.array([state.anchor]), profile)
        key = rng.plain_keys(len(state.prompt), state.frontier, profile).decode
        licensed = np.array([choose(state, logits_of(state, residuals[-1]), key)])
        kept = state.keep(licensed)
        state.advance(commit.commit(state.anchor, licensed, kept, state.frontier, state.cache.length, profile))
    return state.tokens


def generate_op(
    target_config: Array, draft_config: Array, target: dict[str, Array], draft: dict[str, Array], prompt: Array,
    drafts: int, max_new: int, stop_ids: Array, public: int, temperature: float, seed: int, profile: Profile,
) -> Generate:  # fmt: skip
    """The op engine.generate: configs as U8 texts, weights by published name, prompt [T] and stop_ids [E] token ids."""
    config = read_target_config(target_config.astype(np.uint8).tobytes())
    model = draft_of(read_draft_config(draft_config.astype(np.uint8).tobytes(), profile, config), draft)
    settings = Settings(drafts, max_new, tuple(stop_ids.tolist()), public, temperature, seed)
    done = generate(Target(config, target), model, prompt.tolist(), settings, profile)
    proposals = np.full((len(done.accepted), drafts), -1)
    for row, ids in zip(proposals, done.proposals, strict=True):
        row[: len(ids)] = ids
    return Generate(proposals, np.array(done.tokens), np.array(done.accepted, dtype=np.int64))
