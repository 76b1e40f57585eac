"""FP16 in C, as each kind of machine converts it, against NumPy's own conversion: all numbers, and all halves."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import numpy as np
import pytest
from dflash_accelerated.native import available

from tests.accelerated.native.compiled import compiled

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
CONVERSIONS = """
void narrow(const float *from, uint16_t *to, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) store_some(to, i, F16, load_some(from, i, F32, n - i), n - i);
}
void widen(const uint16_t *from, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) store_some(to, i, F32, load_some(from, i, F16, n - i), n - i);
}
"""
EVERY = np.arange(2**16, dtype=np.uint16).view(np.float16)


@pytest.fixture(scope="module", params=["", "x86-64"], ids=["this-machine", "x86-64"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if request.param and platform.machine() != "x86_64":
        pytest.skip("another machine's flags")
    folder: Path = tmp_path_factory.mktemp("conversions")
    made = compiled(folder, request.param, ["vectors"], [], CONVERSIONS)
    made.narrow.argtypes = made.widen.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    return made


def assert_same_bits(made: np.ndarray, wanted: np.ndarray) -> None:
    """NaN may be any NaN."""
    missing = np.isnan(wanted)
    assert np.array_equal(np.isnan(made), missing)
    bits = np.uint16 if made.dtype == np.float16 else np.uint32
    assert np.array_equal(made.view(bits)[~missing], wanted.view(bits)[~missing])


def test_every_half_is_widened_to_its_own_number(library: ctypes.CDLL) -> None:
    made = np.empty(EVERY.shape, np.float32)
    library.widen(EVERY.ctypes.data, made.ctypes.data, len(EVERY))
    assert_same_bits(made, EVERY.astype(np.float32))


def test_numbers_between_halves_go_to_the_nearest_and_halfway_to_the_even_one(library: ctypes.CDLL) -> None:
    """At, just below and just above every half and every middle of two, subnormal ones and what overflows included."""
    halves = np.unique(EVERY[np.isfinite(EVERY)].astype(np.float64))
    beyond = np.array([65_520.0, 65_536.0, 1e30, np.inf, 2.0**-25, 2.0**-26, 2.0**-140, 0.0])
    points = np.concatenate([halves, (halves[1:] + halves[:-1]) / 2, beyond, -beyond]).astype(np.float32)
    numbers = np.concatenate([points, np.nextafter(points, np.float32(np.inf)),
                              np.nextafter(points, np.float32(-np.inf)), np.array([np.nan], np.float32)])  # fmt: skip
    made = np.empty(numbers.shape, np.float16)
    library.narrow(numbers.ctypes.data, made.ctypes.data, len(numbers))
    with np.errstate(over="ignore"):
        assert_same_bits(made, numbers.astype(np.float16))
