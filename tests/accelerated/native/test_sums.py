"""Sums in C are added up in 16 lanes on every machine, however wide its vectors are: against NumPy, bit by bit."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable

import numpy as np
import pytest
from dflash_accelerated.native import available, kernels

from tests.accelerated.native.compiled import compiled

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
HEADERS = ("vectors", "threads", "rows", "stores", "walk")
LENGTHS = [1, 7, 16, 33, 72, 200, 1031]
EPS, HEAT = np.float32(1e-6), np.float32(0.7)
F32, BF16 = 0, 1


@pytest.fixture(scope="module", params=["this-machine", "x86-64"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels as they are here, or those that add up as every x86-64 can run them: in vectors of four lanes."""
    if request.param == "this-machine":
        return kernels()
    if platform.machine() != "x86_64":
        pytest.skip("another machine's flags")
    return compiled(
        tmp_path_factory.mktemp(request.param), request.param, HEADERS, ("rms_norm", "exponentials", "walk")
    )


@pytest.fixture
def drawn() -> Callable[..., np.ndarray]:
    generator = np.random.default_rng(8)
    return lambda *shape: generator.standard_normal(shape, np.float32)


def summed(numbers: np.ndarray, parts: int) -> np.ndarray:
    """Of `parts` times 16 numbers each, part i adds to the sums of part i: [parts, 16]."""
    lines = np.concatenate((numbers, np.zeros(-len(numbers) % (parts * 16), numbers.dtype))).reshape(-1, parts, 16)
    total = np.zeros((parts, 16), numbers.dtype)
    for line in lines:
        total += line
    return total


def folded(lanes: np.ndarray) -> np.float32:
    """Lane i beside lane i + 8, then i + 4, 2 and 1."""
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return np.float32(lanes[0])


def weights(library: ctypes.CDLL, scores: np.ndarray) -> np.ndarray:
    heated: np.ndarray = (scores - scores.max()) / HEAT
    library.exponentials(heated.ctypes.data, heated.ctypes.data, len(heated))
    return heated


def at(x: np.ndarray) -> int:
    assert x.flags.c_contiguous
    return x.ctypes.data


@pytest.mark.parametrize("n", LENGTHS)
def test_a_norm_adds_its_squares_in_four_times_sixteen_lanes(
    n: int, library: ctypes.CDLL, drawn: Callable[..., np.ndarray]
) -> None:
    rows = 50  # a root hides half of what another order does
    x, weight, out = drawn(rows, n), drawn(n), np.empty((rows, n), np.float32)
    library.rms_norm(at(x), at(weight), at(out), rows, n, 1, F32, F32, F32, EPS, 1)
    for row, made in zip(x, out, strict=True):
        sums = summed(row * row, 4)
        mean = folded((sums[0] + sums[1]) + (sums[2] + sums[3])) / np.float32(n)
        assert np.array_equal(made, row * (np.float32(1) / np.sqrt(mean + EPS)) * weight)


def halves(x: np.ndarray) -> np.ndarray:
    """BF16 bits; `x` keeps what they mean."""
    bits = x.view(np.uint32)
    bits &= 0xFFFF0000
    return (bits >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", [F32, BF16])
@pytest.mark.parametrize("rank", LENGTHS)
def test_an_edge_of_the_path_is_added_up_in_twice_sixteen_lanes(
    rank: int, kind: int, library: ctypes.CDLL, drawn: Callable[..., np.ndarray]
) -> None:
    count, seen, after, before = 5, drawn(rank), drawn(5, rank), drawn(1, rank)
    given = [halves(x) if kind == BF16 else x for x in (seen, before, after)]
    ids, anchor, token = np.arange(count), np.zeros(1, np.int64), np.empty(1, np.int64)
    unary, heat, coin = drawn(count), np.array([HEAT]), np.array([0.5], np.float32)
    scores, law = np.empty(count, np.float32), np.empty(count, np.float32)
    library.walk(
        at(ids), at(unary), *map(at, given), at(anchor), at(heat), at(coin), at(scores), at(token), at(law),
        1, 1, count, rank, count, rank, rank, kind, kind, 0, 1,
    )  # fmt: skip
    wanted = [one + folded(sum(summed(row * seen * before[0], 2))) for one, row in zip(unary, after, strict=True)]
    assert np.array_equal(scores, np.array(wanted))


@pytest.mark.parametrize("count", [*LENGTHS[:4], 64])
def test_a_law_of_candidates_is_added_up_in_sixteen_lanes(
    count: int, library: ctypes.CDLL, drawn: Callable[..., np.ndarray]
) -> None:
    steps = 20
    unary, (scores, laws) = drawn(steps, count), np.empty((2, steps, count), np.float32)
    nothing, anchor, tokens = np.zeros((count, steps), np.float32), np.zeros(1, np.int64), np.empty(steps, np.int64)
    ids, heat, coins = np.tile(np.arange(count), steps), np.array([HEAT]), np.full(steps, 0.5, np.float32)
    library.walk(
        at(ids), at(unary), *[at(nothing)] * 3, at(anchor), at(heat), at(coins), at(scores), at(tokens), at(laws),
        1, steps, count, 1, count, 1, 1, F32, F32, 0, 1,
    )  # fmt: skip
    for step, made in zip(unary, laws, strict=True):
        wanted = weights(library, step)
        assert np.array_equal(made, wanted / folded(summed(wanted, 1)[0]))
