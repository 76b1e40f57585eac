"""What single DFlash2 vectors promise: that the answers which they tell apart do differ."""

from itertools import product

import numpy as np
import pytest
from dflash_reference import head, num, selector
from dflash_spec.registry import load_profile
from dflash_vectors.faults import patched
from dflash_vectors.run import run_case
from dflash_vectors.suite import all_cases

PROFILES = ("ninfer", "zlab")


def case(op, slug, profile="ninfer"):
    return next(case for case in all_cases(profile, op=op) if case.slug == slug)


def along(given, path, step):
    before = given["candidates"][step - 1, path[step - 1]] if step else given["anchor"]
    rows = given["successor"][given["candidates"][step]]
    return selector.scored(given["unary"][step], given["predecessor"][before], given["g"][step], rows)


def test_the_walk_the_best_path_and_the_best_unary_scores_are_three_answers():
    given = case("selector.walk", "three-answers").inputs
    steps, count = given["unary"].shape
    ids = given["candidates"]

    def total(path):
        return sum(along(given, path, step)[rank] for step, rank in enumerate(path))

    ordered = sorted(product(range(count), repeat=steps), key=total)
    assert total(ordered[-1]) > total(ordered[-2]), "the best path is the only one"
    unary = tuple(int(rank) for rank in given["unary"].argmax(axis=1))
    walked = run_case(case("selector.walk", "three-answers"))["proposals"]
    walk = tuple(int(np.flatnonzero(row == token)[0]) for row, token in zip(ids, walked, strict=True))
    assert len({walk, ordered[-1], unary}) == 3
    assert (walk[0], ordered[-1][0], unary[0]) == (2, 3, 0), "they part at the first step"


@pytest.mark.parametrize("profile", PROFILES)
def test_rank_12_wins_and_dimension_200_decides(profile):
    late = case("selector.walk", "winner-at-rank-12", profile)
    assert run_case(late)["proposals"][0] == late.inputs["candidates"][0, 12]
    far = case("selector.walk", "decided-by-dimension-200", profile)
    assert far.inputs["g"].shape[1] == 256
    won = run_case(far)["proposals"][0]
    without = {name: np.array(far.inputs[name]) for name in ("predecessor", "successor")}
    without["successor"][:, 200] = 0.0
    scores = along({**far.inputs, **without}, (), 0)
    assert far.inputs["candidates"][0, scores.argmax()] != won


@pytest.mark.parametrize(
    ("op", "slug", "target"),
    [
        ("selector.walk", "scores-that-bf16-merges", "dflash_reference.selector.scored"),
        ("head.top", "steps-of-one-above-512", "dflash_reference.head.represent_scores"),
    ],
)
def test_scores_in_bf16_would_choose_otherwise(op, slug, target):
    plain = run_case(case(op, slug))
    with patched(target, lambda true: lambda *given: num.round_to(true(*given), "BF16")):
        merged = run_case(case(op, slug))
    name = "proposals" if op == "selector.walk" else "candidates"
    assert (plain[name] != merged[name]).any()


@pytest.mark.parametrize("op", ["selector.walk", "head.top"])
def test_a_vector_of_scores_of_both_signs_has_both_and_only_distinct_ones(op):
    result = run_case(case(op, "scores-of-both-signs"))
    scores = result["scores" if op == "selector.walk" else "unary"]
    assert scores.min() < 0 < scores.max()
    assert len(set(scores.ravel())) == scores.size


@pytest.mark.parametrize("profile", PROFILES)
def test_candidates_differ_in_every_slot_and_rank(profile):
    for walk in all_cases(profile, op="selector.walk"):
        ids = walk.inputs["candidates"].ravel()
        assert len(set(ids)) == len(ids)
        assert walk.inputs["anchor"] not in ids


def test_an_indexed_head_in_a_vector_is_not_in_the_order_of_its_ids():
    ids = case("head.top", "indexed-ties").inputs["global_ids"]
    steps = np.diff(ids)
    assert (steps > 0).any()
    assert (steps < 0).any()
    assert head.ranked(np.zeros((1, len(ids))), ids, 5).tolist() != [[0, 1, 2, 3, 4]]


def test_a_law_can_end_short_of_its_uniform_and_the_profiles_then_part():
    answers = [run_case(case("selector.walk", "draw-without-a-rank", profile))["proposals"] for profile in PROFILES]
    ids = case("selector.walk", "draw-without-a-rank").inputs["candidates"]
    assert answers[0].tolist() == ids[:, -1].tolist()
    assert answers[1].tolist() == [ids[0, 0], ids[1, 1]]
    assert load_profile("zlab").axes["walk_fallback"] == "last_positive"
