"""Where a text ends: stop strings that begin in earlier rounds, stop ids whose piece is hidden, limits and reasons."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dflash_accelerated import Engine, Generation, stops
from dflash_spec.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st

from tests.accelerated.conftest import _load as load_engine

PROMPT = [9, 31, 2, 50]
PIECES = [bytes([97 + at % 5]) * (at % 3) for at in range(67)]
"""Text of 0 to 2 bytes a token, in five letters, so that matches begin and end inside tokens."""


@pytest.fixture(scope="module")
def engine(random_pair2: Path) -> Engine:
    return load_engine(random_pair2, draft_tokens=4)


def text_of(tokens: tuple[int, ...]) -> bytes:
    return b"".join(PIECES[token] for token in tokens)


def ended(engine: Engine, **options: Any) -> tuple[Generation, list[bytes]]:
    """An answer, and what its rounds showed."""
    asked: dict[str, Any] = {"stop_ids": [], "pieces": PIECES, "temperature": 1.5, "seed": 8} | options
    shown = [each.text for each in engine.stream(PROMPT, 60, **asked)]
    return engine.generate(PROMPT, 60, **asked), shown


@pytest.mark.parametrize("length", [1, 2, 3, 5, 9])
def test_the_text_ends_before_the_first_stop_string_wherever_that_begins(engine: Engine, length: int) -> None:
    whole, _ = ended(engine)
    text = text_of(whole.tokens)
    assert whole.text == text
    for at in range(0, len(text) - length, 7):
        string = text[at : at + length]
        made, shown = ended(engine, stop_strings=["none of it", string])
        cut = text.index(string)
        assert made.text == b"".join(shown) == text[:cut]
        assert made.finish_reason == "stop_string"
        # The last token completes the string, and no token before it does.
        assert text_of(made.tokens[:-1]).find(string) < 0 <= text_of(made.tokens).find(string)
        assert whole.tokens[: len(made.tokens)] == made.tokens


def test_of_two_strings_that_one_token_completes_the_earlier_start_wins() -> None:
    found = stops.scan([1], [b"xyz"], b"a", (b"yz", b"axy", b"xyz"), (), False, 9, 9)
    assert (found.matched, found.text_end) == (1, 0)
    tie = stops.scan([1], [b"xyz"], b"a", (b"xyz", b"xy"), (), False, 9, 9)
    assert (tie.matched, tie.text_end) == (0, 1)


def test_a_stop_id_is_kept_and_its_piece_is_shown_only_on_request(engine: Engine) -> None:
    whole, _ = ended(engine)
    stop = next(token for token in whole.tokens[5:] if PIECES[token])
    end = whole.tokens.index(stop) + 1
    hidden, shown = ended(engine, stop_ids=[stop]), ended(engine, stop_ids=[stop], show_stop=True)
    assert hidden[0].tokens == shown[0].tokens == whole.tokens[:end]
    assert hidden[0].finish_reason == shown[0].finish_reason == "stop"
    assert hidden[0].text == text_of(whole.tokens[: end - 1])
    assert shown[0].text == text_of(whole.tokens[:end])


def test_what_may_begin_a_stop_string_is_held_back_and_then_shown() -> None:
    assert stops.settled(b"abcab", (b"abd", b"zz")) == 3
    assert stops.settled(b"abcab", (b"cabx",)) == 2
    assert stops.settled(b"abc", ()) == 3
    assert stops.settled(b"abc", (b"abc",)) == 3, "a whole match would have ended the text"


@given(
    text=st.text("ab", max_size=24), cuts=st.lists(st.integers(0, 24), max_size=6),
    strings=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)  # fmt: skip
def test_rounds_of_any_size_show_what_one_round_shows(text: str, cuts: list[int], strings: list[str]) -> None:
    data, wanted = text.encode(), tuple(string.encode() for string in strings)
    pieces = [data[at : at + 1] for at in range(len(data))] or [b""]
    one = stops.scan([0] * len(pieces), pieces, b"", wanted, (), False, 99, 99)
    bounds, before, found = sorted({0, *(min(cut, len(pieces)) for cut in cuts), len(pieces)}), b"", one
    for begin, end in pairwise(bounds):
        found = stops.scan([0] * (end - begin), pieces[begin:end], before, wanted, (), False, 99, 99)
        assert stops.settled(before, wanted) <= found.text_end, "what was shown is taken back"
        before = (before + b"".join(pieces[begin:end]))[: found.text_end]
        if found.reason:
            break
    assert (found.reason, found.matched, found.text_end) == (one.reason, one.matched, one.text_end)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_strings": ["x"]}, "stop_strings without pieces"),
        ({"stop_strings": "x", "pieces": PIECES}, "stop_strings is 'x'"),
        ({"stop_strings": ["a", ""], "pieces": PIECES}, r"stop_strings\[1\] is ''"),
        ({"pieces": PIECES[:9]}, "pieces has 9 items"),
        ({"pieces": 7}, "pieces is int"),
    ],
)
def test_bad_arguments_are_named(engine: Engine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine.request(PROMPT, 9, **options)
