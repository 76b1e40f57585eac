"""The end of a text: a scan byte by byte gives what the op gives, and only slots that hold a token count."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from dflash_reference import stop
from dflash_spec.errors import RequestError
from dflash_spec.registry import load_profile
from hypothesis import given
from hypothesis import strategies as st

PROFILE = load_profile("ninfer")
SCANS = 3000
LETTERS = st.text(alphabet="aß", max_size=3)
WANTED = st.lists(st.text(alphabet="aß", min_size=1, max_size=4), max_size=3)
"""Two letters, of one and of two bytes, so that stop strings meet and overlap."""


def joined(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), np.array([len(text) for text in encoded], dtype=np.int64)


def scan(tokens: list[int], texts: list[str], strings: list[str], before: str, show: int, left: tuple[int, int]):
    return stop.scan(
        np.array(tokens, dtype=np.int64), *joined(texts), joined([before])[0], *joined(strings), np.array([9]), show,
        *left, PROFILE,
    )  # fmt: skip


def expected(tokens: list[int], texts: list[str], strings: list[str], before: str, show: int, left: tuple[int, int]):
    """One byte after the other: which string has just ended, and where did it start?"""
    said, ends = before.encode(), []
    for index, (token, text) in enumerate(zip(tokens, texts, strict=True)):
        known = len(said)
        for byte in text.encode():
            said += bytes([byte])
            ends += [
                (len(said) - len(string.encode()), place, index)
                for place, string in enumerate(strings)
                if said.endswith(string.encode())
            ]
        if ends:
            start, place, _ = min(ends)
            return index + 1, 1, stop.STRING, place, start
        if token == 9:
            return index + 1, 1, stop.TOKEN, -1, len(said) if show else known
    full = len(tokens) == min(left)
    reason = (stop.CONTEXT_CAPACITY if left[1] < left[0] else stop.OUTPUT_LIMIT) if full else stop.NONE
    return len(tokens), int(full), reason, -1, len(said)


def test_a_scan_is_what_reading_byte_by_byte_finds() -> None:
    reasons, shared = Counter[int](), 0
    for seed in range(SCANS):
        pick = Random(seed)
        words = ["".join(pick.choices("aß", k=pick.randint(0, 3))) for _ in range(9)]
        tokens = [pick.randint(5, 9) for _ in range(pick.randint(1, 5))]
        texts, strings = words[: len(tokens)], [word for word in words[5 : 5 + pick.randint(0, 3)] if word]
        before, show = words[8], pick.randint(0, 1)
        left = len(tokens) + pick.choice([0, 0, 1, 2]), len(tokens) + pick.choice([0, 1, 2])
        got = scan(tokens, texts, strings, before, show, left)
        assert got[:5] == expected(tokens, texts, strings, before, show, left), seed
        reasons[got.reason] += 1
        shared += got.reason == stop.STRING and got.text_end < len(before.encode())
    assert min(reasons[reason] for reason in range(5)) > 50
    assert shared > 50


@given(tokens=st.lists(st.integers(5, 9), min_size=2, max_size=6), strings=WANTED, data=st.data())
def test_a_text_ends_alike_however_it_is_cut_into_rounds(tokens, strings, data) -> None:
    texts = data.draw(st.lists(LETTERS, min_size=len(tokens), max_size=len(tokens)))
    whole = scan(tokens, texts, strings, "", 0, (90, 90))
    cut = data.draw(st.integers(1, len(tokens) - 1))
    first = scan(tokens[:cut], texts[:cut], strings, "", 0, (90, 90))
    if first.terminal:
        assert first == whole
        return
    second = scan(tokens[cut:], texts[cut:], strings, "".join(texts[:cut]), 0, (90, 90))
    assert second._replace(kept=second.kept + cut) == whole


@pytest.mark.parametrize(("count", "left"), [(0, (4, 4)), (5, (4, 9)), (5, (9, 4)), (1, (0, 3))])
def test_a_round_that_is_empty_or_too_long_is_refused(count: int, left: tuple[int, int]) -> None:
    with pytest.raises(RequestError, match=f"{count} tokens, expected 1 to {min(left)}"):
        scan([5] * count, ["a"] * count, [], "", 0, left)


def test_bytes_that_do_not_add_up_and_empty_stop_strings_are_refused() -> None:
    with pytest.raises(RequestError, match=r"strings of \[0\] bytes"):
        scan([5], ["a"], [""], "", 0, (4, 4))
    content, _ = joined(["abc"])
    with pytest.raises(RequestError, match=r"texts of \[2\] bytes, expected to share 3"):
        stop.scan(
            np.array([5]), content, np.array([2]), content[:0], content[:0], np.zeros(0, dtype=np.int64),
            np.array([9]), 0, 4, 4, PROFILE,
        )  # fmt: skip


MASK = 6


@given(
    prompt=st.lists(st.integers(5, 9), max_size=4), new=st.lists(st.integers(5, 9), max_size=5),
    spare=st.integers(0, 4), stops=st.lists(st.integers(5, 9), max_size=2),
)  # fmt: skip
def test_an_output_buffer_holds_what_was_written_to_the_first_stop_whatever_its_values(
    prompt: list[int], new: list[int], spare: int, stops: list[int]
) -> None:
    buffer = np.array([*prompt, *new, *[MASK] * spare], dtype=np.int64)
    given_ = buffer, len(prompt), len(prompt) + len(new), MASK, np.array(stops, dtype=np.int64)
    got = stop.written(*given_, PROFILE)
    ends = [place for place, token in enumerate(new) if token in stops]
    assert got.tokens.tolist() == (new[: ends[0] + 1] if ends else new)
    assert got.terminal == bool(ends)


def test_more_written_slots_than_the_buffer_has_are_refused() -> None:
    with pytest.raises(RequestError, match="1 prompt, 4 written slots, expected 0 to 3"):
        stop.written(np.array([5, 7, 8]), 1, 4, MASK, np.array([9]), PROFILE)
