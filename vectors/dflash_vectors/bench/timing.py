"""Steps, rounds and prompts, beside the authors' package and beside the bare products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from dflash_accelerated import Engine

from dflash_vectors.bench import ours
from dflash_vectors.bench.figures import BARE, OURS, PEER, Figure
from dflash_vectors.bench.harness import Call, Clock, Plan, Turns
from dflash_vectors.bench.pairs import Pair
from dflash_vectors.bench.peer import Peer
from dflash_vectors.bench.products import Bare

PROMPTS = 3
"""Prompts that are read to time the prefill: as many turns as this, for they take long."""


@dataclass(frozen=True)
class Party:
    """A pair, loaded by everyone. Without a `peer` the engine is timed beside its own products alone."""

    pair: Pair
    engine: Engine
    peer: Peer | None
    bare: Bare
    clock: Clock
    device: torch.device

    @property
    def accepted(self) -> int:
        """What a round of the timed text accepts."""
        return int(self.pair.timed) if self.pair.timed.isdigit() else 0


def starting(context: int, plan: Plan, tokens: int) -> int:
    """Tokens of a prompt from which `plan`, of `tokens` tokens a call, reaches as far below the context as above."""
    return max(64, context - plan.turns * (plan.calls + 1) * tokens // 2)


def step(party: Party, context: int, plan: Plan) -> Figure:
    """A plain step of one request."""
    prompt = party.pair.prompt(starting(context, plan, 1))
    with ours.steps(party.engine, [prompt]) as advance:
        turns = Turns({OURS: advance, BARE: party.bare.step(1, party.device)}, plan, party.clock)
        seconds = _beside(party, prompt, plan, turns, plain=True)
    return Figure("step", party.pair.backend, context, 1, seconds)


def round_(party: Party, context: int, plan: Plan) -> Figure:
    """A block round of one request."""
    prompt = party.pair.prompt(starting(context, plan, party.accepted + 1))
    with ours.rounds(party.engine, [prompt]) as advance:
        bare = party.bare.round(1, party.accepted, party.device)
        turns = Turns({OURS: advance, BARE: bare}, plan, party.clock)
        seconds = _beside(party, prompt, plan, turns, plain=False)
    return Figure("round", party.pair.backend, context, 1, seconds)


def _beside(party: Party, prompt: list[int], plan: Plan, turns: Turns, plain: bool) -> dict[str, list[float]]:
    """The turns of everyone, in turns with the peer's where there is one."""
    if party.peer is None:
        return turns.all()
    if plain:
        theirs = party.peer.steps(prompt, plan, party.clock, turns.once)
    else:
        theirs, _ = party.peer.rounds(prompt, plan, party.clock, turns.once)
    return {PEER: theirs, **turns.seconds}


def prefill(party: Party, context: int, plan: Plan) -> Figure:
    """A token of a prompt of `context` tokens; in fewer turns than a plan of many has."""
    prompt = party.pair.prompt(context)
    seconds: dict[str, list[float]] = {PEER: [], OURS: []} if party.peer else {OURS: []}
    for _ in range(min(PROMPTS, plan.turns)):
        if party.peer:
            seconds[PEER].append(party.peer.prefill(prompt, party.clock) / context)
        seconds[OURS].append(ours.prefill(party.engine, prompt, party.clock) / context)
    return Figure("prefill", party.pair.backend, context, 1, seconds)


def batches(party: Party, context: int, wanted: Iterable[tuple[str, int]], plan: Plan) -> Iterator[Figure]:
    """Steps or rounds, each with as many requests in joint forwards as `wanted` says."""
    for what, batch in wanted:
        yield _batch(party, what, context, batch, plan)


def _batch(party: Party, what: str, context: int, batch: int, plan: Plan) -> Figure:
    plain = what == "step"
    tokens = 1 if plain else party.accepted + 1
    prompts = [party.pair.prompt(starting(context, plan, tokens) + place) for place in range(batch)]
    opened = ours.steps if plain else ours.rounds
    bare = party.bare.step(batch, party.device) if plain else _bare_round(party, batch)
    with ExitStack() as stack:
        parties: dict[str, Call] = {OURS: stack.enter_context(opened(party.engine, prompts)), BARE: bare}
        return Figure(what, party.pair.backend, context, batch, Turns(parties, plan, party.clock).all())


def _bare_round(party: Party, batch: int) -> Call:
    return party.bare.round(batch, party.accepted, party.device)
