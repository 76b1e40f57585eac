"""The authors' sampled walk, and its accept test with the walk's law, on the vectors that the adapter cannot declare.

The package draws with `torch.multinomial`, which takes no uniforms. Here its draws are given, and everything else, the
laws that it hands to the draws included, is its own.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import dflash.model as package
import numpy as np
import pytest
import torch
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from dflash_vectors.bounds import bounds_of
from dflash_vectors.peers import authors_dflash2
from dflash_vectors.run import execute, input_tensors, numbers
from dflash_vectors.suite import Case, all_cases
from torch import Tensor

pytestmark = pytest.mark.peers

PROFILE = load_profile("zlab")
SAMPLED = [case for case in all_cases("zlab", "selector.walk") if case.inputs["temperature"] > 0]
SPARSE = [
    case
    for case in all_cases("zlab", "law.sparse")
    if not (np.isnan(case.inputs["p"]).any() or np.isnan(case.inputs["q"]).any())  # the package has no rule for NaN
]


def answered(case: Case) -> tuple[dict[str, Any], dict[str, Array]]:
    """The inputs of a case, and what the reference answers."""
    inputs = numbers(input_tensors(case)[0])
    return inputs, execute(case.op, inputs, PROFILE)


@pytest.mark.parametrize("case", SAMPLED, ids=lambda case: case.slug)
def test_along_the_path_that_was_drawn_scores_and_laws_are_within_their_bounds(case: Case) -> None:
    inputs, expected = answered(case)
    bounds = bounds_of(case.op, inputs, expected, PROFILE)
    ranks = np.argmax(inputs["candidates"] == expected["proposals"][:, np.newaxis], axis=1)
    given = {name: inputs[name] for name in ("candidates", "unary", "g", "predecessor", "successor")}
    with torch.inference_mode():
        found = authors_dflash2.walked(
            **given, anchor=inputs["anchor"], temperature=inputs["temperature"], chosen=ranks
        )
    np.testing.assert_array_equal(found["proposals"], expected["proposals"])
    assert (np.abs(found["stage.scores"] - expected["scores"]) <= bounds["scores"]).all()
    assert (np.abs(found["q"] - expected["q"]) <= bounds["q"]).all()


def dense(ids: Array, weights: Array, width: int) -> Tensor:
    """Rows of ids with weights as rows over `width` ids, the last of which takes the padding."""
    rows = torch.zeros(1, len(ids), width)
    places = torch.from_numpy(np.where(ids < 0, width - 1, ids).astype(np.int64))
    return rows.scatter_add(2, places[None], torch.from_numpy(weights.astype(np.float32))[None])


def verdict(inputs: dict[str, Any]) -> tuple[int, Array]:
    """The accepted count of the package's own rejection, and the law [ids] from which it draws the last token."""
    laws: list[Tensor] = []

    def draw(law: Tensor) -> Tensor:
        laws.append(law[0])
        return torch.zeros(law.shape[:-1], dtype=torch.long)

    ids = (inputs[name] for name in ("proposals", "candidates", "support"))
    width = max(int(values.max(initial=0)) for values in ids) + 2
    candidates = torch.from_numpy(np.where(inputs["candidates"] < 0, width - 1, inputs["candidates"]))[None]
    q = torch.from_numpy(inputs["q"].astype(np.float32))[None]
    coins = torch.from_numpy(inputs["u_accept"].astype(np.float32))[None]
    with (
        mock.patch.object(torch, "rand_like", return_value=coins),
        mock.patch.object(package, "_sample_probs", side_effect=draw),
    ):
        accepted, _ = package._rejection_sample(
            torch.from_numpy(inputs["proposals"])[None], dense(inputs["support"], inputs["p"], width), q, candidates
        )
    return int(accepted), np.asarray(laws[0].numpy())


@pytest.mark.parametrize("case", SPARSE, ids=lambda case: case.slug)
def test_a_sparse_law_accepts_as_many_and_leaves_the_law_that_gives_the_licensed_token(case: Case) -> None:
    """The uniform must lie in the licensed token's part of the law, its ids taken in the support's order.

    An end is off by at most a rounding to FP32 of each part.
    """
    inputs, expected = answered(case)
    accepted, law = verdict(inputs)
    assert accepted == expected["accepted"]
    order = inputs["support"][accepted]
    parts = np.where(order < 0, 0.0, law[order])
    ends = np.cumsum(parts.astype(np.float64)) / parts.sum(dtype=np.float64)
    place = int(np.flatnonzero(order == expected["licensed"][accepted])[0])
    tick = len(parts) * 2.0**-24
    assert parts[place] > 0
    assert ends[place] - parts[place] / parts.sum() - tick <= inputs["u_terminal"] <= ends[place] + tick


def test_the_cases_reach_temperatures_on_both_sides_of_one_and_every_accepted_count() -> None:
    temperatures = [float(case.inputs["temperature"]) for case in SAMPLED]
    assert min(temperatures) < 1 < max(temperatures)
    assert {int(answered(case)[1]["accepted"]) for case in SPARSE} >= set(range(4))
