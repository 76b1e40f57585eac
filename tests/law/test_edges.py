"""Where floating-point decisions change: on every threshold of a uniform and on its FP32 neighbours.

For given inputs a decision is piecewise constant in each uniform. All numbers here are FP32, so that sums and
products of the rule are rationals that the test forms exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import pytest
from dflash_reference import operations
from dflash_spec.registry import PROFILES, Profile, load_profile
from dflash_vectors import inputs

TICKS = 2**24
IDS = (19, 3, 11, 7)
KEYS = [f"edges/{number}" for number in range(12)]
WHOLE = [load_profile(name) for name in PROFILES]


def row(key: str) -> list[float]:
    """Four FP32 probabilities, multiples of 2^-24 that sum to 1; one of them may be 0."""
    bits = [int(value) for value in inputs.hashes(key, (4,))]
    cuts = sorted(value % TICKS for value in bits[:3])
    if bits[3] % 3 == 0:
        cuts[1] = cuts[0]
    return [(high - low) / TICKS for low, high in pairwise([0, *cuts, TICKS])]


def beside(threshold: Fraction) -> Iterator[float]:
    """The FP32 values nearest a threshold: up to two at or below it and two above, within [0, 1)."""
    nearest = np.float32(float(threshold))
    while Fraction(float(nearest)) > threshold:
        nearest = np.nextafter(nearest, np.float32(-1))
    around = [np.nextafter(nearest, np.float32(-1)), nearest, np.nextafter(nearest, np.float32(2))]
    around.append(np.nextafter(around[-1], np.float32(2)))
    yield from (float(u) for u in around if 0 <= float(u) < 1)


def drawn(weights: list[Fraction], goal: Fraction) -> int:
    """The rank of a goal, by the rule as it is stated."""
    for rank, total in enumerate(accumulate(weights)):
        if goal < total:
            return rank
    return max(rank for rank, weight in enumerate(weights) if weight)


def run_one(profile: Profile, proposal: int, p: list[float], u_accept: float, u_terminal: float) -> tuple[int, int]:
    """(accepted, terminal token) of a round with one proposal; both rows have the distribution p over IDS."""
    given = {
        "proposals": np.array([proposal]), "support": np.array([IDS, IDS]), "p": np.array([p, p]),
        "u_accept": np.array([u_accept]), "u_terminal": u_terminal,
    }  # fmt: skip
    result = operations.run("law.one_hot", given, profile)
    accepted = int(result["accepted"])
    return accepted, int(result["licensed"][accepted])


@pytest.mark.parametrize("profile", WHOLE, ids=PROFILES)
@pytest.mark.parametrize("key", KEYS)
def test_a_coin_accepts_below_the_probability_and_not_on_it(key: str, profile: Profile) -> None:
    p = row(key)
    for proposal, chance in [*zip(IDS, p, strict=True), (99, 0.0)]:
        for u in beside(Fraction(chance)):
            accepted, _ = run_one(profile, proposal, p, u, 0.5)
            assert accepted == int(Fraction(u) < Fraction(chance))


@pytest.mark.parametrize("profile", WHOLE, ids=PROFILES)
@pytest.mark.parametrize("key", KEYS)
def test_a_correction_changes_where_its_share_of_the_mass_ends(key: str, profile: Profile) -> None:
    p = row(key)
    for proposal in (*IDS, 99):
        left = [Fraction(0) if token == proposal else Fraction(q) for token, q in zip(IDS, p, strict=True)]
        mass = sum(left)
        for total in accumulate(left):
            for u in beside(total / mass):
                found = run_one(profile, proposal, p, 1.0 - 2.0**-24, u)
                assert found == (0, IDS[drawn(left, Fraction(u) * mass)])


@pytest.mark.parametrize("profile", WHOLE, ids=PROFILES)
@pytest.mark.parametrize("key", KEYS)
def test_a_bonus_and_a_plain_draw_change_where_a_rank_ends(key: str, profile: Profile) -> None:
    p = row(key)
    weights = [Fraction(q) for q in p]
    likeliest = IDS[p.index(max(p))]
    for total in accumulate(weights):
        for u in beside(total):
            expected = IDS[drawn(weights, Fraction(u))]
            assert run_one(profile, likeliest, p, 0.0, u) == (1, expected)
            given = {"support": np.array([IDS]), "p": np.array([p]), "u": np.array([u])}
            assert operations.run("proc.draw", given, profile)["tokens"].tolist() == [expected]
