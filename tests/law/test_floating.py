"""Floating-point decisions on the rows of requests: the reference's own, and the accelerated engine's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import dflash_accelerated.conformance as accelerated
import numpy as np
import pytest
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from dflash_vectors.faults import patched
from dflash_vectors.implementations import reference
from dflash_vectors.law import families, rule, verify
from dflash_vectors.law.asking import Question, ask
from dflash_vectors.law.configs import BACKENDS, Config
from dflash_vectors.law.floating import AtHand, first_round, judge_first_round, judge_first_token, measurable
from dflash_vectors.law.pieces import points
from dflash_vectors.law.probes import PROBES
from dflash_vectors.law.verdicts import BROKEN, HOLDS

IMPLEMENTATIONS = {"reference": reference.create, "accelerated": accelerated.create}
DRAWING = [config for config in PROBES if BACKENDS[config.backend].verify != "law.greedy"]
WHOLE = ("ninfer", "zlab")
ROUNDS = [config for config in DRAWING if measurable(config)]


def profile_of(config: Config) -> str:
    return BACKENDS[config.backend].profile


def runner(name: str, config: Config) -> AtHand:
    return AtHand(IMPLEMENTATIONS[name](profile_of(config)))


def requests(chosen: list[Config]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("config", chosen, ids=lambda config: config.name)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@requests(ROUNDS)
def test_the_law_of_a_round_is_the_closed_form_as_far_as_fp32_can_tell(config: Config, name: str) -> None:
    finding = judge_first_round(runner(name, config), config)
    assert finding.status == HOLDS, finding.reason
    assert finding.questions > 20 or not first_round(config).slots


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@requests(DRAWING)
def test_the_law_of_a_token_is_the_pipelines_as_far_as_fp32_can_tell(config: Config, name: str) -> None:
    found = judge_first_token(runner(name, config), config)
    assert found.filtered + found.drawn <= found.limit


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("profile", [load_profile(name) for name in WHOLE], ids=WHOLE)
def test_a_draw_changes_where_a_rank_ends_and_not_beside_it(profile: Profile, name: str) -> None:
    implementation = AtHand(IMPLEMENTATIONS[name](profile.name))
    question = Question.of("proc.draw", profile, ("PROC-005",))
    for label, row in families.rows(profile).items():
        us = points(rule.shares(row.raw.values()), f"edges/{label}")
        case = question.case(support=[row.ids] * len(us), p=[row.weights] * len(us), u=np.array(us, np.float32))
        assert ask(implementation, case)["tokens"].tolist() == [rule.drawn(row.raw.items(), Fraction(u)) for u in us]


@pytest.mark.parametrize("profile", [*map(load_profile, WHOLE)], ids=WHOLE)
def test_the_engine_decides_beside_every_breakpoint_as_the_rule_says(profile: Profile) -> None:
    implementation, compared = AtHand(accelerated.create(profile.name)), 0
    rounds = [("law.one_hot", given) for given in families.certain_rounds(profile)]
    rounds += [("law.sparse", given) for given in families.drawn_rounds(profile)]
    for op, given in rounds:
        for asked in verify.choices(op, given, profile):
            axes = [points(axis, f"{given.name}/{number}") for number, axis in enumerate(asked.hints())]
            for number in range(max(map(len, axes))):
                point = tuple(axis[(number * (2 * place + 1)) % len(axis)] for place, axis in enumerate(axes))
                answer = verify.read_round(ask(implementation, asked.case(point)), asked.proposals)
                assert answer == asked.decided(point), (op, given.name, point)
                compared += 1
    assert compared > 300


CERTAIN = Config("ninfer-dflash", 2, 5, "none", "none", "1.3", "none", 9, 1)
DRAWN = Config("zlab-dflash2", 2, 5, "none", "none", "1.3", "none", 9, 1)
COVERED = Config("ninfer-dflash2", 2, 5, "none", "none", "1.3", "none", 9, 1)


def lucky(true: Callable[..., bool]) -> Callable[..., bool]:
    """Acceptance by a coin that is a ten-thousandth too small."""
    return lambda *given: true(*given[:-1], given[-1] * 0.9999)


@pytest.mark.parametrize(
    ("config", "target"),
    [
        (CERTAIN, "dflash_reference.law.accepts"),
        (DRAWN, "dflash_reference.law.under"),
        (COVERED, "dflash_reference.law.covered_or_under"),
    ],
    ids=["one-hot", "strict", "covered"],
)
def test_acceptance_that_is_a_ten_thousandth_too_likely_is_seen_in_the_reference(config: Config, target: str) -> None:
    assert judge_first_round(runner("reference", config), config).status == HOLDS
    with patched(target, lucky):
        finding = judge_first_round(runner("reference", config), config)
    assert finding.status == BROKEN
    assert 1e-7 < finding.deviation < 1.01e-4


class Lucky:
    """The accelerated engine, whose coins are a ten-thousandth too small."""

    def __init__(self, profile: str) -> None:
        self._true = accelerated.create(profile)

    def run(self, op: str, inputs: dict[str, Array]) -> dict[str, Array]:
        return self._true.run(op, inputs | {"u_accept": inputs["u_accept"] * np.float32(0.9999)})


@pytest.mark.parametrize("config", [CERTAIN, DRAWN, COVERED], ids=["one-hot", "strict", "covered"])
def test_acceptance_that_is_a_ten_thousandth_too_likely_is_seen_in_any_object(config: Config) -> None:
    finding = judge_first_round(AtHand(Lucky(profile_of(config))), config)
    assert finding.status == BROKEN
    assert 1e-7 < finding.deviation < 1.01e-4


def test_a_filter_that_is_left_out_is_seen_in_the_law_of_a_token() -> None:
    unfiltered = Config("ninfer-dflash", 2, 7, "none", "none", "1.3", "none", 9, 1)
    filtered = replace(unfiltered, filter="min-p top-p")

    class Unfiltered:
        def run(self, op: str, inputs: dict[str, Array]) -> dict[str, Array]:
            none = {"min_p": np.array(0, np.float32), "top_p": np.array(1, np.float32)}
            asked = inputs | none if op == "proc.filter" else inputs
            return accelerated.create("ninfer").run(op, asked)

    assert judge_first_token(AtHand(Unfiltered()), unfiltered).filtered < 1e-7
    found = judge_first_token(AtHand(Unfiltered()), filtered)
    assert found.drawn <= found.limit < found.filtered
