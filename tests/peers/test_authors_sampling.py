"""What the authors' package does at the edges of sampling, as docs/peers.md says it; and that its laws hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import dflash.model as package
import numpy as np
import pytest
import torch
from dflash_spec.errors import RequestError
from dflash_spec.registry import load_profile
from dflash_vectors.law import judging
from dflash_vectors.law.verdicts import HOLDS, LawRun
from dflash_vectors.peers import authors_sampling
from dflash_vectors.runners import open_runner
from torch import Tensor

pytestmark = pytest.mark.peers

LAST = 1.0 - 2.0**-24
EVEN = (0.25, 0.25, 0.25, 0.25)
NAN = float("nan")


def verdict(
    proposals: Sequence[int], q: Sequence[Sequence[float]], p: Sequence[Sequence[float]], coins: Sequence[float],
    candidates: Sequence[Sequence[int]] | None = None,
) -> tuple[int, list[float]]:  # fmt: skip
    """Accepted count, and the weights of the last draw, of the package's own verdict on given coins."""
    drawn: list[Tensor] = []

    def draw(weights: Tensor) -> Tensor:
        drawn.append(weights[0])
        return torch.zeros(weights.shape[:-1], dtype=torch.long)

    ids = None if candidates is None else torch.tensor([candidates])
    given = mock.patch.object(torch, "rand_like", return_value=torch.tensor([coins]))
    with given, mock.patch.object(package, "_sample_probs", draw):
        accepted, _ = package._rejection_sample(
            torch.tensor([list(proposals)]), torch.tensor([p]), torch.tensor([q]), ids
        )  # fmt: skip
    return int(accepted), drawn[0].tolist()


def probabilities(logits: Sequence[float], **settings: Any) -> list[float]:
    found: list[float] = package._sampling_probs(torch.tensor([logits]), **{"temperature": 1.0, **settings})[0].tolist()
    return found


def test_a_coin_of_0_accepts_whatever_has_a_probability_and_nothing_else() -> None:
    tiny = (1e-30, 1.0, 0.0, 0.0)
    assert verdict([0], [EVEN], [tiny, EVEN], [0.0])[0] == 1
    assert verdict([2], [EVEN], [tiny, EVEN], [0.0])[0] == 0


def test_equal_laws_accept_all_coins_unless_the_product_rounds_up_to_q() -> None:
    low = float(np.float32(2.0**-126))  # below it FP32 numbers are a fixed distance apart, so u · q rounds up
    assert verdict([1], [EVEN], [EVEN, EVEN], [LAST])[0] == 1
    subnormal = (2.0**-149, 1.0, 0.0, 0.0)
    assert float(np.float32(LAST) * np.float32(2.0**-149)) == 2.0**-149
    assert verdict([0], [subnormal], [subnormal, EVEN], [LAST])[0] == 0
    assert verdict([0], [(low, 1.0, 0.0, 0.0)], [(low, 1.0, 0.0, 0.0), EVEN], [0.25])[0] == 1


def test_a_proposal_that_neither_law_has_is_rejected_by_every_coin() -> None:
    p = q = (0.5, 0.5, 0.0, 0.0)
    for coin in (0.0, 0.5, LAST):
        assert verdict([3], [q], [p, EVEN], [coin])[0] == 0


def test_a_proposal_that_only_the_target_has_is_accepted_by_every_coin() -> None:
    p, q = (0.5, 0.25, 0.25, 0.0), (0.0, 1.0, 0.0, 0.0)
    for coin in (0.0, 0.5, LAST):
        assert verdict([0], [q], [p, EVEN], [coin])[0] == 1
        assert verdict([0], [[1.0]], [p, EVEN], [coin], [[1]])[0] == 1  # no candidate of a selector's


def test_where_nothing_is_left_the_weights_are_those_of_the_target_as_it_is() -> None:
    short = (0.0, LAST, 0.0, 0.0)
    assert verdict([1], [(0.0, 1.0, 0.0, 0.0)], [short, EVEN], [LAST]) == (0, list(short))


def test_what_is_left_is_divided_by_its_sum_and_negative_weights_are_0() -> None:
    _, left = verdict([1], [(0.25, 0.75, 0.0, 0.0)], [(0.5, 0.25, 0.25, 0.0), EVEN], [0.5])
    assert left == [0.5, 0.0, 0.5, 0.0]


def test_a_row_of_the_target_with_a_nan_rejects_and_its_draw_is_an_error() -> None:
    row = (0.5, NAN, 0.25, 0.25)
    accepted, weights = verdict([1], [EVEN], [row, EVEN], [0.0])
    assert accepted == 0
    assert np.isnan(weights).any()
    with pytest.raises(RuntimeError, match="nan"):
        package._sample_probs(torch.tensor([row]))
    with pytest.raises(RequestError, match="the package refuses"), authors_sampling.refusing():
        package._sample_probs(torch.tensor([row]))


def test_a_nan_in_the_law_of_a_selector_rejects_wherever_it_stands_in_the_row() -> None:
    p = (0.7, 0.1, 0.1, 0.1)
    assert verdict([0], [[0.5, NAN]], [p, EVEN], [0.0], [[0, 3]])[0] == 0
    assert verdict([0], [(0.5, 0.25, 0.25, NAN)], [p, EVEN], [0.0])[0] == 1  # over every id it is looked up


def test_a_nan_in_the_law_of_a_rejected_proposal_makes_the_correction_a_draw_from_the_target_itself() -> None:
    p = (0.25, 0.25, 0.25, 0.25)
    assert verdict([0], [(1.0, 0.0, NAN, 0.0)], [p, EVEN], [0.9]) == (0, list(p))


def test_top_k_keeps_exactly_k_of_equal_logits_and_which_is_left_to_torch() -> None:
    p = probabilities((1.0, 3.0, 1.0, 1.0, 0.0), top_k=2)
    assert np.count_nonzero(p) == 2
    assert p[1] > 0.5
    assert p[4] == 0.0
    kept = torch.topk(torch.tensor([1.0, 3.0, 1.0, 1.0, 0.0]), 2).indices.tolist()
    assert sorted(kept) == np.flatnonzero(p).tolist()


def test_top_p_keeps_the_candidate_that_crosses_and_drops_the_one_after() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125]))
    for top_p, kept in ((0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (1e-6, 1)):
        assert np.count_nonzero(probabilities(logits.tolist(), top_p=top_p)) == kept


def test_top_p_that_equals_a_cumulative_weight_keeps_no_more_than_what_reaches_it() -> None:
    equal = probabilities((0.0, 0.0, 0.0, 0.0), top_p=0.5)  # each is 1/4 exactly
    assert sorted(equal) == [0.0, 0.0, 0.5, 0.5]


def test_a_row_of_logits_with_a_nan_has_probabilities_of_nan_and_is_refused_when_it_is_drawn_from() -> None:
    assert np.isnan(probabilities((1.0, NAN, 0.0, 0.0))).all()
    with pytest.raises(RequestError, match="the package refuses"), authors_sampling.refusing():
        package.sample(torch.tensor([[1.0, NAN, 0.0, 0.0]]), 1.0)
    assert package.sample(torch.tensor([[1.0, NAN, 0.0, 0.0]]), 0.0).tolist() == [1]  # greedy: NaN is the largest


def test_greedy_decoding_takes_an_infinity_and_sampling_refuses_it() -> None:
    row = torch.tensor([[1.0, 0.0, float("inf"), 0.0]])
    assert package.sample(row, 0.0).tolist() == [2]
    with pytest.raises(RuntimeError, match="nan"):
        package.sample(row, 1.0)


def test_the_smallest_temperatures_overflow_the_logits() -> None:
    assert np.isnan(probabilities((8.0, 5.0), temperature=2.0**-126)).all()
    assert probabilities((8.0, 5.0), temperature=2.0**-10) == [1.0, 0.0]


def test_min_p_is_an_argument_that_the_package_does_not_take() -> None:
    settings = {"temperature": np.array(1.0), "top_k": np.array(0), "top_p": np.array(1.0)}
    row = np.array([[1.0, 0.0]], np.float32)
    with pytest.raises(RequestError, match="min_p"):
        authors_sampling.proc_filter(adjusted=row, min_p=np.array(0.1), **settings)
    assert authors_sampling.proc_filter(adjusted=row, min_p=np.array(0.0), **settings)["p"].shape == (1, 2)


def test_the_adapter_hands_on_the_weights_that_the_package_ends_with() -> None:
    given = {
        "proposals": np.array([11]), "support": np.array([[11, 7, 3], [7, 11, 3]]),
        "p": np.array([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]], np.float32), "u_accept": np.array([0.5], np.float32),
    }  # fmt: skip
    with mock.patch.object(package, "_rejection_sample", wraps=package._rejection_sample) as own:
        answers = [
            int(authors_sampling.law_one_hot(**given, u_terminal=np.array(u))["licensed"][0])
            for u in (0.0, 0.6, 0.7, LAST)
        ]
    assert answers == [7, 7, 3, 3]  # of what is left, 2/3 is token 7's
    assert own.call_count == 4


@pytest.mark.parametrize("op", ["proc.filter", "law.sparse", "proc.sample_tokens", "law.sample_rounds"])
def test_the_laws_of_the_package_hold(op: str) -> None:
    run, runner = LawRun(), open_runner("python:dflash_vectors.peers.authors:create", 60.0)
    judging.check(run, [runner], judging.Options("zlab", (op,), samples=3_000))
    assert [finding.reason for finding in run.findings() if finding.status != HOLDS] == []
    assert len(list(run.findings())) == len(list(judging.laws(op, load_profile("zlab"), 3_000, 0)))
