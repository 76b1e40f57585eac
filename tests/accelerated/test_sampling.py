"""Sampled decoding: keyed, repeatable, and of the target's own law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from dflash_accelerated import Engine, Numerics
from dflash_accelerated.ops import acceptance, sampling
from dflash_spec.registry import load_profile

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


def test_a_tiny_temperature_is_greedy_without_overflow(random_engine: Engine) -> None:
    assert random_engine.generate(PROMPT, 20, temperature=1e-45).tokens == random_engine.generate(PROMPT, 20).tokens


def test_chunks_of_the_prompt_do_not_move_the_draws(random_engine: Engine) -> None:
    whole = random_engine.generate(PROMPT, 25, temperature=1.1, seed=3)
    assert random_engine.generate(PROMPT, 25, temperature=1.1, seed=3, prefill_chunk=4) == whole


def test_a_verified_token_has_the_law_of_a_plain_one_over_many_seeds(random_pair: Path, load: Load) -> None:
    """The second token of plain decoding and of a verified round, over one set of seeds.

    Both counts of the most likely token are binomial with the same p, given the greedy first token; they differ by
    more than 5.5 standard deviations of the difference less than once in 2e7 runs, and the seeds are fixed besides.
    """
    engine, runs = load(random_pair, draft_tokens=3), 300
    prompt = [*PROMPT, *engine.generate(PROMPT, 1).tokens]
    counts = []
    for decode in (engine.generate, engine.decode_plain):
        made = [decode(prompt, 2, temperature=0.5, seed=seed, stop_ids=[]).tokens for seed in range(runs)]
        counts.append(Counter(tokens[1] for tokens in made))
    (top, _), *_ = counts[1].most_common(1)
    rate = (counts[0][top] + counts[1][top]) / (2 * runs)
    assert abs(counts[0][top] - counts[1][top]) < 5.5 * (2 * runs * rate * (1 - rate)) ** 0.5
    assert 0.05 < rate < 0.95


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
@pytest.mark.parametrize("proposal", range(len(EIGHTHS)))
def test_accept_and_correct_give_the_targets_law_exactly(profile: str, proposal: int) -> None:
    """Every outcome of both coins: the code is constant between multiples of 1/8, so sixteenths' midpoints see all."""
    numerics = Numerics.of(load_profile(profile))
    p = torch.tensor([EIGHTHS, EIGHTHS], dtype=torch.float32) / 8
    law = sampling.Distribution(torch.arange(len(EIGHTHS)).expand(2, -1), p)
    proposals = torch.tensor([proposal])
    coins = [(2 * at + 1) / 128 for at in range(64)]
    mass = {token: Fraction(0) for token in range(len(EIGHTHS))}
    remaining = 8 - EIGHTHS[proposal]
    for coin in coins:
        accepted = acceptance.accepted_count(proposals, law, torch.tensor([coin]))
        if accepted:
            mass[proposal] += Fraction(1, 64)
            continue
        for at in range(remaining):
            middle = (2 * at + 1) / (2 * remaining)
            mass[int(acceptance.terminal(proposals, 0, law, middle, numerics))] += Fraction(1, 64 * remaining)
    assert mass == {token: Fraction(share, 8) for token, share in enumerate(EIGHTHS)}


def test_a_cap_keeps_the_largest_in_order_with_the_lower_id_first() -> None:
    numerics = Numerics.of(load_profile("ninfer"))
    logits = torch.zeros(1, 41)
    logits[0, 30:] = torch.tensor([3.0, -0.0, 5.0, 5.0, 0.0, -1.0, 3.0, 0.0, 0.0, 90.0, 90.0])
    kept = sampling.distribution(logits, 1.0, 39, numerics)
    assert kept.support.tolist() == [[32, 33, 30, 36, *range(16)]]
    assert kept.p[0, 0] == kept.p[0, 1]
    assert kept.p[0, 4] == kept.p[0, 19]


def test_no_coin_reaches_a_token_without_probability() -> None:
    support = torch.tensor([[4, 7, 9]])
    p = torch.tensor([[0.0, 1.0 - 2.0**-24, 0.0]])
    for coin in (0.0, 0.5, 1.0 - 2.0**-24):
        assert int(sampling.draw(support, p, torch.tensor([coin]))) == 7
