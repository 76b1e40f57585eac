"""Margins: what a decision is away from going the other way, by hand."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from dflash_spec.registry import load_profile
from dflash_vectors.bounds.algebra import gamma
from dflash_vectors.errors import BuildError
from dflash_vectors.margins import FINDERS, Decision, check_margins, edge, gaps, lead
from dflash_vectors.run import execute
from dflash_vectors.suite import Case

NINFER, ZLAB, APRIL = load_profile("ninfer"), load_profile("zlab"), load_profile("zlab-2026-04")
CASE = Case(
    "draw", ("PROC-005",), {}, catches="a rank late", effect="output", op="proc.draw", profile="ninfer"
)  # fmt: skip


def found(op, inputs, profile=NINFER):
    return list(FINDERS[op](inputs, execute(op, inputs, profile), profile))


def test_the_lead_of_a_row_is_its_best_minus_its_second():
    assert lead(np.array([1.0, 4.0, 2.5])) == 1.5
    assert lead(np.array([4.0, 4.0])) == 0
    assert lead(np.array([4.0])) == np.inf
    assert lead(np.array([4.0, -np.inf])) == np.inf


def test_a_goal_is_measured_to_the_nearest_end_of_a_rank_that_can_be_drawn():
    assert edge(0.6, np.array([0.5, 0.0, 0.25, 0.25])) == pytest.approx(0.1)
    assert edge(0.8, np.array([0.5, 0.0, 0.25, 0.25])) == pytest.approx(0.05)
    assert edge(0.0, np.array([0.0, 1.0])) == 1.0


def test_a_draw_is_in_doubt_by_the_roundings_of_its_cumulative_sum():
    inputs = {"support": np.array([[7, 3]]), "p": np.array([[0.75, 0.25]]), "u": np.array([0.5])}
    assert found("proc.draw", inputs) == [Decision("tokens", 0.25, gamma(2))]


def test_accept_tests_after_the_first_rejection_are_no_decisions():
    inputs = {
        "proposals": np.array([1, 2, 3]), "support": np.tile([1, 2, 3, 4], (4, 1)), "p": np.full((4, 4), 0.25),
        "u_accept": np.array([0.125, 0.5, 0.2]), "u_terminal": 0.5,
    }  # fmt: skip
    first, second, terminal = found("law.one_hot", inputs)
    assert (first, second) == (Decision("accepted", 0.125, 0.0), Decision("accepted", 0.25, 0.0))
    # Without the rejected 2 the mass is 0.75; the goal 0.375 lies between the sums 0.25 and 0.5.
    assert terminal == Decision("licensed", 0.125, gamma(6) * 0.75)


def test_the_cap_of_the_support_and_its_order_have_margins():
    logits = np.arange(25.0)[None] * 0.5
    logits[0, 4] += 0.375
    decisions = found("proc.distribution", {"logits": logits, "temperature": 1.0, "public": 25})
    # The twenty best are ids 5 to 24, half a step apart; id 4 is left out and comes within an eighth of id 5.
    assert decisions == [Decision("support", 0.125, 0.0)]


def filtered(adjusted, **changes):
    neutral = {"adjusted": np.array([adjusted]), "temperature": 1.0, "top_k": 0, "min_p": 0.0, "top_p": 1.0}
    return neutral | changes


def test_a_ranked_support_has_the_gaps_of_its_logits_and_the_first_left_out_as_margins():
    decisions = found("proc.filter", filtered([4.0, 1.0, 3.5, 1.25, 0.0], top_k=3))
    # The three best are 4, 3.5 and 1.25, and 1 comes within a quarter of the last of them.
    assert decisions == [Decision("support", 0.25, 0.0)]


def test_without_an_order_only_what_is_cut_off_has_a_margin_and_the_division_by_the_temperature_a_doubt():
    decisions = found("proc.filter", filtered([4.0, 1.0, 3.5, 3.25, 0.0], top_k=3), ZLAB)
    assert decisions == [Decision("kept", 2.25, 4 * 2.0**-24 * (3.25 + 1.0))]


def test_min_p_has_the_nearest_weight_on_either_side_as_margins():
    above, below = [
        one for one in found("proc.filter", filtered([3.0, 2.0, 1.0, 0.0], min_p=0.25)) if one.name == "kept"
    ]
    assert above.margin == pytest.approx(np.exp(-1.0) - 0.25)
    assert below.margin == pytest.approx(0.25 - np.exp(-2.0))
    assert 0 < below.doubt < above.doubt < 1e-5


def test_top_p_has_the_share_at_which_it_ends_and_the_one_before_as_margins():
    shares = np.cumsum(np.exp([0.0, -1.0, -2.0, -3.0])) / np.exp([0.0, -1.0, -2.0, -3.0]).sum()
    before, after = [
        one for one in found("proc.filter", filtered([3.0, 2.0, 1.0, 0.0], top_p=0.8)) if one.name == "kept"
    ]
    assert (before.margin, after.margin) == (pytest.approx(0.8 - shares[0]), pytest.approx(shares[1] - 0.8))
    assert max(before.doubt, after.doubt) < 1e-5


def test_the_share_of_all_that_is_left_is_no_decision():
    assert [one.name for one in found("proc.filter", filtered([3.0, -np.inf], top_p=0.8))] == ["support"]


def test_a_threshold_of_greedy_decoding_has_a_margin_where_there_is_one():
    inputs = {"adjusted": np.array([[1.0, 2.5]]), "temperature": 2.0**-16}
    assert found("proc.choose", inputs, APRIL) == [Decision("greedy", 2.0**-16 - 1e-5, 2 * 2.0**-24 * 1e-5)]
    assert found("proc.choose", inputs | {"temperature": 0.0}) == [Decision("tokens", 1.5, 0.0)]


def test_a_drawn_proposal_is_in_doubt_by_the_errors_of_its_law():
    inputs = {
        "logits": np.log(np.array([[0.5, 0.25, 0.25]])), "temperature": 1.0, "top_k": 0, "top_p": 1.0,
        "u": np.array([0.625]),
    }  # fmt: skip
    (decision,) = found("proc.propose", inputs, ZLAB)
    assert decision.name == "proposals"
    assert decision.margin == pytest.approx(0.125)
    assert gamma(3) < decision.doubt < 1e-5


def test_draws_after_the_row_that_ends_a_match_are_no_decisions():
    inputs = {
        "proposals": np.array([1, 2]), "support": np.tile([1, 2], (3, 1)), "p": np.array([[0.25, 0.75]] * 3),
        "u": np.array([0.125, 0.125, 0.25]),
    }  # fmt: skip
    assert found("law.match", inputs, APRIL) == [Decision("licensed", 0.125, gamma(2))] * 2


def test_a_margin_must_exceed_its_doubt_unless_the_case_is_about_ties():
    with pytest.raises(BuildError, match=r"ninfer-proc-draw-draw: tokens, decision 1: margin 0\.001, .* than 0\.002"):
        check_margins(CASE, [Decision("tokens", 0.5, 0.0), Decision("tokens", 0.001, 0.002)])
    tied = replace(CASE, tags=("tie",))
    assert check_margins(tied, [Decision("tokens", 0.0, 0.0), Decision("tokens", np.inf, 0.0)]) == {
        "tokens": [0.0, None]
    }


@pytest.mark.parametrize("row", list(permutations((-0.0, -2.0, 0.0, 0.0, -1.0, 0.0)))[::7])
def test_a_tie_of_zeros_has_the_sign_that_a_stable_order_gives_it_on_every_machine(row):
    second, best = sorted(row)[-2:]
    assert np.signbit(lead(np.array(row))) == np.signbit(gaps(np.array(row), 1)[0]) == np.signbit(best - second)
