"""The engine as a party of a measurement: requests that go on, a joint round at a time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from dflash_accelerated import Engine
from dflash_accelerated.chain import ChainOrchestrator
from dflash_accelerated.kernels import Choice
from dflash_accelerated.requests import Round, Running
from dflash_spec.errors import UnsupportedError

from dflash_vectors.bench.harness import Clock, quiet
from dflash_vectors.bench.pairs import Pair

PLACES = 8
ENDLESS = 100_000

Advance = Callable[[], list[Round]]
"""One joint round of requests that go on."""


def load(pair: Pair, *, kernels: Choice, device: torch.device, chunk: int | None, longest: int) -> Engine:
    """The engine of a pair, for eight requests of `longest` tokens. Raises what `Engine.from_pretrained` raises."""
    more: dict[str, Any] = {} if chunk is None else {"prefill_chunk": chunk}
    return Engine.from_pretrained(
        pair.target, pair.draft, dtype=torch.bfloat16, max_batch=PLACES, max_context=longest, device=device,
        kernels=kernels, **more,
    )  # fmt: skip


@contextmanager
def rounds(engine: Engine, prompts: Sequence[Sequence[int]]) -> Iterator[Advance]:
    """A call that advances all of these requests by one joint round; it gives the rounds. They are dropped after."""
    tickets = [engine.submit(engine.request(prompt, ENDLESS, stop_ids=[])) for prompt in prompts]

    def advance() -> list[Round]:
        return going(list(engine.step().values()))

    try:
        advance()  # reads the prompts
        advance()  # makes them the draft's context
        yield advance
    finally:
        for ticket in tickets:
            engine.cancel(ticket)


@contextmanager
def steps(engine: Engine, prompts: Sequence[Sequence[int]]) -> Iterator[Advance]:
    """The same in plain decoding: one token of each request, by the target alone."""
    plain = ChainOrchestrator(engine.target, None, engine.numerics, len(prompts))
    running = [plain.start(engine.request(prompt, ENDLESS, stop_ids=[]))[0] for prompt in prompts]
    try:
        yield lambda: going(plain.round(running))
    finally:
        for each in running:
            plain.close(each)


def going(made: list[Round]) -> list[Round]:
    """Rounds of requests that go on. Raises UnsupportedError, or its own error, where one has ended."""
    for each in made:
        if each.error:
            raise each.error
        if each.finish_reason:
            raise UnsupportedError(f"a request ended ({each.finish_reason}) while it was timed, expected it to go on")
    return made


def prefill(engine: Engine, prompt: Sequence[int], clock: Clock, later: int = 3) -> float:
    """Seconds that a prompt takes, its draft's context included: all until its second round, less a later one."""
    with quiet():
        began = clock.now()
        ticket = engine.submit(engine.request(prompt, ENDLESS, stop_ids=[]))
        going(list(engine.step().values()))
        engine.step()
        whole = clock.now() - began
        spent = []
        for _ in range(later):
            before = clock.now()
            going(list(engine.step().values()))
            spent.append(clock.now() - before)
        engine.cancel(ticket)
    return whole - statistics.median(spent)


@contextmanager
def alone(engine: Engine, prompts: Sequence[Sequence[int]]) -> Iterator[list[Advance]]:
    """Block rounds of each of these requests on its own; they are dropped after."""
    chain = ChainOrchestrator(engine.target, engine.draft, engine.numerics, len(prompts))
    running = [chain.start(engine.request(prompt, ENDLESS, stop_ids=[]))[0] for prompt in prompts]

    def advancing(one: Running) -> Advance:
        return lambda: going(chain.round([one]))

    try:
        yield [advancing(each) for each in running]
    finally:
        for each in running:
            chain.close(each)
