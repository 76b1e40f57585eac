"""The law of whole requests, over every outcome of every uniform: equal to what it must be, with `==`."""

from __future__ import annotations

from fractions import Fraction

import pytest
from dflash_vectors.law.configs import BACKENDS, PENALTIES, Config, configs, cost
from dflash_vectors.law.enumerated import law_of, stream_law
from dflash_vectors.law.expected import Expected, marginal
from dflash_vectors.law.lanes import as_they_are
from dflash_vectors.law.probes import STREAMS
from dflash_vectors.law.symbolic import ticks
from dflash_vectors.law.trials import largest_move

TICK = Fraction(1, 2**24)
QUICK = [config for config in sorted(configs(), key=cost) if BACKENDS[config.backend].verify != "law.greedy"][::9]


def requests(chosen: list[Config]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("config", chosen, ids=lambda config: config.name)


@requests(list(configs()))
def test_tokens_have_the_law_of_plain_decoding_and_counts_go_with_the_mass_that_both_laws_share(config: Config) -> None:
    found, must = law_of(config), Expected(config)
    assert marginal(found) == must.plain()
    assert found == must.joint()


@requests(list(STREAMS))
def test_a_request_whose_uniforms_are_those_of_its_keys_has_the_same_law(config: Config) -> None:
    assert stream_law(config) == Expected(config).stream()


@requests(QUICK)
def test_keyed_uniforms_move_no_probability_by_more_than_a_step_for_each_draw(config: Config) -> None:
    found, must = marginal(law_of(config, ticks)), Expected(config).plain()
    tokens = min(config.budget, config.length)
    draws = config.rounds * (2 * config.drafts + 1) + tokens
    assert sum(found.values()) == 1
    for text in {*found, *must}:
        assert abs(found.get(text, Fraction(0)) - must.get(text, Fraction(0))) <= draws * TICK


@requests(QUICK)
def test_fp32_rows_that_do_not_add_up_to_1_move_no_probability_by_more_than_four_steps_for_each_token(
    config: Config,
) -> None:
    # A row of FP32 values and its sum are off by a step, relatively; what both laws share, and what is left, by two.
    moved = largest_move(marginal(law_of(config, rows=as_they_are)), Expected(config).plain())
    assert moved <= 4 * min(config.budget, config.length) * TICK


@pytest.mark.parametrize("backend", ["ninfer-dflash", "ninfer-dflash2", "ninfer-dflash-any"])
def test_a_token_is_accepted_twice_in_a_block_where_each_time_it_counts(backend: str) -> None:
    counted = [config for config in configs() if config.backend == backend and PENALTIES[config.penalty].frequency]
    twice = [
        config
        for config in counted
        for (first, *_), tokens in Expected(config).joint()
        if first > len(set(tokens[1 : first + 1]))
    ]
    assert twice


@pytest.mark.parametrize("backend", [name for name, backend in BACKENDS.items() if backend.verify != "law.greedy"])
def test_every_count_from_none_to_all_occurs(backend: str) -> None:
    quick = [config for config in configs() if config.backend == backend and config.drafts <= 3 and cost(config) < 6000]
    found = {(config.drafts, count) for config in quick for (counts, _) in Expected(config).joint() for count in counts}
    assert found == {(drafts, count) for drafts in (1, 2, 3) for count in range(drafts + 1)}
