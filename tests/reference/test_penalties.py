"""Masks, penalties and counts, against FP32 arithmetic of NumPy's and what the rules say in words."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from dflash_reference import penalties, processing
from dflash_reference.names import TokenId
from dflash_spec.errors import DFlashError, RequestError, TensorError
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from hypothesis import given
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
F32 = np.float32
WIDTH, PUBLIC = 7, 5
LOGIT = st.integers(-2000, 2000).map(lambda steps: steps / 64)
"""Of BF16 or not: adding is exact in neither case, since the penalties have all of FP32's bits."""
PENALTY = st.floats(-2, 2, width=32)
TOKENS = st.lists(st.integers(0, PUBLIC - 1), max_size=6)


def asked(**changes: Any) -> dict[str, Any]:
    """Arguments of proc.adjust for two rows, in which nothing is forbidden, has occurred or is penalised."""
    return {
        "logits": np.array([[1.0, -2.0, 3.0, 0.5, -0.25, 9.0, 9.0], [2.0, 2.0, 2.0, 2.0, 2.0, 9.0, 9.0]]),
        "public": PUBLIC, "allowed": np.ones((2, WIDTH), np.int64), "counts": np.zeros(WIDTH, np.int64),
        "overlay": np.full((2, 1), -1), "presence": 0.0, "frequency": 0.0,
    } | changes  # fmt: skip


def adjusted(**changes: Any) -> Array:
    return penalties.adjust(**asked(**changes), profile=NINFER).adjusted


def said(logit: float, count: int, presence: float, frequency: float) -> float:
    """One logit, each step an operation of FP32."""
    if count == 0 or (presence == 0 and frequency == 0):
        return logit
    x = F32(logit) - F32(presence)
    return float(x - F32(frequency) * F32(count) if frequency else x)


@given(
    row=st.lists(LOGIT, min_size=WIDTH, max_size=WIDTH), counts=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    own=st.lists(st.integers(-1, PUBLIC - 1), min_size=4, max_size=4), presence=PENALTY, frequency=PENALTY,
    allowed=st.lists(st.integers(0, 1), min_size=WIDTH, max_size=WIDTH).filter(lambda mask: any(mask[:PUBLIC])),
)  # fmt: skip
def test_a_logit_is_penalised_by_its_count_and_its_rows_own_occurrences(
    row: list[float], counts: list[int], own: list[int], presence: float, frequency: float, allowed: list[int]
) -> None:
    got = penalties.adjust(
        np.array([row, row]), PUBLIC, np.array([allowed, [1] * WIDTH]), np.array(counts),
        np.array([own, [-1] * 4]), presence, frequency, NINFER,
    ).adjusted  # fmt: skip
    plain, seen = Counter(dict(enumerate(counts))), Counter(own)
    for id_ in range(WIDTH):
        open_ = id_ < PUBLIC and allowed[id_]
        mine = said(row[id_], plain[id_] + seen[id_], presence, frequency)
        assert got[0, id_] == (mine if open_ else -np.inf)
        assert got[1, id_] == (said(row[id_], plain[id_], presence, frequency) if id_ < PUBLIC else -np.inf)


@given(emitted=TOKENS, drafts=TOKENS, presence=PENALTY, frequency=PENALTY)
def test_every_row_of_a_verify_pass_is_adjusted_as_plain_decoding_would_there(
    emitted: list[int], drafts: list[int], presence: float, frequency: float
) -> None:
    text = [*emitted, 3]  # the anchor is emitted, and counted once
    proposals = np.array(drafts, dtype=np.int64)
    overlay = penalties.overlay(TokenId(3), proposals, NINFER).overlay
    rows = np.linspace(-1, 1, (len(drafts) + 1) * WIDTH).astype(F32).astype(np.float64).reshape(-1, WIDTH)
    allowed = np.ones(rows.shape, np.int64)
    counts = np.bincount(text, minlength=WIDTH)
    pass_ = penalties.adjust(rows, PUBLIC, allowed, counts, overlay, presence, frequency, NINFER).adjusted
    for place, row in enumerate(rows):
        before = np.bincount(text + drafts[:place], minlength=WIDTH)
        none = np.zeros((1, 0), np.int64)
        step = penalties.adjust(row[None], PUBLIC, allowed[:1], before, none, presence, frequency, NINFER).adjusted
        assert pass_[place].tolist() == step[0].tolist()


def test_the_overlay_holds_the_proposals_before_each_row_and_never_the_anchor() -> None:
    got = penalties.overlay(TokenId(9), np.array([4, 6, 4]), NINFER).overlay
    assert got.tolist() == [[-1, -1, -1], [4, -1, -1], [4, 6, -1], [4, 6, 4]]
    assert penalties.overlay(TokenId(9), np.zeros(0, np.int64), NINFER).overlay.shape == (1, 0)


def test_a_proposal_that_stands_twice_in_the_block_counts_twice() -> None:
    overlay = np.array([[2, 2, -1], [2, -1, -1]])
    got = adjusted(overlay=overlay, presence=0.5, frequency=0.125, counts=np.array([0, 0, 1, 0, 0, 0, 0]))
    assert got[:, 2].tolist() == [3.0 - 0.5 - 3 * 0.125, 2.0 - 0.5 - 2 * 0.125]


def test_presence_is_rounded_off_before_frequency_is() -> None:
    # 1 - 2^-25 rounds to 1 twice; both at once would give 1 - 2^-24.
    got = adjusted(counts=np.array([1, 0, 0, 0, 0, 0, 0]), presence=2.0**-25, frequency=2.0**-25)
    assert got[0, 0] == 1.0


def test_a_negative_penalty_lifts_what_has_occurred() -> None:
    got = adjusted(counts=np.array([0, 2, 0, 0, 0, 0, 0]), presence=-1.5, frequency=-0.75)
    assert got[0, :PUBLIC].tolist() == [1.0, 1.0, 3.0, 0.5, -0.25]


def test_penalties_of_zero_leave_every_bit_alone() -> None:
    rows = np.array([[1e-40, -0.0, 3.0, 0.1, 2.0**-149, 0.0, 0.0]])
    counts = np.array([4, 3, 1, 1, 2, 0, 0])
    got = adjusted(logits=rows, counts=counts, allowed=np.ones((1, 7)), overlay=np.full((1, 1), -1))
    assert got[0, :PUBLIC].tobytes() == rows[0, :PUBLIC].tobytes()


@pytest.mark.parametrize("only", range(PUBLIC))
def test_where_all_ids_but_one_are_masked_it_is_chosen_and_drawn(only: int) -> None:
    allowed = np.zeros((2, WIDTH), np.int64)
    allowed[:, only] = 1
    rows = adjusted(allowed=allowed, counts=np.arange(WIDTH), presence=2.0, frequency=1.0)
    assert processing.choose(rows, 0.0, NINFER).tokens.tolist() == [only, only]
    law = processing.filtered(rows, 0.7, 0, 0.0, 1.0, NINFER)
    assert law.kept.tolist() == [1, 1]
    for u in (0.0, 1 - 2.0**-24):
        assert processing.draw(law.support, law.p, np.array([u, u]), NINFER).tokens.tolist() == [only, only]


def test_what_is_not_public_may_be_anything() -> None:
    rows = asked()["logits"].copy()
    rows[:, PUBLIC:] = [[np.nan, np.inf], [-np.inf, np.nan]]
    assert adjusted(logits=rows).tolist() == adjusted().tolist()


def row_with(place: int, value: float) -> Array:
    rows: Array = asked()["logits"].copy()
    rows[1, place] = value
    return rows


FORBIDDEN = np.array([[1] * WIDTH, [1, 1, 0, 1, 1, 1, 1]])
WRONG: list[tuple[dict[str, Any], type[DFlashError], str]] = [
    ({"logits": row_with(2, np.nan)}, TensorError, "logits row 1: the largest is nan"),
    ({"logits": row_with(2, np.nan), "allowed": FORBIDDEN}, TensorError, "logits row 1: the largest is nan"),
    ({"logits": row_with(4, np.inf)}, TensorError, "logits row 1: the largest is inf"),
    ({"allowed": np.array([[1] * 7, [0] * 5 + [1] * 2])}, TensorError, "logits row 1: the largest is -inf"),
    ({"logits": np.full((2, 7), -np.inf)}, TensorError, "logits row 0: the largest is -inf"),
    ({"public": 8}, TensorError, "public is 8, expected 1 to 7"),
    ({"overlay": np.array([[7], [-1]])}, TensorError, "overlay of -1 to 7, expected -1 to 6"),
    ({"overlay": np.array([[-2], [-1]])}, TensorError, "overlay of -2 to -1, expected -1 to 6"),
    ({"presence": float("nan")}, RequestError, "presence is nan, expected a finite number of F32"),
    ({"frequency": float("-inf")}, RequestError, "frequency is -inf, expected a finite number of F32"),
    ({"frequency": 1e39}, RequestError, "frequency is 1e+39, expected a finite number of F32"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG, ids=[row[2] for row in WRONG])
def test_what_cannot_be_adjusted_is_refused_by_name(
    wrong: dict[str, Any], error: type[DFlashError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        adjusted(**wrong)


def test_a_penalty_that_carries_a_logit_out_of_f32_is_refused_except_where_it_is_forbidden() -> None:
    huge = {"counts": np.array([0, 0, 9, 0, 0, 0, 0]), "frequency": -3e38}
    without = np.array([[1, 1, 0, 1, 1, 1, 1]] * 2)
    assert np.isneginf(adjusted(allowed=without, **huge)[:, 2]).all()
    with pytest.raises(TensorError, match="logits row 0: the largest is inf"):
        adjusted(**huge)


def test_a_profile_without_penalties_refuses_one_and_masks_all_the_same() -> None:
    for name in ("presence", "frequency"):
        with pytest.raises(RequestError, match=f"{name} is -0.5, expected 0: profile zlab has no penalties"):
            penalties.adjust(**asked(**{name: -0.5}), profile=ZLAB)
    got = penalties.adjust(**asked(allowed=FORBIDDEN), profile=ZLAB).adjusted
    assert got[1].tolist() == [2.0, 2.0, -np.inf, 2.0, 2.0, -np.inf, -np.inf]


@given(prompt=TOKENS, emitted=TOKENS, licensed=TOKENS, data=st.data())
def test_counts_are_of_emitted_tokens_and_of_what_the_kind_of_round_counts(
    prompt: list[int], emitted: list[int], licensed: list[int], data: st.DataObject
) -> None:
    kept, own_law = data.draw(st.integers(0, len(licensed))), data.draw(st.integers(0, 1))
    given_ = [np.array(tokens, dtype=np.int64) for tokens in (prompt, emitted, licensed)]
    got = penalties.count(given_[0], given_[1], given_[2], kept, own_law, PUBLIC, NINFER).counts
    counter = Counter(emitted) + Counter(licensed[:kept] if own_law else licensed)
    assert got.tolist() == [counter[id_] for id_ in range(PUBLIC)]


def test_tokens_and_counts_that_cannot_be_are_refused() -> None:
    two, none = np.array([1, 4]), np.zeros(0, np.int64)
    with pytest.raises(TensorError, match=r"kept is 3, expected 0 to 2"):
        penalties.count(none, none, two, 3, 1, PUBLIC, NINFER)
    with pytest.raises(TensorError, match=r"token 5, expected 0 to 4"):
        penalties.count(none, np.array([5]), two, 1, 1, PUBLIC, NINFER)
    with pytest.raises(TensorError, match=r"token -1, expected 0 to 4"):
        penalties.count(none, none, np.array([-1]), 0, 0, PUBLIC, NINFER)
