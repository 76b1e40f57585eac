"""DFlash2's error models, margins and perturbed decisions, by hand and by enumeration of what ports may do."""

from itertools import permutations

import numpy as np
import pytest
from dflash_reference import conv
from dflash_spec.registry import load_profile
from dflash_vectors import inputs
from dflash_vectors.bounds import bounds_of, candidates, dflash2
from dflash_vectors.bounds.algebra import U, Value, exact, gamma
from dflash_vectors.errors import BuildError
from dflash_vectors.faults import patched
from dflash_vectors.margins import FINDERS, Decision, gaps
from dflash_vectors.perturb import Taken, decision_of, moved_by, spread, watching
from dflash_vectors.run import execute, input_tensors, numbers
from dflash_vectors.suite import all_cases

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
F32 = np.float32


def found(op, given, profile=ZLAB):
    return list(FINDERS[op](given, execute(op, given, profile), profile))


def one(op, slug, profile="ninfer"):
    case = next(case for case in all_cases(profile, op=op) if case.slug == slug)
    return case, numbers(input_tensors(case)[0])


def test_every_order_of_a_convolutions_terms_stays_within_its_allowance():
    z = inputs.normal_like("z", (6, 8), 1.0, "F32")
    base, delta = inputs.normal_like("b", (2, 8), 1.0, "F32"), inputs.normal_like("d", (6, 2, 4), 1.0, "F32")
    model = dflash2.convolve(exact(z), base, exact(delta), 2, 3)
    assert np.abs(conv.convolve(z, base, delta, 2, 3) - model.v).max() < 2.0**-48
    earlier = [conv.rows_before(z, tap, 3) for tap in (0, 1)]
    spread_ = np.repeat(delta, 2, axis=-1)
    terms = [(part * row).astype(F32) for tap, row in enumerate(earlier) for part in (base[tap], spread_[:, tap])]
    worst = 0.0
    for order in permutations(range(4)):
        total = np.zeros(z.shape, F32)
        for index in order:
            total = total + terms[index]
        off = np.abs(total - model.v)
        worst = max(worst, float(np.divide(off, model.e, out=np.zeros_like(off), where=model.e > 0).max()))
    assert 0.05 < worst <= 1


def test_a_convolution_carries_the_errors_of_rows_and_increments():
    z, base = Value(np.array([[2.0], [4.0]]), np.array([[0.5], [0.25]])), np.array([[1.0], [3.0]])
    delta = Value(np.array([[[1.0], [0.0]], [[1.0], [-1.0]]]), np.full((2, 2, 1), 0.125))
    model = dflash2.convolve(z, base, delta, 1, 2)
    # Row 1: (1 + 1) 4 + (3 - 1) 2; 0.125 times the reaches 4.25 and 2.5, and 2 times both errors.
    assert model.v.tolist() == [[4.0], [12.0]]
    assert model.e[1, 0] == pytest.approx(0.125 * (4.25 + 2.5) + 2 * 0.25 + 2 * 0.5, abs=gamma(6) * 40)


def test_slots_that_get_no_row_must_stay_as_they_are():
    case, given = one("context.materialize", "ordinary")
    result = execute(case.op, given, NINFER)
    bounds = bounds_of(case.op, given, result, NINFER)
    lanes, layers, slots = result["key"].shape[:3]
    touched = np.zeros((lanes, layers, slots), dtype=bool)
    for lane, frontier, count in zip(given["lanes"], given["frontiers"], given["counts"], strict=True):
        touched[lane, :, (frontier + np.arange(count)) % slots] = True
    for name in ("key", "value"):
        assert ((bounds[name] > 0).any(axis=(3, 4)) == touched).all()


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_three_factors_of_a_score_may_meet_in_any_order(order):
    case, given = one("selector.walk", "ordinary", "zlab")
    result = execute(case.op, given, ZLAB)
    model = candidates.edges(given, result["proposals"])
    before = [given["anchor"], *result["proposals"][:-1]]
    for step, token in enumerate(before):
        rows = given["successor"][given["candidates"][step]].astype(F32)
        parts = [np.broadcast_to(x.astype(F32), rows.shape) for x in (given["predecessor"][token], given["g"][step])]
        parts.append(rows)
        product = parts[order[0]] * parts[order[1]] * parts[order[2]]
        total = np.zeros(len(rows), F32)
        for rank in range(rows.shape[1]):
            total = total + product[:, rank]
        assert (np.abs(given["unary"][step].astype(F32) + total - model.v[step]) <= model.e[step]).all()


def test_a_law_covers_scores_at_the_ends_of_their_intervals():
    scores = inputs.normal_like("s", (3, 9), 2.0, "F32")
    model = candidates.law(Value(scores, np.full((3, 9), 1e-4)), 0.7)
    for sign in (np.sign(inputs.normal_like(f"sign/{k}", (3, 9), 1.0, "F32")) for k in range(40)):
        powers = np.exp((scores + 1e-4 * sign) / 0.7)
        assert (np.abs(powers / powers.sum(axis=1, keepdims=True) - model.v) <= model.e).all()


def test_a_capped_score_moves_by_at_most_what_the_logit_moves():
    _, given = one("head.top", "capped", "zlab")
    model = candidates.scores(given)
    plain = candidates.scores(given | {"softcap": 0.0})
    assert (np.abs(model.v) < given["softcap"]).all()
    assert (model.e <= plain.e + 4 * U * (np.abs(plain.v) + plain.e) + 5.01 * U * given["softcap"]).all()


def test_the_last_candidate_is_measured_against_those_left_out():
    assert gaps(np.array([1.0, 9.0, 4.0, 8.5]), 2).tolist() == [0.5, 4.5]
    assert gaps(np.array([3.0, 1.0]), 2).tolist() == [2.0]
    head = np.array([[8.0], [5.0], [4.75], [1.0]])
    given = {
        "hidden": np.ones((1, 1)), "head": head, "global_ids": np.arange(4), "public": 4, "multiplier": 1.0,
        "softcap": 0.0, "top": 2,
    }  # fmt: skip
    (decision,) = found("head.top", given)
    assert (decision.name, decision.margin) == ("candidates", 0.25)
    assert 0 < decision.doubt < 100 * U


def test_a_walk_has_a_decision_for_each_step():
    given = {
        "candidates": np.array([[1, 2], [3, 0]]), "unary": np.array([[2.0, 1.5], [0.0, 1.0]]), "g": np.ones((2, 1)),
        "predecessor": np.zeros((4, 1)), "successor": np.zeros((4, 1)), "anchor": 0, "temperature": 0.0,
        "u": np.array([0.25, 0.75]),
    }  # fmt: skip
    assert [decision.margin for decision in found("selector.walk", given)] == [0.5, 1.0]
    level = given | {"unary": np.zeros((2, 2)), "temperature": 1.0}
    drawn = found("selector.walk", level)
    assert [decision.margin for decision in drawn] == [0.25, 0.25]
    assert all(gamma(2) < decision.doubt < 40 * U for decision in drawn)


def test_a_sparse_round_decides_up_to_the_first_rejection_and_then_its_token():
    given = {
        "proposals": np.array([2, 3, 2]), "candidates": np.tile([2, 3], (3, 1)), "q": np.full((3, 2), 0.5),
        "support": np.tile([1, 2, 3, -1], (4, 1)), "p": np.tile([0.25, 0.5, 0.25, 0.0], (4, 1)),
        "u_accept": np.array([0.25, 0.75, 0.0]), "u_terminal": 0.75,
    }  # fmt: skip
    # 0.5 - 0.125 accepts, 0.25 - 0.375 rejects; only token 1 has anything left, 0.25 in all, and the goal is 0.1875.
    assert found("law.sparse", given) == [
        Decision("accepted", 0.375, 0.0), Decision("accepted", 0.125, 0.0),
        Decision("licensed", 0.0625, gamma(7) * 0.25),
    ]  # fmt: skip


def test_every_rank_of_every_row_is_a_decision_where_candidates_are_returned():
    case, given = one("draft2.block", "context-not-convolved")
    result = execute(case.op, given, NINFER)
    with watching() as taken:
        execute(case.op, given, NINFER)
    rows, top = result["candidates"].shape
    assert [entry.kind for entry in taken].count("rank") == rows * top
    decisions = spread(case.id, case.op, given, NINFER, ["hidden"]).decisions
    ranks = [decision for decision in decisions if decision.name == "rank"]
    assert len(ranks) == rows * top
    assert all(decision.margin > decision.doubt > 0 for decision in ranks)


def test_a_rank_is_in_doubt_by_its_nearest_rivals_and_less_by_far_ones():
    true = Taken("rank", np.array([9.0, 5.0, 4.0, 0.0]), 1)
    ahead, near, far = (0.5 * np.eye(4)[row] for row in (0, 2, 3))
    # The row one step behind counts in full, the one five steps behind a fifth; the row ahead decides another rank.
    assert moved_by(true, Taken("rank", true.numbers + near, 1)) == 0.5
    assert moved_by(true, Taken("rank", true.numbers + far, 1)) == pytest.approx(0.1)
    assert moved_by(true, Taken("rank", true.numbers + ahead, 1)) == 0
    assert decision_of(true, 0.1) == Decision("rank", 1.0, 0.4)


def test_a_composite_whose_tokens_change_under_perturbation_is_refused():
    case, given = one("draft2.block", "context-not-convolved")
    calls = []

    def wavering(true):
        def walk(*args, **named):
            calls.append(1)
            done = true(*args, **named)
            return done._replace(proposals=done.proposals + (len(calls) > 1))

        return walk

    with patched("dflash_reference.selector.walk", wavering), pytest.raises(BuildError, match="gives other proposals"):
        spread(case.id, case.op, given, NINFER, [])
