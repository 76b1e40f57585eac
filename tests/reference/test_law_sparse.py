"""Verification against the law that drew the proposals, at its edges; `tests/law` proves the rest of it."""

from typing import Any

import numpy as np
import pytest
from dflash_reference import law
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile, load_profile

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
PROFILES = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
TINY = 2.0**-149
"""The smallest FP32 number: half of it, and anything more, rounds to it."""


def verdict(p: list[float], q: list[float], u: float, end: float, profile: Profile, proposal: int = 4) -> Any:
    """One proposal, drawn from q over tokens 4, 6, 9, where the target's support is 9, 4, 6."""
    return law.sparse(
        np.array([proposal]), np.array([[4, 6, 9]]), np.array([q]), np.array([[9, 4, 6]] * 2), np.array([p, p]),
        np.array([u]), end, profile,
    )  # fmt: skip


@pytest.mark.parametrize(("profile", "accepted"), [(NINFER, 1), (ZLAB, 0)], ids=["ninfer", "zlab"])
def test_a_product_that_rounds_up_to_p_is_refused_by_the_strict_test_alone(profile: Profile, accepted: int) -> None:
    assert verdict([1.0, TINY, 0.0], [TINY, 1.0, 0.0], 0.75, 0.0, profile).accepted == accepted
    assert verdict([1.0, TINY, 0.0], [TINY, 1.0, 0.0], 0.5, 0.0, profile).accepted == 1


@pytest.mark.parametrize(("profile", "accepted"), [(NINFER, 1), (ZLAB, 0)], ids=["ninfer", "zlab"])
def test_what_neither_law_says_is_accepted_by_the_ratio_test_alone(profile: Profile, accepted: int) -> None:
    assert verdict([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], 0.0, 0.0, profile).accepted == accepted


@PROFILES
def test_a_coin_of_zero_does_not_accept_what_the_target_never_says(profile: Profile) -> None:
    assert verdict([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], 0.0, 0.0, profile).accepted == 0


@PROFILES
def test_a_product_equal_to_p_is_refused(profile: Profile) -> None:
    assert verdict([0.75, 0.25, 0.0], [0.5, 0.5, 0.0], 0.5, 0.0, profile).accepted == 0
    assert verdict([0.75, 0.25, 0.0], [0.5, 0.5, 0.0], 0.5 - 2**-24, 0.0, profile).accepted == 1


@pytest.mark.parametrize(("profile", "token"), [(NINFER, 9), (ZLAB, 6)], ids=["ninfer", "zlab"])
def test_without_mass_the_correction_is_the_first_of_the_support_or_a_draw_from_p_itself(
    profile: Profile, token: int
) -> None:
    # FP32 laws that add up to 1.5: nothing of p is left where its proposal 4 is refused.
    got = verdict([0.25, 0.25, 0.5], [0.75, 0.5, 0.25], 0.5, 0.75, profile)
    assert got.licensed.tolist() == [token, 0]


@PROFILES
def test_residual_weights_are_looked_up_by_token_and_drawn_in_the_supports_order(profile: Profile) -> None:
    # Of 9, 4, 6 remain 0.25, 0 and 0.125: the goal 0.375 u passes 0.25 at u = 2/3.
    p, q = [0.5, 0.25, 0.25], [0.625, 0.125, 0.25]
    assert verdict(p, q, 0.5, 0.625, profile).licensed.tolist() == [9, 0]
    assert verdict(p, q, 0.5, 0.6875, profile).licensed.tolist() == [6, 0]


def test_rows_and_uniforms_that_do_not_fit_the_proposals_are_refused() -> None:
    one, two = np.ones((1, 1)), np.ones((2, 1))
    ids = np.ones((2, 1), np.int64)
    with pytest.raises(TensorError, match=r"law\.sparse: 1 target rows, expected 2"):
        law.sparse(np.array([1]), ids[:1], one, ids[:1], one, np.array([0.5]), 0.5, NINFER)
    with pytest.raises(TensorError, match=r"law\.sparse: 2 accept uniforms, expected 1"):
        law.sparse(np.array([1]), ids[:1], one, ids, two, np.array([0.5, 0.5]), 0.5, NINFER)
