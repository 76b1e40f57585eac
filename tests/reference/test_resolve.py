"""Transactions of a batch: sound ones move every row by its own count, and one bad row refuses them whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dflash_reference import commit, resolve
from dflash_reference.names import Position, TokenId
from dflash_spec.errors import CommitError
from dflash_spec.registry import load_profile
from hypothesis import given
from hypothesis import strategies as st

PROFILE = load_profile("ninfer")
WIDTH, CAPACITY, PUBLIC = 4, 300, 50


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    """The inputs of a batch that is committed."""
    rows = draw(st.integers(1, 4))
    frontiers = draw(st.lists(st.integers(1, CAPACITY - WIDTH), min_size=rows, max_size=rows))
    accepted = draw(st.lists(st.integers(0, WIDTH - 1), min_size=rows, max_size=rows))
    licensed = np.full((rows, WIDTH), -1)
    kept, ends = [], []
    for row, count in enumerate(accepted):
        licensed[row, : count + 1] = draw(st.lists(st.integers(0, PUBLIC - 1), min_size=count + 1, max_size=count + 1))
        ends.append(draw(st.sampled_from([resolve.GOES_ON, resolve.ENDS, resolve.CANCELLED])))
        kept.append({0: count + 1, 1: draw(st.integers(1, count + 1)), 2: 0}[ends[-1]])
    base = np.array([[at, at + 1, at, at] for at in frontiers])
    counts = np.array(accepted) + 1
    return {
        "base": base, "present": base.copy(), "anchors": np.arange(rows) + 30, "widths": np.full(rows, WIDTH),
        "extents": np.array(accepted), "accepted": np.array(accepted), "counts": counts, "licensed": licensed,
        "kept": np.array(kept), "ends": np.array(ends), "remaining": counts, "capacity": CAPACITY, "public": PUBLIC,
        "consumed": 0,
    }  # fmt: skip


@given(batch=batches())
def test_every_row_moves_by_what_it_keeps_and_stays_ready_for_its_next_round(batch: dict[str, Any]) -> None:
    done = resolve.resolve(**batch, profile=PROFILE)
    for row, at in enumerate(batch["base"][:, 0]):
        kept, end = int(batch["kept"][row]), batch["ends"][row]
        execution, ledger, target, context = (int(value) for value in done.frontiers[row])
        assert execution == target == ledger - 1 == at + kept
        assert context + done.pending[row] == execution
        assert context == (at if end == resolve.GOES_ON else execution)
        single = commit.commit(
            TokenId(int(batch["anchors"][row])), batch["licensed"][row, : batch["counts"][row]], kept,
            Position(int(at)), int(at) + WIDTH, PROFILE,
        )  # fmt: skip
        assert (single.next_anchor, single.next_frontier) == (done.anchors_next[row], execution)
    whole = np.ones(len(done.pending), dtype=np.int64), done.frontiers, np.ones_like(done.pending), CAPACITY + 1, WIDTH
    again = resolve.ready(*whole, PROFILE)
    assert again.counts.tolist() == done.pending.tolist()
    for row, count in enumerate(again.counts):
        start = int(done.frontiers[row, resolve.CONTEXT])
        assert again.positions[row, :count].tolist() == list(range(start, start + count))
        assert set(again.positions[row, count:].tolist()) <= {max(start, start + count - 1)}


SPOILS = {
    "accepted": (lambda batch, row: batch["accepted"][row] + 1, "licensed"),
    "extents": (lambda batch, row: batch["accepted"][row] - 1, "licensed"),
    "remaining": (lambda batch, row: batch["counts"][row] - 1, "the budget"),
    "widths": (lambda batch, row: WIDTH - 1, "widths"),
}


@given(batch=batches(), name=st.sampled_from(sorted(SPOILS)), data=st.data())
def test_one_bad_row_refuses_the_batch_by_name(batch: dict[str, Any], name: str, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(batch["counts"]) - 1))
    spoil, complaint = SPOILS[name]
    batch[name] = batch[name].copy()
    batch[name][row] = spoil(batch, row)
    with pytest.raises(CommitError, match=complaint):
        resolve.resolve(**batch, profile=PROFILE)


@given(batch=batches(), row=st.integers(0, 3), column=st.integers(0, 3), by=st.sampled_from([-1, 1]))
def test_a_row_of_which_any_part_has_moved_refuses_the_batch(
    batch: dict[str, Any], row: int, column: int, by: int
) -> None:
    batch["present"][row % len(batch["present"]), column] += by
    with pytest.raises(CommitError, match="frontiers"):
        resolve.resolve(**batch, profile=PROFILE)


@given(batch=batches(), row=st.integers(0, 3), kept=st.integers(0, WIDTH + 1), end=st.integers(0, 3))
def test_a_row_keeps_all_that_goes_on_some_that_ends_and_nothing_that_is_cancelled(
    batch: dict[str, Any], row: int, kept: int, end: int
) -> None:
    row %= len(batch["counts"])
    count = batch["counts"][row]
    batch["kept"][row], batch["ends"][row] = kept, end
    if {0: kept == count, 1: 1 <= kept <= count, 2: kept == 0, 3: False}[end]:
        resolve.resolve(**batch, profile=PROFILE)
        return
    with pytest.raises(CommitError, match=f"kept {kept} of {count} at end {end}"):
        resolve.resolve(**batch, profile=PROFILE)


@given(batch=batches())
def test_a_cache_that_is_just_filled_is_enough_and_one_row_less_is_not(batch: dict[str, Any]) -> None:
    batch["capacity"] = int((batch["base"][:, 0] + batch["counts"]).max())
    resolve.resolve(**batch, profile=PROFILE)
    batch["capacity"] -= 1
    with pytest.raises(CommitError, match=f"to end at {batch['capacity']}"):
        resolve.resolve(**batch, profile=PROFILE)


def test_more_tokens_than_the_block_has_columns_refuse_the_batch() -> None:
    with pytest.raises(CommitError, match="5 licensed and 4 accepted of 4 proposals"):
        resolve.licenses(0, 5, 4, 4, 4)
    resolve.licenses(0, 4, 3, 3, 4)


READY = {"active": 1, "execution": 20, "ledger": 21, "target": 20, "context": 15, "remaining": 1}
UNREADY = [
    ({"active": 0}, "not active"), ({"remaining": 0}, "0 tokens of its budget"), ({"execution": 24}, "less than 24"),
    ({"target": 21}, "21 valid target rows"), ({"target": 19}, "19 valid target rows"), ({"ledger": 20}, "20 tokens"),
    ({"ledger": 22}, "22 tokens"), ({"context": 21}, "context frontier 21"), ({"context": 14}, "context frontier 14"),
]  # fmt: skip


def started(**other: int) -> resolve.Ready:
    """A batch of two rows, of which the second is ready on every edge but where it is told otherwise."""
    given_ = READY | other
    frontiers = [given_[name] for name in ("execution", "ledger", "target", "context")]
    rows = np.array([[7, 8, 7, 7], frontiers])
    return resolve.ready(np.array([1, given_["active"]]), rows, np.array([3, given_["remaining"]]), 24, 5, PROFILE)


@pytest.mark.parametrize(("other", "complaint"), UNREADY, ids=[str(other) for other, _ in UNREADY])
def test_a_row_whose_parts_disagree_starts_no_round(other: dict[str, int], complaint: str) -> None:
    with pytest.raises(CommitError, match=f"row 1: .*{complaint}"):
        started(**other)


def test_a_row_that_lacks_a_whole_block_or_has_one_position_left_may_start() -> None:
    assert started().counts.tolist() == [0, 5]
    assert started(execution=23, ledger=24, target=23, context=18).positions[1].tolist() == [18, 19, 20, 21, 22]


@given(batch=batches(), token=st.sampled_from([-1, PUBLIC, 10**6]), data=st.data())
def test_a_token_that_no_text_holds_refuses_the_batch_though_it_would_be_cut(
    batch: dict[str, Any], token: int, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(batch["counts"]) - 1))
    batch["licensed"][row, batch["counts"][row] - 1] = token
    with pytest.raises(CommitError, match=f"row {row}: token {token}, expected 0 to 49"):
        resolve.resolve(**batch, profile=PROFILE)


def test_a_batch_that_was_resolved_is_not_resolved_again() -> None:
    row = np.array([[5, 6, 5, 5]])
    one = np.array([1])
    with pytest.raises(CommitError, match="resolved once"):
        resolve.resolve(
            row, row, one, np.array([4]), one, one - 1, one, np.array([[7, -1, -1, -1]]), one, one - 1, one + 8,
            99, 50, 1, PROFILE,
        )  # fmt: skip


@given(batch=batches(), own_law=st.integers(0, 1))
def test_what_is_seen_from_outside_comes_after_every_effect_on_the_state(batch: dict[str, Any], own_law: int) -> None:
    given_ = batch["counts"], batch["kept"], batch["ends"], own_law
    effects = resolve.effects(*given_, 0, PROFILE).effects
    kinds = effects[:, 0].tolist()
    assert kinds == sorted(kinds)
    keeping = np.flatnonzero(batch["kept"]).tolist()
    for kind in (resolve.FOLD, resolve.MOVE, resolve.BUDGET, resolve.SESSION, resolve.EVENTS):
        assert effects[effects[:, 0] == kind][:, 1].tolist() == keeping
    assert (resolve.COUNTS in kinds) == bool(own_law and keeping)
    assert set(effects[effects[:, 0] == resolve.APPEND][:, 1]) == set(np.flatnonzero(batch["ends"])) & set(keeping)
    assert all(count == batch["kept"][row] for _, row, count in effects)
    cut = [row for row in keeping if batch["kept"][row] < batch["counts"][row]]
    assert effects[effects[:, 0] == resolve.HIDDEN][:, 1].tolist() == cut
    assert len(resolve.effects(*given_, 1, PROFILE).effects) == 0


@given(
    rows=st.lists(st.integers(0, 4), min_size=1, max_size=4), width=st.integers(4, 6), frontier=st.integers(0, 9)
)  # fmt: skip
def test_each_batch_row_takes_its_own_columns_and_its_own_features(rows: list[int], width: int, frontier: int) -> None:
    """Values name their batch row and column: row b holds 100 b, 100 b + 1, ..."""
    values = 100.0 * np.arange(len(rows))[:, np.newaxis] + np.arange(width)
    kept, frontiers = np.array(rows), frontier + 10 * np.arange(len(rows))
    previous = -1.0 - np.arange(len(rows))[:, np.newaxis]
    hidden = commit.hidden(values[:, :, np.newaxis], previous, kept, PROFILE).hidden_next
    got = commit.features(values.reshape(-1, 1), width, kept, frontiers, PROFILE)
    wanted = [(100.0 * row + slot, frontiers[row] + slot) for row, count in enumerate(rows) for slot in range(count)]
    assert list(zip(got.features[:, 0].tolist(), got.positions.tolist(), strict=True)) == wanted
    for row, count in enumerate(rows):
        assert hidden[row, 0] == (100.0 * row + count - 1 if count else -1.0 - row)


def test_columns_that_are_not_there_are_refused() -> None:
    with pytest.raises(CommitError, match=r"kept \[4\], expected 0 to 3"):
        commit.hidden(np.zeros((1, 3, 2)), np.zeros((1, 2)), np.array([4]), PROFILE)
    with pytest.raises(CommitError, match="5 rows, expected 2 times 3"):
        commit.features(np.zeros((5, 2)), 3, np.array([1, 1]), np.array([0, 0]), PROFILE)
