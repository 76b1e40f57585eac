"""The forms of a commit, in which the bonus waits, is replayed or comes at once, and the one stream that they emit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from dflash_reference import commit, law, replay, stop
from dflash_reference.names import Position, TokenId
from dflash_spec.errors import CommitError
from dflash_spec.registry import load_profile
from dflash_vectors import inputs
from hypothesis import given
from hypothesis import strategies as st

NINFER, LUCE = load_profile("ninfer"), load_profile("luce")
PROMPT = (3, 8)
DRAFTS = 3
VOCABULARY = 19
ROUNDS = 4
LENGTH = 11
"""Longer than three rounds that reject all, shorter than three that accept all."""


def said(history: tuple[int, ...]) -> int:
    """The target's token after a history."""
    return int(inputs.hashes(f"forms/{history}", (1,))[0] % np.uint64(VOCABULARY))


def continued(history: tuple[int, ...], count: int) -> tuple[int, ...]:
    for _ in range(count):
        history += (said(history),)
    return history[len(history) - count :]


def proposed(history: tuple[int, ...], right: int) -> tuple[int, ...]:
    """A draft that follows the target for `right` tokens, goes wrong, and then agrees with the target again."""
    drafts: tuple[int, ...] = ()
    for slot in range(DRAFTS):
        truth = said(history + drafts)
        drafts += ((truth + 1) % VOCABULARY if slot == right else truth,)
    return drafts


def verified(history: tuple[int, ...], block: tuple[int, ...]) -> list[int]:
    return [said(history + block[: row + 1]) for row in range(len(block))]


def pending_form(pattern: tuple[int, ...], stops: tuple[int, ...], budget: int) -> tuple[list[int], int]:
    """NInfer, the authors' package and vLLM: the bonus is emitted, and its row is the next round's first.

    The tokens, and the rows that the target's state holds.
    """
    history, anchor = PROMPT, said(PROMPT)
    emitted, ended = [anchor], anchor in stops or budget == 1
    for right in pattern:
        if ended:
            break
        drafts = proposed((*history, anchor), right)
        target = verified(history, (anchor, *drafts))
        accepted, licensed = law.greedy(np.array(drafts), np.array(target), NINFER)
        licensed = licensed[: accepted + 1]
        kept, terminal = stop.preview(licensed, np.array(stops, dtype=np.int64), budget - len(emitted), NINFER)
        rows = len(history) + len(target)
        done = commit.commit(TokenId(anchor), licensed, kept, Position(len(history)), rows, NINFER)
        history += tuple(done.rows.tolist())
        assert len(history) == done.next_frontier == done.target_rows_kept
        anchor, ended = done.next_anchor, bool(terminal)
        emitted += licensed[:kept].tolist()
    return emitted, len(history)


def luce_form(fast: int, pattern: tuple[int, ...], stops: tuple[int, ...], budget: int) -> tuple[list[int], int]:
    """Luce: a round emits its anchor first; the correction is replayed, or waits as the next anchor."""
    history, anchor = PROMPT, said(PROMPT)
    emitted: list[int] = []
    for right in pattern:
        if len(emitted) == budget or (emitted and emitted[-1] in stops):
            break
        block = (anchor, *proposed((*history, anchor), right))
        target = verified(history, block)
        accepted = replay.accepted_rows(np.array(block), np.array(target))
        after = said((*history, *block[:accepted], target[accepted - 1]))
        done = replay.replay_round(
            np.array(block), np.array(target), after, fast, len(history), budget - len(emitted),
            np.array(stops, dtype=np.int64), LUCE,
        )  # fmt: skip
        history += tuple(done.tokens.tolist())
        assert len(history) == done.next_frontier == done.state_rows
        anchor = done.next_anchor
        emitted += done.tokens.tolist()
        # What a snapshot taken here would go on with.
        assert anchor == said(history)
    return emitted, len(history)


PATTERNS = list(product(range(DRAFTS + 1), repeat=ROUNDS))
ENDS = [(None, LENGTH), *((None, budget) for budget in range(1, 8)), *((place, LENGTH) for place in range(8))]


@pytest.mark.parametrize(("place", "budget"), ENDS, ids=str)
def test_every_form_emits_one_stream_whatever_is_accepted_and_wherever_it_ends(place: int | None, budget: int) -> None:
    plain = list(continued(PROMPT, budget))
    stops: tuple[int, ...] = () if place is None else (plain[place],)
    whole = plain if place is None else plain[: plain.index(plain[place]) + 1]
    ended = set()
    for pattern in PATTERNS:
        pending, rows = pending_form(pattern, stops, budget)
        replayed, replayed_rows = luce_form(0, pattern, stops, budget)
        fast, fast_rows = luce_form(1, pattern, stops, budget)
        for stream in (pending, replayed, fast):
            assert stream == whole[: len(stream)]
        assert rows == len(PROMPT) + len(pending) - 1
        assert (replayed_rows, fast_rows) == (len(PROMPT) + len(replayed), len(PROMPT) + len(fast))
        # A round of the fast form ends one token before the same round of the form whose bonus is emitted.
        shortest = min(len(pending), len(replayed), len(fast))
        assert shortest == len(whole) or len(fast) == len(pending) - 1
        ended |= {name for name, stream in (("p", pending), ("r", replayed), ("f", fast)) if stream == whole}
    assert ended == {"p", "r", "f"}


def test_the_patterns_reach_every_accepted_count_of_every_round() -> None:
    counts = set()
    for pattern in PATTERNS:
        history: tuple[int, ...] = PROMPT
        for place, right in enumerate(pattern):
            anchor = said(history)
            block = (anchor, *proposed((*history, anchor), right))
            accepted = replay.accepted_rows(np.array(block), np.array(verified(history, block)))
            counts.add((place, accepted - 1))
            history += block[:accepted]
    assert counts == set(product(range(ROUNDS), range(DRAFTS + 1)))


@given(
    block=st.lists(st.integers(0, 3), min_size=1, max_size=6), fast=st.integers(0, 1), remaining=st.integers(1, 8),
    stops=st.lists(st.integers(0, 4), max_size=2), data=st.data(),
)  # fmt: skip
def test_a_round_emits_a_beginning_of_the_uncut_round_and_goes_on_with_the_token_after_it(
    block: list[int], fast: int, remaining: int, stops: list[int], data: st.DataObject
) -> None:
    target = data.draw(st.lists(st.integers(0, 3), min_size=len(block), max_size=len(block)))
    given_ = np.array(block), np.array(target), 7, fast, 40
    whole = replay.replay_round(*given_, 99, np.array([], dtype=np.int64), LUCE)
    done = replay.replay_round(*given_, remaining, np.array(stops, dtype=np.int64), LUCE)
    kept = len(done.tokens)
    assert [*done.tokens, done.next_anchor] == [*whole.tokens, whole.next_anchor][: kept + 1]
    assert done.next_frontier == done.state_rows == 40 + kept
    assert not set(done.tokens[:-1].tolist()) & set(stops)
    assert kept in (remaining, len(whole.tokens)) or done.tokens[-1] in stops
    assert kept <= remaining
    assert done.accepted == whole.accepted == next(
        (row for row in range(1, len(block)) if block[row] != target[row - 1]), len(block)
    )  # fmt: skip


def test_a_round_of_nothing_or_without_a_budget_is_refused() -> None:
    for block, remaining in (([], 3), ([1, 2], 0)):
        given_ = np.array(block, dtype=np.int64), np.array(block, dtype=np.int64), 0, 1, 5, remaining
        with pytest.raises(CommitError, match=f"{len(block)} rows, {remaining} remaining"):
            replay.replay_round(*given_, np.array([9]), LUCE)
