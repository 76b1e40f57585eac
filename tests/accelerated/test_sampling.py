"""Sampled decoding: keyed, repeatable, and of the target's own law."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from dflash_accelerated import Engine, Numerics, RoundTrace
from dflash_accelerated.arguments import check_temperature
from dflash_accelerated.coins import of_rounds
from dflash_accelerated.counts import TokenCounts
from dflash_accelerated.decisions import Turn, decide
from dflash_accelerated.ops import acceptance, filters, ranking, sampling
from dflash_accelerated.ops.filters import torch as implementation
from dflash_accelerated.ops.random import keys, uniforms
from dflash_accelerated.ops.rows import RowRange
from dflash_accelerated.protocols import Proposal
from dflash_accelerated.settings import Sampling, SettingRows
from dflash_spec.registry import load_profile
from torch import Tensor

Load = Callable[..., Engine]

PROMPT = [9, 31, 2, 50, 50, 7]
EIGHTHS = (3, 0, 1, 2, 2)


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
def test_equal_seeds_give_equal_answers_and_others_others(random_pair: Path, load: Load, profile: str) -> None:
    dtype = torch.bfloat16 if profile == "ninfer" else None
    engine = load(random_pair, profile=profile, draft_tokens=4, dtype=dtype)
    first = engine.generate(PROMPT, 30, temperature=0.9, seed=2**64 - 1, stop_ids=[])
    assert engine.generate(PROMPT, 30, temperature=0.9, seed=2**64 - 1, stop_ids=[]) == first
    assert engine.generate(PROMPT, 30, temperature=0.9, seed=7, stop_ids=[]).tokens != first.tokens
    assert engine.decode_plain(PROMPT, 30, temperature=0.9, seed=7, stop_ids=[]).tokens != first.tokens


@pytest.mark.parametrize("temperature", [2.0**-126, 1e-30])
def test_the_smallest_temperatures_are_greedy_without_overflow(random_engine: Engine, temperature: float) -> None:
    made = random_engine.generate(PROMPT, 20, temperature=temperature)
    assert made.tokens == random_engine.generate(PROMPT, 20).tokens


def test_the_largest_temperature_makes_all_tokens_equally_likely(random_engine: Engine) -> None:
    largest = float(np.finfo(np.float32).max)
    made = random_engine.generate(PROMPT, 60, temperature=largest, stop_ids=[])
    assert made.tokens == random_engine.generate(PROMPT, 60, temperature=1e30, stop_ids=[]).tokens
    assert len(set(made.tokens)) > 60 // 3


@pytest.mark.parametrize("asked", [0.6, Fraction(3, 5), np.float64(0.6)])
def test_a_temperature_counts_by_its_fp32_value(asked: float | Fraction) -> None:
    kept = check_temperature(asked)
    assert (kept, type(kept)) == (float(np.float32(0.6)), float)
    assert kept != 0.6


def test_chunks_of_the_prompt_do_not_move_the_draws(random_engine: Engine) -> None:
    whole = random_engine.generate(PROMPT, 25, temperature=1.1, seed=3)
    assert random_engine.generate(PROMPT, 25, temperature=1.1, seed=3, prefill_chunk=4) == whole


def processed(logits: Tensor, settings: list[Sampling], numerics: Numerics) -> list[dict[int, float]]:
    """The probabilities of each row by token, in draw order; each settings hold for as many rows."""
    counts = [len(logits) // len(settings)] * len(settings)
    rows = SettingRows.of(settings, counts, numerics.profile, logits.device)
    law = filters.distribution(logits.float(), rows, numerics)
    support = [list(range(logits.shape[1]))] * len(logits) if law.support is None else law.support.tolist()
    return [dict(zip(*row, strict=True)) for row in zip(support, law.p.tolist(), strict=True)]


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
def test_every_token_of_a_sampled_answer_follows_from_its_keys(random_pair: Path, load: Load, profile: str) -> None:
    """Each round again by hand, from the logits it saw: uniforms by key, probabilities in FP32, sums in float64.

    No coin lies within 2^-20 of the probability or the sum that it is compared with, so rounding decides nothing.
    """
    numerics = Numerics.of(load_profile(profile))
    engine, seed = load(random_pair, profile=profile, draft_tokens=4, dtype=numerics.act), 2026
    traces: list[RoundTrace] = []
    made = engine.generate(PROMPT, 60, temperature=0.6, seed=seed, stop_ids=[], observer=traces.append)
    place = 1
    margins: list[float] = []

    def coin(position: int, purpose: int) -> float:
        return float(uniforms(keys(seed, position, purpose, 0))[0])

    def drawn(law: dict[int, float], goal: float) -> int:
        sums = list(accumulate(law.values()))
        margins.extend(abs(goal - each) for each in sums)
        return next(token for token, reached in zip(law, sums, strict=True) if reached > goal)

    for trace, proposals, accepted in zip(traces, made.proposals, made.accepted, strict=True):
        rows = processed(trace.stages["target.logits"][:, :67], [Sampling(0.6)], numerics)
        laws = [{token: 1.0} for token in proposals]
        if profile == "zlab":
            laws = processed(trace.stages["logits"], [Sampling(0.6)], numerics) if proposals else []
            assert [drawn(law, coin(trace.frontier + step, 5)) for step, law in enumerate(laws)] == list(proposals)
        count = 0
        while count < len(proposals):
            p, q = rows[count].get(proposals[count], 0.0), laws[count][proposals[count]]
            u = coin(trace.frontier + count + 1, 2)
            margins.append(abs(u * q - p))
            if u * q >= p:
                break
            count += 1
        assert accepted == count
        row, purpose = rows[count], 4
        if count < len(proposals):
            row, purpose = {token: max(p - laws[count].get(token, 0.0), 0.0) for token, p in row.items()}, 3
        last = drawn(row, coin(trace.frontier + count + 1, purpose) * sum(row.values()))
        assert [*proposals[:count], last][: 60 - place] == list(made.tokens[place : place + count + 1])
        place += count + 1
    assert place >= 60
    assert {0, 1} <= set(made.accepted)
    assert min(margins) > 2.0**-20


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
@pytest.mark.parametrize("proposal", range(len(EIGHTHS)))
def test_accept_and_correct_give_the_targets_law_exactly(profile: str, proposal: int) -> None:
    """Every outcome of both coins: the code is constant between multiples of 1/8, so sixteenths' midpoints see all."""
    numerics = Numerics.of(load_profile(profile))
    p = torch.tensor([EIGHTHS, EIGHTHS], dtype=torch.float32) / 8
    law = filters.Distribution(torch.arange(len(EIGHTHS)).expand(2, -1), p)
    chains = acceptance.Chains.of([torch.tensor([proposal])])
    certain, none = acceptance.one_hot(chains.tokens), torch.tensor([0])
    coins = [(2 * at + 1) / 128 for at in range(64)]
    mass = {token: Fraction(0) for token in range(len(EIGHTHS))}
    remaining = 8 - EIGHTHS[proposal]
    for coin in coins:
        if acceptance.accepted_count(chains, certain, law, torch.tensor([[coin]]), numerics).item():
            mass[proposal] += Fraction(1, 64)
            continue
        for at in range(remaining):
            middle = torch.tensor([(2 * at + 1) / (2 * remaining)], dtype=torch.float64)
            last = acceptance.terminal(chains, none, certain, law, middle, numerics)
            mass[int(last)] += Fraction(1, 64 * remaining)
    assert mass == {token: Fraction(share, 8) for token, share in enumerate(EIGHTHS)}


def test_a_cap_keeps_the_largest_in_order_with_the_lower_id_first() -> None:
    numerics = Numerics.of(load_profile("ninfer"))
    logits = torch.zeros(1, 41)
    logits[0, 0] = -0.0
    logits[0, 30:] = torch.tensor([3.0, -0.0, 5.0, 5.0, 0.0, -1.0, 3.0, 0.0, 0.0, 90.0, 90.0])
    rows = SettingRows.of([Sampling(1.0)], [1], numerics.profile, torch.device("cpu"))
    kept = filters.distribution(logits[:, :39], rows, numerics)
    assert kept.support is not None
    assert kept.support.tolist() == [[32, 33, 30, 36, *range(16)]]
    assert kept.p[0, 0] == kept.p[0, 1]
    assert kept.p[0, 4] == kept.p[0, 19]


SETTINGS = {
    "zlab": [
        Sampling(0.7), Sampling(), Sampling(2.0, top_k=3), Sampling(0.5, top_p=0.6), Sampling(1.0, 5, 0.9),
        Sampling(1.0, 41), Sampling(1e-30), Sampling(1.0, 40, 2.0**-20),
    ],
    "ninfer": [
        Sampling(0.7), Sampling(), Sampling(2.0, top_k=3), Sampling(0.5, top_p=0.6), Sampling(1.0, 5, 0.9, 0.2),
        Sampling(1.0, 19), Sampling(1e-30), Sampling(1.5, -1, 1.0, 1.0), Sampling(1.0, 20, 0.0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("profile", SETTINGS)
def test_rows_with_settings_of_their_own_are_filtered_as_each_is_alone(profile: str) -> None:
    numerics, each = Numerics.of(load_profile(profile)), SETTINGS[profile]
    scores = torch.randn(3 * len(each), 41, generator=torch.Generator().manual_seed(1)) * 3
    scores[:, 7] = -torch.inf
    joint = processed(scores, each, numerics)
    for at, settings in enumerate(each):
        alone = processed(scores[3 * at : 3 * at + 3], [settings], numerics)
        if settings.temperature:
            assert [positive(row) for row in joint[3 * at : 3 * at + 3]] == [positive(row) for row in alone]


def test_ordering_few_ids_first_leaves_what_ordering_all_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows for which few are enough and rows for which they are not, alone and together."""
    numerics = Numerics.of(load_profile("zlab"))
    each = [
        Sampling(0.8, top_p=0.95), Sampling(0.5, 2000, 0.9), Sampling(1.0), Sampling(), Sampling(2.0, top_p=0.5),
        Sampling(1.0, 50, 0.9), Sampling(1.0, 1024), Sampling(30.0, top_p=0.99), Sampling(0.3, top_p=0.01),
    ]  # fmt: skip
    scores = 4 * torch.randn(len(each), 3001, generator=torch.Generator().manual_seed(3))
    batches = [[at] for at in range(len(each))] + [list(range(len(each))), [0, 2, 3, 4, 5, 8]]
    orders: list[int] = []
    ranked = ranking.ranked

    def watched(scores: Tensor, ids: Tensor, count: int) -> Tensor:
        orders.append(count)
        return ranked(scores, ids, count)

    monkeypatch.setattr(implementation, "ranked", watched)
    found = [processed(scores[batch], [each[at] for at in batch], numerics) for batch in batches]
    assert set(orders) == {50, 1024, 2000, 3001}
    assert orders[-1] == 1024, "the last batch has no row that needs more"
    monkeypatch.setattr(implementation, "FEW", 10**9)
    assert found == [processed(scores[batch], [each[at] for at in batch], numerics) for batch in batches]


def positive(law: dict[int, float]) -> list[tuple[int, float]]:
    """What has a chance, in draw order."""
    return [(token, p) for token, p in law.items() if p > 0]


def test_laws_of_every_kind_are_judged_together_as_each_is_alone() -> None:
    """One batch of certain proposals, of candidates, of whole rows, and of none: a draft may mix them."""
    numerics, generator = Numerics.of(load_profile("zlab")), torch.Generator().manual_seed(2)
    counts, public = (3, 2, 0, 4, 1), 13
    tokens = [torch.randint(public, (count,), generator=generator) for count in counts]
    chosen = torch.stack([torch.randperm(public, generator=generator)[:5] for _ in range(2)])
    chosen[:, 0] = tokens[1]
    laws = [
        None,
        acceptance.SparseLaw(chosen, torch.rand(2, 5, generator=generator).softmax(-1)),
        None,
        acceptance.SparseLaw(None, (2 * torch.randn(4, public, generator=generator)).softmax(-1)),
        acceptance.SparseLaw(torch.tensor([[int(tokens[4]), -1]]), torch.tensor([[1.0, 0.0]])),
    ]
    rows = [RowRange.of(torch.randn(len(own) + 1, public, generator=generator)) for own in tokens]
    turns = [
        Turn(Sampling(0.9), Proposal(own, law), own.tolist(), seen)
        for own, law, seen in zip(tokens, laws, rows, strict=True)
    ]
    counts_of = TokenCounts(public, torch.device("cpu"))
    seen = set()
    for seed in range(60):
        seeds, frontiers = [seed + at for at in range(5)], [9 * at for at in range(5)]
        tosses = partial(of_rounds, seeds, frontiers, counts, max(counts))
        joint = decide(turns, tosses, counts_of, public, numerics)
        for at, turn in enumerate(turns):
            own = partial(of_rounds, [seeds[at]], [frontiers[at]], [counts[at]], counts[at])
            assert decide([turn], own, counts_of, public, numerics) == [joint[at]]
            seen.add((at, joint[at].accepted))
    assert all(len({count for place, count in seen if place == at}) > 1 for at, count in enumerate(counts) if count)


def test_no_coin_reaches_a_token_without_probability() -> None:
    support, numerics = torch.tensor([[4, 7, 9]]), Numerics.of(load_profile("zlab"))
    p = torch.tensor([[0.0, 1.0 - 2.0**-24, 0.0]])
    for coin in (0.0, 0.5, 1.0 - 2.0**-24):
        assert int(sampling.draw(filters.Distribution(support, p), torch.tensor([coin]), numerics)) == 7
