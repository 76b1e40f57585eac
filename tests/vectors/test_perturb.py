"""Monte Carlo arithmetic on composites: keyed, undone after, and blind to nothing that matters."""

import numpy as np
import pytest
from dflash_reference import num
from dflash_spec.registry import load_profile
from dflash_vectors.errors import BuildError
from dflash_vectors.faults import patched
from dflash_vectors.inputs import normal_like
from dflash_vectors.perturb import MULTIPLE, perturbed, spread, watching
from dflash_vectors.run import execute, input_tensors, numbers
from dflash_vectors.suite import all_cases

ZLAB = load_profile("zlab")
X, W = normal_like("x", (6, 40), 1.0, "BF16"), normal_like("w", (8, 40), 0.2, "BF16")
HEAD = {"hidden": X, "head": W}


def smallest(op, profile):
    cases = all_cases(profile, op=op)
    return min(cases, key=lambda case: sum(np.size(value) for value in case.inputs.values()))


def test_rounding_goes_to_one_of_the_two_neighbours_and_leaves_represented_values_alone():
    exact = normal_like("values", (500,), 1.0, "F32")
    represented = num.round_to(exact, "BF16")
    with perturbed("a"):
        moved, kept = num.round_to(exact, "BF16"), num.round_to(represented, "BF16")
    spacing = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 7)
    assert (np.abs(moved - exact) < spacing).all()
    assert 0.2 < (moved != represented).mean() < 0.3
    # Half an ulp is more than half the gap below a power of two, the only place where a represented value moves.
    assert ((kept == represented) | (np.frexp(represented)[0] == 0.5) | (np.frexp(represented)[0] == -0.5)).all()


def test_contractions_move_by_at_most_an_fp32_roundoff_of_the_terms():
    true, size = num.contract(X, W), num.contract(np.abs(X), np.abs(W))
    with perturbed("a"):
        moved = num.contract(X, W)
    share = np.abs(moved - true) / size
    assert 2.0**-26 < share.max() <= 2.0**-24


def test_equal_keys_move_equally_and_nothing_stays_patched():
    runs = []
    for key in ("a", "a", "b"):
        with perturbed(key):
            runs.append(execute("head.logits", HEAD, ZLAB)["logits"])
    true = execute("head.logits", HEAD, ZLAB)["logits"]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    assert not np.array_equal(runs[0], true)
    assert np.array_equal(execute("head.logits", HEAD, ZLAB)["logits"], true)


def test_a_bound_is_a_multiple_of_the_largest_deviation_and_repeats():
    found = spread("some-id", "head.logits", HEAD, ZLAB, ["logits"])
    assert found == spread("some-id", "head.logits", HEAD, ZLAB, ["logits"])
    true = execute("head.logits", HEAD, ZLAB)["logits"]
    with perturbed("some-id/0"):
        first = execute("head.logits", HEAD, ZLAB)["logits"]
    assert found.bounds["logits"] >= MULTIPLE * np.abs(first - true).max() > 0


@pytest.mark.parametrize("profile", ["ninfer", "zlab"])
def test_every_argmax_of_a_forward_is_a_decision_with_its_lead(profile):
    case = smallest("target.forward", profile)
    inputs = numbers(input_tensors(case)[0])
    with watching() as taken:
        result = execute(case.op, inputs, load_profile(profile))
    assert [entry.kind for entry in taken] == ["tokens"] * len(result["tokens"])
    assert [int(entry.numbers.argmax()) for entry in taken] == result["tokens"].tolist()
    decisions = spread(case.id, case.op, inputs, load_profile(profile), ["logits"]).decisions
    ordered = np.sort(result["logits"][:, : inputs["public"]])
    assert [decision.margin for decision in decisions] == (ordered[:, -1] - ordered[:, -2]).tolist()
    assert all(decision.doubt > 0 for decision in decisions)


def test_a_run_that_the_perturbation_sends_elsewhere_is_an_error():
    case = smallest("draft.block", "zlab")
    inputs = numbers(input_tensors(case)[0])
    calls = []

    def twice(true):
        def argmax(logits, public, profile):
            calls.append(1)
            if len(calls) > 1:
                true(logits, public, profile)
            return true(logits, public, profile)

        return argmax

    with (
        patched("dflash_reference.head.argmax", twice),
        pytest.raises(BuildError, match="some decision has no margin"),
    ):
        spread(case.id, case.op, inputs, ZLAB, [])


def test_the_filters_of_a_request_are_decisions_in_the_rows_that_are_read_alone():
    held = next(case for case in all_cases("ninfer", op="engine.sample") if case.slug == "led-away-by-penalties")
    inputs = numbers(input_tensors(held)[0])
    with watching() as taken:
        result = execute(held.op, inputs, load_profile("ninfer"))
    # The first token's row, and of each round the rows up to the one that ended it; min-p and top-p decide in each.
    read = 1 + int((result["accepted"] + 1).sum())
    assert [entry.kind for entry in taken].count("cut") == 2 * read
    min_p, top_p = [entry for entry in taken if entry.kind == "cut"][:2]
    assert (min_p.goal, min_p.numbers[0]) == (inputs["min_p"], 1.0)
    assert top_p.goal == inputs["top_p"]
    assert (np.diff(top_p.numbers) > 0).all()
    assert len(top_p.numbers) == (min_p.numbers[:-1] >= min_p.goal).sum(), "what min-p drops, top-p does not count"


def test_a_top_k_that_was_asked_for_is_a_decision():
    held = next(case for case in all_cases("ninfer", op="engine.sample") if case.slug == "dflash2-filtered-and-masked")
    inputs = numbers(input_tensors(held)[0])
    found = spread(held.id, held.op, inputs, load_profile("ninfer"), [])
    tops = [decision for decision in found.decisions if decision.name == "top"]
    assert tops
    assert all(decision.margin > decision.doubt > 0 for decision in tops)
