"""Requests decoded together: each gets what it gets alone, whoever its neighbours are and wherever it stands.

What is guaranteed, and shown here: nothing but a matrix product joins rows of several requests. With products whose
sums do not depend on the other rows, as the kernels in C have them, every stage of every round is bit for bit what it
is alone. PyTorch's library promises no such thing; with it tokens are equal where the logits leave a margin, as on
planted pairs, and rows differ by what the order of an FP32 sum can do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_accelerated import Engine, Generation, Request, Round, RoundTrace
from dflash_accelerated.native import available
from dflash_spec.errors import RequestError
from dflash_spec.tensors import Array
from dflash_vectors.planted import Planted

Load = Callable[..., Engine]
Pairs = Callable[..., tuple[Path, Planted]]

PROFILES: dict[str, dict[str, Any]] = {"zlab": {}, "ninfer": {"profile": "ninfer", "dtype": torch.bfloat16}}
DRAFTS = 5
needs_compiler = pytest.mark.skipif(not available(), reason="no C compiler")


def varied(said: tuple[int, ...]) -> Array:
    """No token stands next to itself."""
    return np.isin(np.arange(67), said[-1:], invert=True)


EVENS = range(0, 67, 2)
MIXED: dict[str, tuple[dict[str, Any], ...]] = {
    "zlab": (
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 11, "top_p": 0.8},
        {"temperature": 0.0, "draft_tokens": 2, "allowed_tokens": EVENS},
        {"temperature": 1.3, "seed": 2**64 - 1, "draft_tokens": 1},
        {"temperature": 1e-3, "seed": 3, "grammar": varied},
        {"temperature": 1.0, "seed": 11, "draft_tokens": 4, "top_k": 7, "top_p": 0.95},
        {"temperature": 0.5, "seed": 5, "prefill_chunk": 3, "top_k": 40},
        {"temperature": 2.0, "seed": 8, "draft_tokens": 0, "allowed_tokens": EVENS, "grammar": varied},
    ),
    "ninfer": (
        {"temperature": 0.0, "frequency_penalty": 0.75},
        {"temperature": 0.7, "seed": 11, "presence_penalty": 0.5, "min_p": 0.1},
        {"temperature": 0.0, "draft_tokens": 2},
        {"temperature": 1.3, "seed": 2**64 - 1, "draft_tokens": 1, "top_p": 0.6},
        {"temperature": 1e-3, "seed": 3, "grammar": varied, "presence_penalty": -2.0},
        {"temperature": 1.0, "seed": 11, "draft_tokens": 4, "top_k": 7, "top_p": 0.95},
        {"temperature": 0.5, "seed": 5, "prefill_chunk": 3},
        {"temperature": 2.0, "seed": 8, "draft_tokens": 0, "allowed_tokens": EVENS, "frequency_penalty": 1.5},
    ),
}
"""Eight requests of each profile that differ in what they may differ in."""


def asked(engine: Engine, traces: list[list[RoundTrace]] | None = None) -> list[Request]:
    """Eight requests of unequal prompts and budgets; `traces` gets a list of each one's rounds."""
    requests = []
    for at, options in enumerate(MIXED[engine.numerics.profile.name]):
        prompt = [(7 * at + 5 * place * place) % 67 for place in range(3 + 2 * at)]
        log: list[RoundTrace] = []
        if traces is not None:
            traces.append(log)
        requests.append(engine.request(prompt, 9 + (5 * at) % 11, stop_ids=[], observer=log.append, **options))
    return requests


def alone(engine: Engine, request: Request) -> Generation:
    (made,) = engine.generate_batch([request])
    return made


def same(one: list[RoundTrace], other: list[RoundTrace]) -> bool:
    return len(one) == len(other) and all(
        (a.frontier, a.anchor, list(a.stages)) == (b.frontier, b.anchor, list(b.stages))
        and all(torch.equal(a.stages[name], b.stages[name]) for name in a.stages)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.usefixtures("products_row_by_row")
@pytest.mark.parametrize("kernels", ["torch", pytest.param("native", marks=needs_compiler)])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
def test_every_stage_of_a_request_is_bit_for_bit_what_it_is_alone(
    random_pair: Path, random_pair2: Path, load: Load, second: bool, profile: str, kernels: str
) -> None:
    """With PyTorch's kernels where products are made row by row; those in C multiply so themselves."""
    pair = random_pair2 if second else random_pair
    engine = load(pair, draft_tokens=DRAFTS, kernels=kernels, **PROFILES[profile])
    traces: list[list[RoundTrace]] = []
    single = [alone(engine, each) for each in asked(engine, traces)]
    assert {len(each.accepted) for each in single} != {1}
    for size, seed in ((8, 0), (8, 1), (5, 2), (2, 3)):
        joint: list[list[RoundTrace]] = []
        requests = asked(engine, joint)
        order = random.Random(seed).sample(range(len(requests)), size)
        made = engine.generate_batch([requests[at] for at in order])
        assert made == [single[at] for at in order]
        assert all(same(joint[at], traces[at]) for at in order)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
def test_an_engine_that_has_served_others_serves_a_request_as_a_new_one_does(
    random_pair: Path, random_pair2: Path, load: Load, second: bool, profile: str
) -> None:
    """Alone in both, so that every product has the same shape: what the others left in buffers and counts is all."""
    new, old = (load(random_pair2 if second else random_pair, draft_tokens=DRAFTS, **PROFILES[profile]) for _ in "12")
    old.generate_batch(asked(old)[::-1])
    for at in range(8):
        stream = old.stream([7, 7, at], 30, seed=at, **MIXED[profile][0])
        next(stream)
        next(stream)
        assert alone(old, asked(old)[at]) == alone(new, asked(new)[at])
        stream.close()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
def test_with_the_librarys_products_tokens_and_counts_hold_where_logits_leave_a_margin(
    planted_pair: Pairs, load: Load, backend: str, profile: str
) -> None:
    folder, plan = planted_pair("standard", backend)
    engine = load(folder, draft_tokens=15, public_tokens=plan.public, kernels="torch", **PROFILES[profile])
    requests = [
        engine.request(prompt, 23 + 9 * at, draft_tokens=(15, 4, 9, 1)[at]) for at, prompt in enumerate(plan.prompts)
    ]
    single = [alone(engine, each) for each in requests]
    for seed in range(3):
        order = random.Random(seed).sample(range(4), 4 - seed)
        assert engine.generate_batch([requests[at] for at in order]) == [single[at] for at in order]
    assert [list(each.tokens) for each in single] == [
        plan.continuation(prompt, 23 + 9 * at) for at, prompt in enumerate(plan.prompts)
    ]


def test_requests_past_the_places_wait_their_turn(random_pair2: Path, load: Load) -> None:
    engine = load(random_pair2, draft_tokens=3, max_batch=2)
    requests = [engine.request([5, 6, 7 + at], 4 + at, stop_ids=[]) for at in range(5)]
    tickets = [engine.submit(each) for each in requests]
    rounds: dict[int, list[Round]] = {ticket: [] for ticket in tickets}
    while any(not each or each[-1].finish_reason is None for each in rounds.values()):
        made = engine.step()
        assert 1 <= len(made) <= 2
        for ticket, latest in made.items():
            rounds[ticket].append(latest)
    assert [Generation.of(rounds[ticket]) for ticket in tickets] == [alone(engine, each) for each in requests]
    assert engine.step() == {}


def test_a_cancelled_request_leaves_the_others_as_they_are(random_pair2: Path, load: Load) -> None:
    engine = load(random_pair2, draft_tokens=3, max_batch=2)
    requests = [engine.request([9, 8, at], 12, stop_ids=[]) for at in range(3)]
    first, second, third = (engine.submit(each) for each in requests)
    rounds = [engine.step()]
    engine.cancel(first)
    with pytest.raises(RequestError, match=f"ticket {first}"):
        engine.cancel(first)
    while made := engine.step():
        rounds.append(made)
    for ticket, request in ((second, requests[1]), (third, requests[2])):
        own = [made[ticket] for made in rounds if ticket in made]
        assert Generation.of(own) == alone(engine, request)
    assert sum(first in made for made in rounds) == 1
    engine.cancel(engine.submit(requests[0]))
    assert engine.step() == {}


def test_a_joint_round_runs_each_model_once(planted_pair: Pairs, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, plan = planted_pair("standard", "dflash2")
    engine = load(folder, draft_tokens=6, public_tokens=plan.public)
    tickets = [engine.submit(engine.request(prompt, 20)) for prompt in plan.prompts]
    engine.step()
    sizes = []
    for model, name in ((engine.target, "forward"), (engine.draft, "propose"), (engine.draft, "append")):
        original = getattr(model, name)

        def counted(items: Any, *rest: Any, original: Any = original) -> Any:
            sizes.append(len(items))
            return original(items, *rest)

        monkeypatch.setattr(model, name, counted)
    assert set(engine.step()) == set(tickets)
    assert sizes == [4, 4, 4]
    for ticket in tickets:
        engine.cancel(ticket)
