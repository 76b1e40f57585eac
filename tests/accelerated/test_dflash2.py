"""DFlash2 in the engine: DFlash, except in named functions; its rings, its path, and the law that drew it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_accelerated import Engine, Numerics, RoundTrace
from dflash_accelerated.models.dflash import DFlashDraft
from dflash_accelerated.models.dflash2 import DFlash2Draft
from dflash_accelerated.ops import acceptance, filters, head, materialize, selector
from dflash_accelerated.ops.attention import Spans
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.random import keys, uniforms
from dflash_accelerated.protocols import ContextRows
from dflash_accelerated.rings import Rings, lane_bytes
from dflash_accelerated.settings import Sampling, SettingRows
from dflash_spec.errors import RequestError
from dflash_spec.registry import load_profile
from dflash_vectors.planted import Planted
from torch import Tensor

Load = Callable[..., Engine]
Pairs = Callable[..., tuple[Path, Planted]]

CPU = torch.device("cpu")
NONE = Product([torch.empty(0, 0)], Numerics.of(load_profile("zlab")))
PROFILES: dict[str, dict[str, Any]] = {
    "zlab": {},
    "zlab-bf16": {"dtype": torch.bfloat16},
    "ninfer": {"profile": "ninfer", "dtype": torch.bfloat16},
}
PROMPT = [9, 31, 2, 50, 50, 7, 12]


def test_dflash2_is_dflash_except_in_these_functions() -> None:
    own = {name for name, member in vars(DFlash2Draft).items() if callable(member)}
    accounts = {"held_bytes", "planned_bytes", "products", "_rooms"}
    assert own - accounts == {
        "__init__", "open", "reserve", "_places", "_staged", "_columns", "_controls", "_found", "_choose",
        "_ends", "_uniforms",
    }  # fmt: skip
    assert own - vars(DFlashDraft).keys() == {"_uniforms"}


@pytest.mark.parametrize("drafts", [1, 4, 15])
@pytest.mark.parametrize("profile", PROFILES)
def test_any_width_gives_the_tokens_and_counts_that_the_pair_was_planted_for(
    planted_pair: Pairs, load: Load, profile: str, drafts: int
) -> None:
    folder, plan = planted_pair("standard", "dflash2")
    engine = load(folder, draft_tokens=drafts, public_tokens=plan.public, **PROFILES[profile])
    counts: Counter[int] = Counter()
    for prompt in plan.prompts:
        made = engine.generate(prompt, 61)
        assert list(made.tokens) == plan.continuation(prompt, 61)
        assert list(made.accepted[:-1]) == plan.expected_accepted(prompt, drafts, 61)[: len(made.accepted) - 1]
        counts.update(made.accepted[:-1])
    print(f"{profile} K={drafts} accepted: {dict(sorted(counts.items()))}")
    assert counts[0] > 0
    assert counts[drafts] > 0


@pytest.mark.parametrize("profile", PROFILES)
def test_greedy_tokens_are_plain_decodings_where_the_draft_is_never_right(
    random_pair2: Path, load: Load, profile: str
) -> None:
    engine = load(random_pair2, draft_tokens=4, **PROFILES[profile])
    made = engine.generate(PROMPT, 40, stop_ids=[])
    assert made.tokens == engine.decode_plain(PROMPT, 40, stop_ids=[]).tokens
    assert sum(made.accepted) < len(made.accepted)


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 6])
def test_a_tail_computes_the_whole_block_or_the_rows_that_are_verified(
    random_pair2: Path, load: Load, profile: str, budget: int
) -> None:
    engine = load(random_pair2, draft_tokens=4, **PROFILES[profile])
    traces: list[RoundTrace] = []
    made = engine.generate(PROMPT, budget, temperature=0.8, stop_ids=[], observer=traces.append)
    assert len(made.tokens) == budget
    for trace, proposals in zip(traces, made.proposals, strict=True):
        assert len(trace.stages["target.logits"]) == len(proposals) + 1
        if proposals:
            assert len(trace.stages["q"]) == (4 if profile == "ninfer" else len(proposals))
            assert len(trace.stages["layer.0"]) == len(trace.stages["q"]) + 1


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
def test_every_token_of_a_sampled_answer_follows_from_its_keys(random_pair2: Path, load: Load, profile: str) -> None:
    """Each round again by hand: the walk's draws from the retained q, the accept tests, and the terminal token.

    No coin lies within 2^-20 of what it is compared with, so rounding decides nothing.
    """
    numerics, seed, warmth = Numerics.of(load_profile(profile)), 77, 0.6
    engine = load(random_pair2, profile=profile, draft_tokens=4, dtype=numerics.act)
    traces: list[RoundTrace] = []
    made = engine.generate(PROMPT, 90, temperature=warmth, seed=seed, stop_ids=[], observer=traces.append)
    place = 1
    margins: list[float] = []

    def coin(position: int, purpose: int) -> float:
        return float(uniforms(keys(seed, position, purpose, 0))[0])

    def drawn(law: dict[int, float], goal: float) -> int:
        sums = list(accumulate(law.values()))
        margins.extend(abs(goal - each) for each in sums)
        return next(token for token, reached in zip(law, sums, strict=True) if reached > goal)

    for trace, proposals, accepted in zip(traces, made.proposals, made.accepted, strict=True):
        frontier, logits = trace.frontier, trace.stages["target.logits"].float()
        settings = SettingRows.of([Sampling(warmth)], [len(logits)], numerics.profile, CPU)
        target = filters.distribution(logits, settings, numerics)
        support = torch.arange(67).expand(target.p.shape) if target.support is None else target.support
        rows = _laws(support, target.p)
        laws = _laws(trace.stages["candidates"], trace.stages["q"]) if proposals else []
        scores = trace.stages["scores"].double() / warmth if proposals else torch.empty(0)
        for step, token in enumerate(proposals):
            assert drawn(laws[step], coin(frontier + step, 5)) == token
            weights = (scores[step] - scores[step].max()).exp()
            assert list(laws[step].values()) == pytest.approx((weights / weights.sum()).tolist(), abs=2.0**-20)
        count = 0
        while count < len(proposals):
            p, q = rows[count].get(proposals[count], 0.0), laws[count][proposals[count]]
            u = coin(frontier + count + 1, 2)
            margins.append(abs(u * q - p))
            if u * q >= p:
                break
            count += 1
        assert accepted == count
        rest = rows[count]
        if count < len(proposals):
            rest = {token: max(p - laws[count].get(token, 0.0), 0.0) for token, p in rest.items()}
        purpose = 3 if count < len(proposals) else 4
        last = drawn(rest, coin(frontier + count + 1, purpose) * sum(rest.values()))
        assert [*proposals[:count], last][: 90 - place] == list(made.tokens[place : place + count + 1])
        place += count + 1
    assert place >= 90
    assert {0, 1} <= set(made.accepted)
    assert min(margins) > 2.0**-20


def _laws(ids: Tensor, weights: Tensor) -> list[dict[int, float]]:
    return [dict(zip(*row, strict=True)) for row in zip(ids.tolist(), weights.tolist(), strict=True)]


@pytest.mark.parametrize("whole", [False, True], ids=["candidates", "every id"])
@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
def test_propose_accept_and_correct_give_the_targets_law_exactly(profile: str, whole: bool) -> None:
    """Every proposal and every outcome of both coins, in eighths: the token has the target's law, whatever q is."""
    numerics = Numerics.of(load_profile(profile))
    p, q, ids = (3, 0, 1, 2, 2), (1, 4, 0, 3), (2, 1, 4, 0)
    law = filters.Distribution(torch.arange(5).expand(2, -1), torch.tensor([p, p], dtype=torch.float32) / 8)
    drawn_from = acceptance.SparseLaw(torch.tensor([ids]), torch.tensor([q], dtype=torch.float32) / 8)
    if whole:
        every = torch.zeros(1, 5).scatter(1, torch.tensor([ids]), drawn_from.q)
        law, drawn_from = law._replace(support=None), acceptance.SparseLaw(None, every)
    mass = {token: Fraction(0) for token in range(5)}
    steps = 8 * 12  # accept thresholds p / q have denominators 1, 3 and 4, so the middles of 96 steps see all
    claimed = dict(zip(ids, q, strict=True))
    rest = [max(p[token] - claimed.get(token, 0), 0) for token in range(5)]
    for token, share in claimed.items():
        if not share:
            continue
        chains, weight = acceptance.Chains.of([torch.tensor([token])]), Fraction(share, 8)
        for at in range(steps):
            coins = torch.tensor([[(2 * at + 1) / (2 * steps)]])
            accepted = acceptance.accepted_count(chains, drawn_from, law, coins, numerics)
            if accepted.item():
                mass[token] += weight / steps
                continue
            for place in range(sum(rest)):
                middle = torch.tensor([(2 * place + 1) / (2 * sum(rest))], dtype=torch.float64)
                last = acceptance.terminal(chains, accepted, drawn_from, law, middle, numerics)
                mass[int(last)] += weight / steps / sum(rest)
    assert mass == {token: Fraction(share, 8) for token, share in enumerate(p)}


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
@pytest.mark.parametrize("chunks", [(29,), (4, 1, 1, 7, 5, 11), (13, 16), (6, 23)])
def test_rings_hold_the_last_rows_however_they_came(
    random_pair2: Path, load: Load, profile: str, chunks: tuple[int, ...]
) -> None:
    """A window of 5, written past its end many times, next to a full layer: positions and rows, one lane untouched."""
    engine = load(random_pair2, draft_tokens=4, **PROFILES[profile])
    draft, generator = engine.draft, torch.Generator().manual_seed(4)
    assert isinstance(draft, DFlash2Draft)
    features = torch.randn(29, 72, generator=generator).to(engine.numerics.act)
    other, state, whole = draft.open(60), draft.open(60), draft.open(60)
    draft.append([ContextRows(other, features[:3])])
    before = draft.rings.store.keys[other.lane].view(torch.uint8).clone()
    for rows in torch.split(features, list(chunks)):
        draft.append([ContextRows(state, rows)])
    for row in features:
        draft.append([ContextRows(whole, row[None])])
    assert state.length == 29
    # A key is a sum of 36 FP32 terms, normed to at most a few units, then rounded to `act` in profile ninfer.
    limit = (36 * 2.0**-24 * 8) if profile == "zlab" else 2.0**-6
    for layer, window in enumerate(draft.config.windows):
        made, expected = state.context(layer, window), whole.context(layer, window)
        assert made.positions.tolist() == expected.positions.tolist()
        assert sorted(made.positions.tolist()) == list(range(24 if window else 0, 29))
        for one, two in zip(made.rows, expected.rows, strict=True):
            assert float((one.float() - two.float()).abs().max()) <= limit
    assert torch.equal(draft.rings.store.keys[other.lane].view(torch.uint8), before)


def test_lanes_are_used_again_and_more_lanes_move_no_row() -> None:
    numerics = Numerics.of(load_profile("ninfer"))
    rings = Rings.empty(2, 3, 1, 4, numerics, CPU, lanes=1)
    first = rings.lanes.take()
    rows = torch.arange(24, dtype=torch.float32).view(3, 2, 1, 4).to(torch.bfloat16)
    materialize.write(rings.store, Spans([first], [4], [3], CPU), rows, rows.to(torch.float16))
    with pytest.raises(RequestError, match="all 1 lanes are taken, expected a free one"):
        rings.lanes.take()
    rings.reserve(3)
    second, third = rings.lanes.take(), rings.lanes.take()
    assert len({first, second, third}) == 3
    key, value = rings.read(first, 1, 7).rows
    assert rings.read(first, 1, 7).positions.tolist() == [6, 4, 5]
    assert key[0, :, 0].tolist() == value[0, :, 0].tolist() == [20.0, 4.0, 12.0]
    rings.lanes.give(second)
    rings.lanes.give(third)
    assert {rings.lanes.take(), rings.lanes.take()} == {second, third}


def test_a_lane_takes_the_bytes_that_are_planned_for_it() -> None:
    numerics = Numerics.of(load_profile("ninfer"))
    assert lane_bytes(5, 8, 128, 2048, numerics) == 41_943_040
    rings = Rings.empty(3, 7, 2, 6, numerics, CPU, lanes=1)
    assert rings.held_bytes == lane_bytes(3, 2, 6, 7, numerics)


def test_a_closed_sequence_leaves_nothing_to_the_next_one_in_its_lane(random_pair2: Path, load: Load) -> None:
    engine = load(random_pair2, draft_tokens=4)
    assert isinstance(engine.draft, DFlash2Draft)
    clean = engine.generate(PROMPT, 30, stop_ids=[])
    assert engine.draft.rings.lanes.free == len(engine.draft.rings.store.keys) == engine.max_batch
    engine.draft.rings.store.keys.fill_(torch.nan)
    engine.draft.rings.store.values.fill_(torch.nan)
    assert engine.generate(PROMPT, 30, stop_ids=[]) == clean


def test_a_ring_that_has_wrapped_cannot_be_rolled_back(random_pair2: Path, load: Load) -> None:
    draft = load(random_pair2, draft_tokens=4).draft
    assert isinstance(draft, DFlash2Draft)
    state = draft.open(20)
    draft.append([ContextRows(state, torch.zeros(5, 72))])
    state.rollback(4)
    draft.append([ContextRows(state, torch.zeros(2, 72))])
    with pytest.raises(RequestError, match="rollback to 5 of 6 rows"):
        state.rollback(5)
    with pytest.raises(RequestError, match="rollback to 7 rows, expected 0 to 6"):
        state.rollback(7)


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
def test_a_coin_past_the_sum_of_q_takes_the_rank_that_the_profile_names(profile: str) -> None:
    numerics = Numerics.of(load_profile(profile))
    unary = torch.tensor([[[0.0, 0.0, 0.0, -200.0]]])
    ids = torch.tensor([[[3, 1, 2, 0]]])
    books = selector.Selector(NONE, torch.zeros(4, 1), torch.zeros(4, 1))
    found = head.Candidates(ids, unary)
    one, heat = torch.tensor([0]), torch.tensor([1.0])
    path = selector.walk(found, torch.zeros(1, 1, 1), books, one, heat, torch.tensor([[1.5]]), numerics)
    assert path.q[0, 0, 3] == 0
    assert int(path.tokens) == (0 if profile == "ninfer" else 2)


def test_requests_walk_side_by_side_as_each_walks_alone() -> None:
    """Eight paths of unequal temperature at once, and each on its own: the same bits."""
    numerics, generator = Numerics.of(load_profile("ninfer")), torch.Generator().manual_seed(3)
    ids = torch.argsort(torch.rand(8, 5, 41, generator=generator), dim=-1)[..., :16]
    found = head.Candidates(ids, torch.randn(8, 5, 16, generator=generator))
    g = torch.randn(8, 5, 10, generator=generator).bfloat16()
    books = selector.Selector(NONE, *(torch.randn(41, 10, generator=generator) for _ in range(2)))
    anchors, coins = torch.arange(8), torch.rand(8, 5, generator=generator)
    heat = torch.tensor([0.0, 1.0, 0.3, 0.0, 2.0, np.float32(2.0**-149), 0.7, 1.0])
    joint = selector.walk(found, g, books, anchors, heat, coins, numerics)
    for at in range(8):
        row = slice(at, at + 1)
        own = selector.walk(
            head.Candidates(ids[row], found.unary[row]), g[row], books, anchors[row], heat[row], coins[row], numerics
        )
        assert all(torch.equal(one[row], two) for one, two in zip(joint, own, strict=True))
    one_hot = (joint.q == 1).any(dim=-1).all(dim=-1).tolist()
    assert [at for at, certain in enumerate(one_hot) if certain] == [0, 3, 5]
