"""The requests that are enumerated: far apart from each other, and with everything that a request can ask for."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, astuple
from itertools import combinations
from pathlib import Path

import pytest
from dflash_vectors.law.configs import AXES, FILTERS, LEVELS, MODULUS, TEMPERATURES, Config, configs, is_word
from dflash_vectors.law.model import PROMPT, likeliest, target_logits

ALL = configs()


def test_there_are_more_than_three_hundred_requests() -> None:
    assert len(ALL) == len(set(ALL)) > 300


def test_the_page_counts_them_and_tells_the_checksum() -> None:
    page = (Path(__file__).parents[2] / "docs" / "law.md").read_text("utf-8")
    assert f"**Any two of the {len(ALL)} requests differ on two axes or more.**" in page
    assert f"a multiple of {MODULUS}" in page
    for axis in ("vocabulary", "budget", "drafts"):
        assert ", ".join(map(str, LEVELS[axis])) in page
    assert all(level.removesuffix("-0.5") in page for level in TEMPERATURES)


def test_any_two_requests_differ_on_two_axes_or_more() -> None:
    for one, other in combinations(map(astuple, ALL), 2):
        assert sum(a != b for a, b in zip(one, other, strict=True)) >= 2, (one, other)


def test_no_change_of_one_axis_alone_is_a_word_of_the_code() -> None:
    word = ALL[0]
    for axis in AXES:
        for level in LEVELS[axis]:
            if level != getattr(word, axis):
                assert not is_word(Config(**(asdict(word) | {axis: level})))


@pytest.mark.parametrize("axis", AXES)
def test_every_level_of_every_axis_occurs_many_times(axis: str) -> None:
    found = Counter(getattr(config, axis) for config in ALL)
    assert set(found) == set(LEVELS[axis])
    assert min(found.values()) >= 10, found


def test_no_vocabulary_is_a_power_of_two() -> None:
    assert all(size & (size - 1) for size in LEVELS["vocabulary"] if isinstance(size, int))


def test_most_temperatures_are_neither_0_nor_1() -> None:
    assert sum(TEMPERATURES[config.temperature] not in (0.0, 1.0) for config in ALL) > len(ALL) / 2


@pytest.mark.parametrize("backend", ["ninfer-dflash", "ninfer-dflash2", "ninfer-dflash-any"])
def test_every_filter_stands_alone_and_beside_each_other_one(backend: str) -> None:
    asked = [FILTERS[config.filter] for config in ALL if config.backend == backend]
    assert len({(filter_.top_k > 0, filter_.min_p > 0, filter_.top_p < 1) for filter_ in asked}) == 8


def test_the_target_depends_on_the_whole_text_before() -> None:
    texts = [(*PROMPT, a, b) for a in range(5) for b in range(5)]
    assert len({target_logits(5, text).tobytes() for text in texts}) == 25
    assert target_logits(5, (1, *PROMPT)).tobytes() != target_logits(5, PROMPT).tobytes()


def test_padding_would_win_if_it_took_part() -> None:
    row = target_logits(7, PROMPT)
    assert len(row) > 7
    assert row.argmax() >= 7
    assert all(token < 7 for token in likeliest(7, PROMPT, 5))
