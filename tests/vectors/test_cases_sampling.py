"""What single vectors of the sampling pipeline promise: that the answers which they tell apart do differ."""

from collections import Counter

import numpy as np
import pytest
from dflash_spec.registry import load_profile
from dflash_vectors.faults import all_faults, applied
from dflash_vectors.run import execute, input_tensors, numbers, run_case
from dflash_vectors.suite import all_cases

FILTER, ADJUST = "proc.filter", "proc.adjust"
FAULTS = {fault.name: fault for fault in all_faults()}


def case(op, slug, profile="ninfer"):
    return next(case for case in all_cases(profile, op=op) if case.slug == slug)


def with_inputs(case_, **changes):
    return execute(case_.op, numbers(input_tensors(case_)[0]) | changes, load_profile(case_.profile))


@pytest.mark.parametrize("profile", ["ninfer", "zlab"])
def test_the_mass_of_what_top_k_left_and_that_of_the_whole_vocabulary_keep_other_sets(profile):
    held = case(FILTER, "mass-after-top-k", profile)
    with applied(FAULTS["mass-of-the-whole-vocabulary"]):
        other = run_case(held)["kept"]
    assert (run_case(held)["kept"].tolist(), other.tolist()) == ([3], [4])


def test_the_mass_before_min_p_and_that_after_it_keep_other_sets():
    held = case(FILTER, "mass-before-min-p")
    weights = run_case(held)["weights"][0]
    total, after = weights.sum(), weights[weights >= held.inputs["min_p"]].sum()
    reached = [int(np.argmax(np.cumsum(weights) >= held.inputs["top_p"] * mass)) + 1 for mass in (total, after)]
    assert reached == [3, 2]
    assert run_case(held)["kept"].tolist() == [3]


def test_the_nucleus_at_the_temperature_and_at_temperature_1_are_two():
    for slug in ("mass-when-hot", "mass-when-cold"):
        held = case(FILTER, slug)
        assert run_case(held)["kept"] != with_inputs(held, temperature=1.0)["kept"], slug


@pytest.mark.parametrize("profile", ["ninfer", "zlab"])
def test_top_p_beside_a_cumulative_weight_keeps_one_candidate_more_or_less(profile):
    below, above = (case(FILTER, f"top-p-just-{side}-a-cumulative-weight", profile) for side in ("below", "above"))
    assert (run_case(below)["kept"].tolist(), run_case(above)["kept"].tolist()) == ([2], [3])


def test_a_cumulative_weight_on_the_mass_itself_ends_the_support_and_one_step_more_does_not():
    for held in all_cases("ninfer", op=FILTER):
        if not held.slug.startswith("top-p-exactly"):
            continue
        kept = run_case(held)["kept"][0]
        more = with_inputs(held, top_p=float(np.nextafter(np.float32(held.inputs["top_p"]), np.float32(1))))["kept"][0]
        assert more == kept + 1, held.slug


def test_min_p_and_top_p_and_top_k_each_leave_another_count_somewhere():
    held = case(FILTER, "top-k-min-p-and-top-p")
    together = run_case(held)["kept"].tolist()
    alone = {
        "top_k": with_inputs(held, min_p=0.0, top_p=1.0), "min_p": with_inputs(held, top_k=0, top_p=1.0),
        "top_p": with_inputs(held, top_k=0, min_p=0.0),
    }  # fmt: skip
    assert all(result["kept"].tolist() != together for result in alone.values()) or len(set(together)) > 1
    assert len({tuple(result["kept"].tolist()) for result in alone.values()}) == 3


def test_filters_leave_another_count_in_every_row_of_some_case():
    counts = [
        run_case(held)["kept"].tolist() for held in all_cases("ninfer", op=FILTER) if "refused" not in run_case(held)
    ]
    assert any(len(set(row)) == len(row) == 3 for row in counts)


def test_presence_before_frequency_is_told_from_both_other_orders():
    first, second = (
        case(ADJUST, slug) for slug in ("presence-before-frequency", "frequency-after-presence-leaves-little")
    )
    faults = {fault.name: fault for fault in all_faults()}
    for held, name in ((first, "frequency-before-presence"), (second, "penalties-added-up-first")):
        with applied(faults[name]):
            wrong = run_case(held)["adjusted"]
        assert not np.array_equal(wrong, run_case(held)["adjusted"]), name


def test_the_overlays_of_a_block_repeat_a_token_and_hold_the_anchors_id_as_a_draft():
    overlays = all_cases("ninfer", op="proc.overlay")
    assert any(
        max(Counter(held.inputs["proposals"].tolist()).values()) > 2
        for held in overlays
        if held.inputs["proposals"].size
    )
    assert any(held.inputs["anchor"] in held.inputs["proposals"] for held in overlays)


def test_a_mask_on_the_bonus_row_alone_leaves_every_other_row_as_it_is():
    held = case(ADJUST, "mask-on-the-bonus-row-alone")
    adjusted = run_case(held)["adjusted"]
    assert np.isfinite(adjusted[:-1]).all()
    assert 10 < np.isneginf(adjusted[-1]).sum() < 43
    assert adjusted[-1].argmax() != held.inputs["logits"][-1].argmax() or np.isneginf(adjusted[-1]).any()


def test_proposals_of_the_edges_are_drawn_at_probabilities_that_are_exact():
    q = run_case(case("proc.propose", "uniforms-on-edges", "zlab"))["q"]
    assert set(q.ravel()) == {0.0, 0.25}


def test_every_filter_of_the_drawn_proposals_changes_what_is_proposed():
    held = case("proc.propose", "outside-the-nucleus", "zlab")
    free = with_inputs(held, top_k=0, top_p=1.0)
    filtered = run_case(held)
    assert (filtered["proposals"] != free["proposals"]).sum() >= 2
    outside = filtered["q"][np.arange(4), free["proposals"]] == 0
    assert outside.any(), "an unfiltered draw leaves the law that is claimed"


def test_one_request_has_the_same_uniforms_in_every_batch_width_and_age():
    rows = set()
    for slug, row in {
        "one-request": 0, "oldest-engine": 0, "one-request-in-a-wide-block": 0, "first-of-three": 0, "last-of-three": 2,
        "same-seed-and-place-twice": 2,
    }.items():  # fmt: skip
        result = run_case(case("rng.batch_uniforms", slug))
        rows.add((*result["accept"][row][:5].tolist(), float(result["terminal"][row])))
    assert len(rows) == 1


def test_matching_proposals_and_testing_them_part_in_count_and_token():
    held = case("law.match", "coin-below-p-and-another-draw", "zlab-2026-04")
    assert run_case(held)["accepted"] == 0
    given = held.inputs
    tested = execute(
        "law.one_hot",
        {name: given[name] for name in ("proposals", "support", "p")}
        | {"u_accept": given["u"][:-1], "u_terminal": float(given["u"][-1])},
        load_profile("zlab"),
    )
    assert tested["accepted"] == 1


@pytest.mark.parametrize(
    ("profile", "least"), [("ninfer", {0, 1, 2, 4}), ("zlab", {0, 1, 2, 3, 4})], ids=["ninfer", "zlab"]
)
def test_sampled_requests_accept_every_kind_of_count(profile, least):
    seen: Counter[int] = Counter()
    for held in all_cases(profile, op="engine.sample"):
        result = run_case(held)
        if held.inputs["temperature"] > 0 and "accepted" in result:
            seen.update(result["accepted"].tolist())
    print(f"{profile}: {dict(sorted(seen.items()))}")
    assert least <= set(seen)


@pytest.mark.parametrize(("profile", "least"), [("ninfer", 2), ("zlab", 3)])
def test_sampled_requests_draw_what_a_greedy_one_would_not_say(profile, least):
    apart = 0
    for held in all_cases(profile, op="engine.sample"):
        result = run_case(held)
        if held.inputs["temperature"] > 0 and "tokens" in result:
            apart += result["tokens"].tolist() != with_inputs(held, temperature=0.0)["tokens"].tolist()
    assert apart >= least


def test_requests_end_inside_a_block_by_a_stop_and_by_the_budget():
    cut: Counter[str] = Counter()
    for held in all_cases(op="engine.sample"):
        result = run_case(held)
        if "tokens" not in result:
            continue
        licensed = 1 + int((result["accepted"] + 1).sum())
        if licensed > len(result["tokens"]):
            cut["stop" if result["tokens"][-1] in held.inputs["stop_ids"] else "budget"] += 1
    assert cut["stop"] >= 2
    assert cut["budget"] >= 1


def test_penalties_lead_a_greedy_request_away_from_what_it_would_repeat():
    held = case("engine.sample", "greedy-penalties")
    free = with_inputs(held, presence=0.0, frequency=0.0)["tokens"].tolist()
    penalised = run_case(held)["tokens"].tolist()
    apart = next(place for place, pair in enumerate(zip(free, penalised, strict=True)) if pair[0] != pair[1])
    assert penalised[apart] not in penalised[:apart], "the text leaves the cycle"
    assert free[apart] in free[:apart]


@pytest.mark.parametrize(
    "name",
    [
        "penalties-do-not-grow-in-a-block", "last-penalty-row-for-the-block", "own-proposal-counted-in-its-row",
        "anchor-counted-twice", "repeated-proposal-counted-once",
    ],
)  # fmt: skip
def test_a_whole_request_shows_what_counts_in_each_row_of_a_block(name):
    held = case("engine.sample", "greedy-penalties-inside-a-block")
    true = run_case(held)
    with applied(FAULTS[name]):
        wrong = run_case(held)
    assert any(not np.array_equal(true[key], wrong[key]) for key in true)
