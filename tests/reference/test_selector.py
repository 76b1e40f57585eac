"""The walk through the candidates: its law by enumeration, its conditioning, and its ties."""

import math
from fractions import Fraction
from itertools import accumulate, pairwise, product
from typing import Any

import mpmath
import numpy as np
import pytest
from dflash_reference import num, selector
from dflash_reference.names import TokenId
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from dflash_vectors import inputs
from hypothesis import given
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
PROFILES = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
ANCHOR = TokenId(3)
ROUNDED = 2.0**-24
"""The largest relative error of a rounding to FP32."""


def lattice_walk(key: str, steps: int, count: int, rank: int = 3, vocabulary: int = 23) -> dict[str, Any]:
    """Inputs whose scores are exact in FP32; every slot has candidates of its own."""
    ids = np.argsort(inputs.hashes(f"{key}/ids", (vocabulary,)))[: steps * count]
    return {
        "candidates": ids.reshape(steps, count),
        "unary": inputs.lattice(f"{key}/unary", (steps, count), 0.25, 2.0),
        "g": inputs.lattice(f"{key}/g", (steps, rank), 0.25, 1.0),
        "predecessor": inputs.lattice(f"{key}/predecessor", (vocabulary, rank), 0.25, 1.0),
        "successor": inputs.lattice(f"{key}/successor", (vocabulary, rank), 0.25, 1.0),
        "anchor": ANCHOR,
    }


def walk(given_: dict[str, Any], temperature: float, u: Array, profile: Profile) -> selector.Walk:
    return selector.walk(**given_, temperature=temperature, u=u, profile=profile)


def edge(given_: dict[str, Any], step: int, before: int, rank: int) -> Fraction:
    """The score of candidate `rank` at `step` after token `before`, by the rule in words."""
    after = int(given_["candidates"][step, rank])
    bilinear = sum(
        Fraction(p) * Fraction(g) * Fraction(s)
        for p, g, s in zip(given_["predecessor"][before], given_["g"][step], given_["successor"][after], strict=True)
    )
    return Fraction(given_["unary"][step, rank]) + bilinear


@PROFILES
@given(key=st.integers(0, 500).map(str), steps=st.integers(1, 4), count=st.integers(1, 5), temperature=st.just(0.0))
def test_a_greedy_walk_takes_the_first_best_edge_after_the_token_that_it_took(
    profile: Profile, key: str, steps: int, count: int, temperature: float
) -> None:
    given_ = lattice_walk(key, steps, count)
    got = walk(given_, temperature, np.full(steps, np.nan), profile)
    before = int(ANCHOR)
    for step in range(steps):
        edges = [edge(given_, step, before, rank) for rank in range(count)]
        assert [Fraction(score) for score in got.scores[step]] == edges
        best = edges.index(max(edges))
        before = int(given_["candidates"][step, best])
        assert got.proposals[step] == before
        assert got.q[step].tolist() == [float(rank == best) for rank in range(count)]


def test_unary_greedy_the_walk_and_the_best_path_are_three_answers() -> None:
    predecessor, successor = np.zeros((6, 1)), np.zeros((6, 1))
    predecessor[[0, 3], 0] = 1.0, 8.0
    successor[[2, 3, 5], 0] = 2.0, 3.0, 1.0
    given_: dict[str, Any] = {
        "candidates": np.array([[1, 2, 3], [4, 5, 0]]),
        "unary": np.array([[4.0, 3.0, 0.0], [2.0, 1.0, -9.0]]),
        "g": np.ones((2, 1)), "predecessor": predecessor, "successor": successor, "anchor": TokenId(0),
    }  # fmt: skip
    unary = [int(given_["candidates"][step, np.argmax(given_["unary"][step])]) for step in range(2)]

    def total(path: tuple[int, ...]) -> Fraction:
        first = edge(given_, 0, 0, path[0])
        return first + edge(given_, 1, int(given_["candidates"][0, path[0]]), path[1])

    best = max(product(range(3), repeat=2), key=total)
    assert unary == [1, 4]
    assert walk(given_, 0.0, np.zeros(2), NINFER).proposals.tolist() == [2, 4]
    assert [int(given_["candidates"][step, rank]) for step, rank in enumerate(best)] == [3, 5]


@PROFILES
@given(key=st.integers(0, 500).map(str), temperature=st.sampled_from([0.25, 1.0, 3.0]))
def test_a_path_is_as_likely_as_the_product_of_its_conditionals(profile: Profile, key: str, temperature: float) -> None:
    steps, count = 2, 3
    given_ = lattice_walk(key, steps, count)
    found: dict[tuple[int, ...], Fraction] = {}
    conditional: dict[tuple[int, ...], Fraction] = {}

    def descend(us: list[float], path: tuple[int, ...], weight: Fraction) -> None:
        """Every outcome of the uniform at the next step, weighed by the length of its interval."""
        if len(us) == steps:
            found[path] = found.get(path, Fraction(0)) + weight
            return
        probe = walk(given_, temperature, np.array(us + [0.5] * (steps - len(us))), profile)
        q = [Fraction(weight) for weight in probe.q[len(us)]]
        conditional.update({(*path, int(token)): p for token, p in zip(given_["candidates"][len(us)], q, strict=True)})
        cuts = sorted({Fraction(0), Fraction(1)} | {min(cut, Fraction(1)) for cut in accumulate(q)})
        for low, high in pairwise(cuts):
            inner = [*us, float((low + high) / 2)]
            done = walk(given_, temperature, np.array(inner + [0.5] * (steps - len(inner))), profile)
            descend(inner, (*path, int(done.proposals[len(us)])), weight * (high - low))

    descend([], (), Fraction(1))
    # A row of three FP32 values can miss 1 by half a last place of each; the last rank gains or loses that much.
    slack = 3 * Fraction(ROUNDED)
    for path in product(*given_["candidates"].tolist()):
        # A first token of q 0 is never drawn, and nothing is known of what would follow.
        expected = conditional[path[:1]] * conditional.get(path, Fraction(0))
        assert abs(found.get(path, Fraction(0)) - expected) <= steps * slack
    assert sum(found.values()) == 1


@PROFILES
@given(key=st.integers(0, 500).map(str), temperature=st.sampled_from([0.125, 1.0, 2.5]), count=st.integers(1, 6))
def test_q_is_the_softmax_of_the_whole_score_over_the_temperature(
    profile: Profile, key: str, temperature: float, count: int
) -> None:
    got = walk(lattice_walk(key, 2, count), temperature, np.array([0.25, 0.75]), profile)
    for scores, q in zip(got.scores, got.q, strict=True):
        powers = [mpmath.exp((score - scores.max()) / temperature) for score in scores.tolist()]
        for weight, power in zip(q.tolist(), powers, strict=True):
            exact = power / sum(powers)
            # One rounding to FP32; the float64 steps before it are 2^-50 at most and can move it across a midpoint.
            assert abs(weight - exact) <= exact * (ROUNDED + 2.0**-50)
            assert weight == np.float64(np.float32(weight))


@PROFILES
@given(key=st.integers(0, 500).map(str), u=st.integers(0, 2**24 - 1))
def test_the_draw_is_the_first_rank_whose_cumulative_kept_q_exceeds_u(profile: Profile, key: str, u: int) -> None:
    given_ = lattice_walk(key, 1, 4)
    got = walk(given_, 1.0, np.array([u / 2**24]), profile)
    above = [rank for rank, total in enumerate(accumulate(got.q[0].tolist())) if total > u / 2**24]
    expected = above[0] if above else 3
    assert got.proposals[0] == given_["candidates"][0, expected]


@pytest.mark.parametrize(("profile", "rank"), [(NINFER, 3), (ZLAB, 1)], ids=["ninfer", "zlab"])
def test_where_no_rank_qualifies_the_last_one_or_the_last_with_mass_is_drawn(profile: Profile, rank: int) -> None:
    short = np.array([0.5, 0.5 - 2**-24, 0.0, 0.0])
    assert selector.drawn(short, 1 - 2**-24, profile) == rank
    assert selector.drawn(short, 1 - 2**-23, profile) == 1


@PROFILES
def test_a_uniform_on_a_threshold_belongs_to_the_rank_above(profile: Profile) -> None:
    q = np.array([0.25, 0.0, 0.5, 0.25])
    assert [selector.drawn(q, u, profile) for u in (0.0, 0.25 - 2**-24, 0.25, 0.75)] == [0, 0, 2, 3]


def test_every_dimension_of_the_rank_counts() -> None:
    rank = 256
    given_ = lattice_walk("rank", 1, 2, rank=rank)
    given_["unary"][:] = 0.0
    given_["predecessor"][:] = given_["successor"][:] = 0.0
    given_["g"][:] = 1.0
    given_["predecessor"][ANCHOR, 200] = 1.0
    given_["successor"][given_["candidates"][0, 1], 200] = 0.5
    assert walk(given_, 0.0, np.zeros(1), NINFER).scores.tolist() == [[0.0, 0.5]]


def test_the_codebooks_are_not_exchanged() -> None:
    predecessor, successor = np.array([[1.0], [2.0]]), np.array([[16.0], [4.0]])
    got = selector.walk(
        np.array([[0, 1]]), np.zeros((1, 2)), np.ones((1, 1)), predecessor, successor, TokenId(1), 0.0, np.zeros(1),
        NINFER,
    )  # fmt: skip
    assert got.scores.tolist() == [[32.0, 8.0]]


@PROFILES
def test_equal_edges_go_to_the_lowest_rank_whatever_its_id(profile: Profile) -> None:
    given_ = lattice_walk("ties", 2, 4)
    given_["unary"][:] = 0.0
    given_["g"][:] = 0.0
    given_["candidates"] = given_["candidates"][:, ::-1]
    assert walk(given_, 0.0, np.zeros(2), profile).proposals.tolist() == given_["candidates"][:, 0].tolist()


def test_the_selectors_row_is_rounded_to_the_profiles_activations() -> None:
    hidden, projection = np.array([[1.0, 1.0]]), np.array([[256.0, 1.0], [3.0, 4.0]])
    assert selector.project(hidden, projection, NINFER).g.tolist() == [[256.0, 7.0]]
    assert selector.project(hidden, projection, ZLAB).g.tolist() == [[257.0, 7.0]]


def test_a_walk_of_no_steps_proposes_nothing() -> None:
    got = selector.walk(
        np.zeros((0, 4), np.int64), np.zeros((0, 4)), np.zeros((0, 1)), np.ones((5, 1)), np.ones((5, 1)), ANCHOR,
        1.0, np.zeros(0), NINFER,
    )  # fmt: skip
    assert (got.scores.shape, got.proposals.shape, got.q.shape) == ((0, 4), (0,), (0, 4))


@pytest.mark.parametrize("token", [-1, 23])
def test_a_token_without_a_codebook_row_is_refused(token: int) -> None:
    given_ = lattice_walk("refused", 2, 3)
    with pytest.raises(TensorError, match=f"token {token}, expected 0 to 22"):
        walk(given_ | {"anchor": TokenId(token)}, 0.0, np.zeros(2), NINFER)
    given_["candidates"][1, 2] = token
    with pytest.raises(TensorError, match=f"token {token}, expected 0 to 22"):
        walk(given_, 0.0, np.zeros(2), NINFER)


def test_scores_are_rounded_once_to_fp32() -> None:
    given_ = lattice_walk("once", 1, 1, rank=1)
    given_["unary"][:] = 1.0
    given_["g"][:] = given_["successor"][:] = 1.0
    given_["predecessor"][:] = num.round_to(math.pi * 2.0**-12, "F32")
    got = float(walk(given_, 0.0, np.zeros(1), ZLAB).scores[0, 0])
    assert got == float(np.float32(1.0 + float(given_["predecessor"][0, 0])))
