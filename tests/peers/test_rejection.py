"""The authors' accept test and correction on given coins: what profile zlab says of sampled verification.

The package draws its correction with `torch.multinomial`, which takes no uniforms, so these rules are no op of its
adapter; the law that it hands to that draw is compared here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import dflash.model as package
import numpy as np
import pytest
import torch
from dflash_reference import law
from dflash_reference.names import TokenId
from dflash_spec.registry import load_profile
from torch import Tensor

pytestmark = pytest.mark.peers

TICK = 2.0**-24
FLAT = (0.25, 0.25, 0.25, 0.25)
CERTAIN = (0.0, 1.0, 0.0, 0.0)
SHORT = (0.0, 1.0 - TICK, 0.0, 0.0)
"""Rounded probabilities that sum to less than 1, so that a rejection of the only token leaves no mass."""
UNEVEN = (0.5, 0.125, 0.25, 0.125)


def verdict(proposals: Sequence[int], p: Sequence[Sequence[float]], coins: Sequence[float]) -> tuple[int, list[float]]:
    """Accepted count, and the law of the last token, for proposals that are certain."""
    drawn: list[Tensor] = []

    def draw(probs: Tensor) -> Tensor:
        drawn.append(probs[0] if probs.dim() == 2 else probs)
        return torch.zeros(probs.shape[:-1], dtype=torch.long)

    q = torch.nn.functional.one_hot(torch.tensor([list(proposals)]), 4).float()

    def coin(_like: Tensor, **_: Any) -> Tensor:
        return torch.tensor([list(coins)])

    with mock.patch.object(torch, "rand_like", coin), mock.patch.object(package, "_sample_probs", draw):
        accepted, _ = package._rejection_sample(torch.tensor([list(proposals)]), torch.tensor([[*map(list, p)]]), q)
    return int(accepted), drawn[0].tolist()


def expected(proposals: Sequence[int], p: Sequence[Sequence[float]], coins: Sequence[float]) -> int:
    support = np.tile(np.arange(4), (len(p), 1))
    return law.accepted_one_hot(np.array(proposals), support, np.array(p), np.array(coins))


@pytest.mark.parametrize(
    ("p", "coin", "accepted"),
    [
        (FLAT, 0.25 - TICK, 1),
        (FLAT, 0.25, 0),
        (FLAT, 0.0, 1),
        ((0.5, 0.0, 0.5, 0.0), 0.0, 0),
        (CERTAIN, 1.0 - TICK, 1),
    ],
    ids=["below-p", "equal-to-p", "zero", "zero-of-no-probability", "certain"],
)
def test_a_proposal_passes_if_its_coin_is_strictly_below_its_probability(
    p: Sequence[float], coin: float, accepted: int
) -> None:
    rows = [p, FLAT]
    assert verdict([1], rows, [coin])[0] == expected([1], rows, [coin]) == accepted


def test_nothing_after_the_first_rejection_is_accepted() -> None:
    rows, coins = [FLAT, FLAT, FLAT, UNEVEN], [0.125, 0.5, 0.125]
    assert verdict([0, 1, 2], rows, coins)[0] == expected([0, 1, 2], rows, coins) == 1


def test_the_correction_is_drawn_from_what_is_left_without_the_rejected_token() -> None:
    _, left = verdict([2], [UNEVEN, FLAT], [0.5])
    mass = np.array(0.75, dtype=np.float32)
    np.testing.assert_array_equal(left, np.array([0.5, 0.125, 0.0, 0.125], dtype=np.float32) / mass)


def test_where_nothing_is_left_the_correction_is_drawn_from_the_target_itself() -> None:
    accepted, left = verdict([1], [SHORT, FLAT], [1.0 - TICK])
    assert (accepted, left) == (0, list(SHORT))
    assert law.correction(TokenId(1), np.arange(4), SHORT, 0.5, load_profile("zlab")) == int(np.argmax(left))


def test_the_bonus_is_drawn_from_the_last_row_as_it_is() -> None:
    accepted, left = verdict([0, 1], [FLAT, FLAT, UNEVEN], [0.0, 0.0])
    assert (accepted, left) == (2, list(UNEVEN))
