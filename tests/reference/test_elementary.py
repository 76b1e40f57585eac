"""exp, log, sin and cos against mpmath, within one ulp, tanh within three, and the same bits without vector units."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from dflash_reference import elementary, num, rng
from dflash_spec.errors import ConfigError, UnsupportedError

mpmath.mp.prec = 400


def keyed(seed: int, count: int, low: float, high: float) -> np.ndarray:
    """`count` float64 values between low and high, from the keyed hash."""
    index = np.arange(count)
    fine = rng.to_uniform(rng.draw_key(seed, index, 0, 0)) + rng.to_uniform(rng.draw_key(seed, index, 1, 0)) * 2.0**-24
    return low + (high - low) * fine


def worst_ulps(function: Callable[[Any], np.ndarray], exact: Callable[[Any], Any], values: np.ndarray) -> float:
    """The largest error in units of the last place of the exact result, subnormal spacing included."""
    worst = 0.0
    for value, got in zip(values, function(values), strict=True):
        true = exact(mpmath.mpf(float(value)))
        spacing = mpmath.mpf(float(np.spacing(abs(float(true))))) if true else mpmath.mpf(2) ** -1074
        worst = max(worst, float(abs(mpmath.mpf(float(got)) - true) / spacing))
    return worst


def near_multiples_of_half_pi() -> np.ndarray:
    """The float64 nearest to k·π/2, where cancellation is worst, for k over 21 bits, and its neighbours."""
    multiples = np.concatenate([np.arange(1, 60), (keyed(5, 400, 1, 1_335_088)).astype(np.int64)])
    nearest = np.array([float(mpmath.pi / 2 * int(k)) for k in multiples])
    return np.concatenate([nearest, np.nextafter(nearest, 0), -nearest])


EXP_DOMAIN = np.concatenate([
    keyed(1, 600, -1, 1), keyed(2, 900, -708.3, 709.78),
    2.0 ** -np.arange(0, 60), -(2.0 ** -np.arange(0, 60)),
])  # fmt: skip
EXP_SUBNORMAL = keyed(3, 600, -745.13, -708.4)
LOG_DOMAIN = np.concatenate([
    keyed(1, 600, 0.5, 2), keyed(2, 300, 1 - 1e-6, 1 + 1e-6), num.power_of_two(np.arange(-1022, 1024, 13)) * 1.1,
    np.array([5e-324, 3e-310, 1.7e308, np.nextafter(1, 0), np.nextafter(1, 2)]),
])  # fmt: skip
ANGLES = np.concatenate([
    keyed(1, 500, -7, 7), keyed(2, 500, -(2.0**21), 2.0**21), keyed(3, 300, -262144, 262144),
    near_multiples_of_half_pi(), 2.0 ** -np.arange(0, 60),
])  # fmt: skip


LAST_ROUNDING = 0.5
"""A result is a head plus a tail; rounding their sum costs half an ulp, errors of the tail the rest of each bound."""


@pytest.mark.parametrize(
    ("function", "exact", "domain", "tail"),
    [
        (elementary.exp, mpmath.exp, EXP_DOMAIN, 2.0**-5),  # the tail is below 2^-6 of the result
        (elementary.exp, mpmath.exp, EXP_SUBNORMAL, 0.25 + 2.0**-5),  # and the result is rounded once more
        (elementary.log, mpmath.log, LOG_DOMAIN, 2.0**-5),
        (elementary.sin, mpmath.sin, ANGLES, 0.25),  # the tail is up to a tenth of the result
        (elementary.cos, mpmath.cos, ANGLES, 0.25),
    ],
    ids=["exp", "exp-subnormal", "log", "sin", "cos"],
)
def test_an_elementary_function_is_within_one_ulp(function: Any, exact: Any, domain: np.ndarray, tail: float) -> None:
    assert worst_ulps(function, exact, domain) <= LAST_ROUNDING + tail < 1


def test_tanh_is_within_three_ulps_on_both_sides_of_its_seam() -> None:
    domain = np.concatenate([
        keyed(1, 900, -3, 3), keyed(2, 300, 0.99, 1.01), keyed(3, 300, -40, 40), 2.0 ** -np.arange(0, 60),
    ])  # fmt: skip
    # Two sums and a product of at most 1 ulp each, and a division.
    assert worst_ulps(elementary.tanh, mpmath.tanh, domain) <= 3


def test_tanh_has_its_limits() -> None:
    got = elementary.tanh([0.0, -0.0, np.inf, -np.inf, 1e300, np.nan])
    assert got[:5].tolist() == [0.0, -0.0, 1.0, -1.0, 1.0]
    assert np.signbit(got[:2]).tolist() == [False, True]
    assert np.isnan(got[5])


def test_exp_has_its_limits() -> None:
    given = [np.nan, np.inf, -np.inf, 0.0, -0.0, 709.782712893384, 709.782712893385, -745.2, 1e300, -1e300]
    got = elementary.exp(given)
    assert np.isnan(got[0])
    assert got[1:5].tolist() == [np.inf, 0.0, 1.0, 1.0]
    assert np.isfinite(got[5])
    assert got[6:].tolist() == [np.inf, 0.0, np.inf, 0.0]


def test_log_has_its_limits() -> None:
    got = elementary.log([0.0, -0.0, 1.0, np.inf, -1.0, np.nan])
    assert got[:4].tolist() == [-np.inf, -np.inf, 0.0, np.inf]
    assert np.isnan(got[4:]).all()


def test_sine_and_cosine_have_their_limits() -> None:
    sine, cosine = elementary.sin_cos([0.0, -0.0, np.inf, np.nan])
    assert np.signbit(sine[:2]).tolist() == [False, True]
    assert cosine[:2].tolist() == [1.0, 1.0]
    assert np.isnan(sine[2:]).all()
    assert np.isnan(cosine[2:]).all()
    with pytest.raises(UnsupportedError, match="2097153"):
        elementary.sin(2.0**21 + 1)


@pytest.mark.parametrize("function", [elementary.exp, elementary.log, elementary.sin, elementary.cos, elementary.tanh])
def test_shapes_are_kept(function: Any) -> None:
    assert function(0.5).shape == ()
    assert function(np.full((2, 3), 0.5)).shape == (2, 3)


@pytest.mark.parametrize("theta", [0.25, 1.0, 2.0, 4.0, 37.0, 10000.0, 500000.0, 1e6, 1e7, 1.0000001])
@pytest.mark.parametrize("dim", [2, 6, 10, 64, 128])
def test_rope_frequencies_are_correctly_rounded(theta: float, dim: int) -> None:
    exact = [float(mpmath.mpf(theta) ** (-mpmath.mpf(2 * j) / dim)) for j in range(dim // 2)]
    assert elementary.rope_frequencies(theta, dim).tolist() == exact
    assert (
        elementary.rope_frequencies_fp32(theta, dim).tolist() == np.array(exact, np.float32).astype(np.float64).tolist()
    )


@pytest.mark.parametrize(
    ("theta", "dim", "key"), [(0.0, 6, "rope_theta"), (np.inf, 6, "rope_theta"), (1e4, 5, "head_dim")]
)
def test_rope_frequencies_of_an_impossible_head_are_a_named_error(theta: float, dim: int, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        elementary.rope_frequencies(theta, dim)
    assert caught.value.key == key


def digest() -> str:
    """One hash over the bits of all functions."""
    parts = [
        elementary.exp(EXP_DOMAIN),
        elementary.exp(EXP_SUBNORMAL),
        elementary.log(LOG_DOMAIN),
        *elementary.sin_cos(ANGLES),
    ]
    parts.append(num.contract(EXP_DOMAIN.reshape(-1, 4), LOG_DOMAIN[:40].reshape(10, 4)))
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


PROBE = """
import hashlib, sys, numpy as np
sys.path.insert(0, sys.argv[1])
import test_elementary as t
own = np.float32(np.clip(t.EXP_DOMAIN, -80, 80))  # FP32: AVX2 has an exp of its own for it, as AVX-512 has
print(t.digest(), hashlib.sha256(np.exp(own).tobytes()).hexdigest())
"""


def probe(disabled: list[str]) -> list[str]:
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(disabled)}
    command = [sys.executable, "-W", "error", "-c", PROBE, os.path.dirname(__file__)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def test_the_bits_do_not_depend_on_vector_units() -> None:
    from numpy._core._multiarray_umath import (  # type: ignore[import-not-found]
        __cpu_dispatch__,
        __cpu_features__,
    )

    disabled = [name for name in __cpu_dispatch__ if __cpu_features__[name]]
    assert disabled, "NumPy found no vector unit that could be switched off"
    with_units, without_units = probe([]), probe(disabled)
    assert with_units[0] == without_units[0] == digest()
    assert with_units[1] != without_units[1], "NumPy's own exp did not change: the units were not switched off"
