"""Sample-and-match over every outcome of its draws, and what a NaN does to each rule of acceptance."""

from fractions import Fraction
from itertools import accumulate, pairwise, product
from math import prod

import numpy as np
import pytest
from dflash_reference import law
from dflash_spec.errors import TensorError
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from hypothesis import given
from hypothesis import strategies as st

NINFER, ZLAB, APRIL = load_profile("ninfer"), load_profile("zlab"), load_profile("zlab-2026-04")
BOTH = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
Law = dict[int, Fraction]
SUPPORT, NO_TOKEN = [5, 2, 9], 7


@st.composite
def laws(draw: st.DrawFn) -> Law:
    """A law over three tokens, in an order of its own, zeros included."""
    weights = draw(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any))
    ids = draw(st.permutations(SUPPORT))
    return {token: Fraction(weight, sum(weights)) for token, weight in zip(ids, weights, strict=True)}


def intervals(row: Law) -> list[tuple[Fraction, Fraction]]:
    """Inner point and length of each interval of u in which the draw from a row is one token."""
    cuts = sorted({Fraction(0), *accumulate(row.values())})
    return [((low + high) / 2, high - low) for low, high in pairwise(cuts)]


@given(rows=st.lists(laws(), min_size=1, max_size=3), data=st.data())
def test_matched_rounds_emit_the_targets_own_draws_up_to_the_first_that_differs(
    rows: list[Law], data: st.DataObject
) -> None:
    drafted = data.draw(st.lists(st.sampled_from([*SUPPORT, NO_TOKEN]), min_size=len(rows) - 1, max_size=len(rows) - 1))
    proposals, support = np.array(drafted, dtype=np.int64), np.array([list(row) for row in rows])
    p = np.empty(support.shape, dtype=object)
    for place, row in enumerate(rows):
        p[place] = list(row.values())
    found: dict[tuple[int, ...], Fraction] = {}
    for coins in product(*(intervals(row) for row in rows)):
        got = law.match(proposals, support, p, np.array([u for u, _ in coins], dtype=object), APRIL)
        kept = tuple(got.licensed[: got.accepted + 1].tolist())
        assert not got.licensed[got.accepted + 1 :].any()
        assert len(got.licensed) == len(rows)
        found[kept] = found.get(kept, Fraction(0)) + prod(length for _, length in coins)
    hits = [row.get(token, Fraction(0)) for row, token in zip(rows, drafted, strict=False)]
    expected = {
        (*drafted[:count], token): prod(hits[:count], start=chance)
        for count in range(len(rows))
        for token, chance in rows[count].items()
        if count == len(drafted) or token != drafted[count]
    }
    assert found == {kept: chance for kept, chance in expected.items() if chance}


def test_a_uniform_on_an_edge_draws_the_rank_above_and_decides_the_match() -> None:
    support, p = np.array([[8, 3], [3, 8]]), np.array([[0.5, 0.5], [0.25, 0.75]])
    below = law.match(np.array([8]), support, p, np.array([0.5 - 2.0**-24, 0.0]), APRIL)
    assert (below.accepted, below.licensed.tolist()) == (1, [8, 3])
    edge = law.match(np.array([8]), support, p, np.array([0.5, 0.0]), APRIL)
    assert (edge.accepted, edge.licensed.tolist()) == (0, [3, 0])


def test_rows_and_uniforms_that_do_not_fit_are_refused() -> None:
    support, p = np.array([[1, 2]] * 2), np.full((2, 2), 0.5)
    with pytest.raises(TensorError, match=r"law\.match: 2 target rows, expected 3"):
        law.match(np.array([1, 2]), support, p, np.zeros(3), APRIL)
    with pytest.raises(TensorError, match=r"law\.match: 1 uniforms, expected 2"):
        law.match(np.array([1]), support, p, np.zeros(1), APRIL)
    with pytest.raises(TensorError, match=r"row 1: probability 0 is NaN"):
        law.match(np.array([1]), support, np.array([[0.5, 0.5], [np.nan, 1.0]]), np.zeros(2), APRIL)


IDS = np.array([[3, 6, 1]] * 3)
PROPOSALS = np.array([6, 3])


def rows(*nan: tuple[int, int]) -> Array:
    p = np.array([[0.25, 0.5, 0.25]] * 3)
    for place in nan:
        p[place] = np.nan
    return p


def one_hot(p: Array, coins: tuple[float, float], end: float = 0.0) -> list[int]:
    got = law.one_hot(PROPOSALS, IDS, p, np.array(coins), end, NINFER)
    return [got.accepted, *got.licensed.tolist()]


def sparse(p: Array, coins: tuple[float, float], q: Array, profile: object = ZLAB) -> list[int]:
    got = law.sparse(PROPOSALS, IDS[:2], q, IDS, p, np.array(coins), 0.0, profile)  # type: ignore[arg-type]
    return [got.accepted, *got.licensed.tolist()]


def test_a_nan_at_a_certain_proposal_rejects_it_and_the_correction_is_refused() -> None:
    for end in (0.0, 0.999):
        with pytest.raises(TensorError, match=r"law\.one_hot: p\[0\]: probability 1 is NaN"):
            one_hot(rows((0, 1)), (0.0, 0.0), end)


def test_a_nan_beside_a_proposal_is_not_read_by_its_test_and_refuses_the_draw_alone() -> None:
    assert one_hot(rows((0, 2)), (0.25, 0.0)) == [2, 6, 3, 3]
    with pytest.raises(TensorError, match=r"law\.one_hot: p\[0\]: probability 2 is NaN"):
        one_hot(rows((0, 2)), (0.5, 0.0))
    with pytest.raises(TensorError, match=r"law\.one_hot: p\[2\]: probability 0 is NaN"):
        one_hot(rows((2, 0)), (0.25, 0.0))


def test_a_nan_in_a_row_after_the_rejection_has_no_effect() -> None:
    late = rows((1, 0), (1, 1), (1, 2), (2, 0), (2, 1))
    assert one_hot(late, (0.75, 0.0)) == one_hot(rows(), (0.75, 0.0)) == [0, 3, 0, 0]
    q = np.array([[0.0, 1.0, 0.0], [np.nan] * 3])
    assert sparse(late, (0.75, 0.0), q) == sparse(rows(), (0.75, 0.0), np.array([[0.0, 1.0, 0.0]] * 2)) == [0, 3, 0, 0]


@BOTH
def test_a_nan_at_a_drawn_proposal_rejects_it_in_either_law(profile: object) -> None:
    q = np.array([[0.25, 0.5, 0.25]] * 2)
    with pytest.raises(TensorError, match=r"law\.sparse: p\[0\]: probability 1 is NaN"):
        sparse(rows((0, 1)), (0.0, 0.0), q, profile)
    q[0, 1] = np.nan
    with pytest.raises(TensorError, match=r"law\.sparse: q\[0\]: probability 1 is NaN"):
        sparse(rows(), (0.0, 0.0), q, profile)


@BOTH
def test_a_nan_in_the_law_of_an_accepted_proposal_is_not_read(profile: object) -> None:
    q = np.array([[np.nan, 0.5, 0.25], [0.25, np.nan, np.nan]])
    assert sparse(rows((0, 0), (1, 1)), (0.0, 0.0), q, profile) == [2, 6, 3, 3]


def test_a_nan_in_the_bonus_row_is_refused() -> None:
    q = np.array([[0.25, 0.5, 0.25]] * 2)
    with pytest.raises(TensorError, match=r"law\.sparse: p\[2\]: probability 2 is NaN"):
        sparse(rows((2, 2)), (0.0, 0.0), q)
