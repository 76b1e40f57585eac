"""What rounds came to, counted and timed by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from dflash_accelerated import Engine, Generation, Round, StageTimes, Statistics
from dflash_accelerated.statistics import Tally
from dflash_spec.errors import RequestError
from dflash_vectors.planted import Planted

Load = Callable[..., Engine]

PREFILL = Round((5,), times=StageTimes(prefill=3.0, decide=0.5, commit=0.5))
ROUNDS = [
    PREFILL,
    Round((1, 2, 3), (1, 2, 9), 2, times=StageTimes(propose=1.0, verify=2.0, decide=0.25, commit=0.25)),
    Round((4,), (8, 8, 8), 0, times=StageTimes(propose=1.0, verify=2.0, requests=2)),
    Round((6, 7, 8, 9), (6, 7, 8), 3, times=StageTimes(propose=1.0, verify=3.0, requests=4)),
    Round((1, 2), (1,), 1, "length", times=StageTimes(verify=1.0)),
]
COUNTED = {
    "answers": 1,
    "rounds": 4,
    "tokens": 11,
    "accepted": (1, 1, 1, 1),
    # Proposal 1 is always tested; 2 where 1 stood and there is a 2: not after 0 accepted, not in a block of one.
    "tested": (4, 2, 2),
    "stood": (3, 2, 1),
}


def test_counts_times_and_shares_are_those_counted_by_hand() -> None:
    found = Statistics.of(ROUNDS)
    assert {name: getattr(found, name) for name in COUNTED} == COUNTED
    assert found.acceptance == (0.75, 1.0, 0.5)
    # A joint round's time is shared: 1 + 1/2 + 1/4 s of proposals; the prefill's round is prefill as a whole.
    assert found.seconds == StageTimes(prefill=4.0, propose=1.75, verify=2 + 1 + 0.75 + 1, decide=0.25, commit=0.25)
    assert found.tokens_per_round == 10 / 4
    assert found.tokens_per_second == 10 / 7


def test_an_answer_its_rounds_and_its_parts_come_to_the_same() -> None:
    whole = Statistics.of(ROUNDS)
    assert Statistics.of(Generation.of(ROUNDS)) == whole
    assert Statistics.of(ROUNDS[:2]) + Statistics.of(ROUNDS[2:]) == whole
    assert Statistics.of([Generation.of(ROUNDS)] * 2) == whole + whole
    assert Statistics.of(ROUNDS[2]) + Statistics() == Statistics.of(ROUNDS[2])


def test_a_round_that_several_shared_adds_its_time_once_whenever_it_is_read() -> None:
    tally, shared, seen = Tally(), StageTimes(verify=0.1, requests=3), []
    for _ in range(3):
        tally.add(Round((1,), (), 0, times=shared))
        seen.append(tally.read().seconds.verify)
    assert seen == pytest.approx([0.1 / 3, 0.2 / 3, 0.1])


def test_reading_changes_nothing_so_that_another_thread_may_read() -> None:
    tally = Tally()
    for each in ROUNDS:
        tally.add(each)
        before = repr(vars(tally))
        assert tally.read() == tally.read()
        assert repr(vars(tally)) == before
    assert tally.read() == Statistics.of(ROUNDS)


def test_reading_while_another_thread_adds_gives_counts_that_belong_together() -> None:
    tally, ended, before = Tally(), Event(), sys.getswitchinterval()

    def add() -> None:
        for proposals in range(400):
            for accepted in range(0, proposals + 1, 7):
                tally.add(Round((1,), (2,) * proposals, accepted))
        ended.set()

    adding = Thread(target=add)
    sys.setswitchinterval(1e-6)
    try:
        adding.start()
        while not ended.is_set():
            found = tally.read()
            assert found.rounds == sum(found.accepted)
            assert not found.tested or found.tested[0] == found.rounds - 1  # one round had no proposals
    finally:
        sys.setswitchinterval(before)
        adding.join()


def test_only_statistics_are_added_to_statistics() -> None:
    with pytest.raises(TypeError):
        Statistics.of(ROUNDS) + 1  # type: ignore[operator]  # that is the point


def test_a_round_that_ended_with_an_error_adds_its_time_alone() -> None:
    failed = Round((), (1, 2), 0, "error", RequestError("no"), times=StageTimes(verify=2.0))
    found = Statistics.of([PREFILL, failed])
    assert (found.rounds, found.accepted, found.tested, found.seconds.verify) == (0, (), (), 2.0)
    assert (found.tokens_per_round, found.tokens_per_second) == (None, None)


def test_what_took_no_time_has_no_speed_and_rounds_without_proposals_have_no_positions() -> None:
    untimed = [replace(each, times=StageTimes()) for each in ROUNDS]
    assert Statistics.of(untimed).tokens_per_second is None
    assert "stage" not in str(Statistics.of(untimed))
    plain = Statistics.of([Round((5,)), Round((6,), (), 0), Round((7,), (), 0)])
    assert (plain.accepted, plain.tested, plain.tokens_per_round) == ((2,), (), 1.0)
    assert str(plain) == "1 answer, 3 tokens in 2 rounds, 1.00 tokens a round"
    assert str(Statistics()) == "0 answers, 0 tokens in 0 rounds"


def test_it_is_printed_as_a_histogram_with_every_accepted_count() -> None:
    lines = str(Statistics.of([PREFILL, *ROUNDS[1:2] * 3, ROUNDS[2]])).splitlines()
    assert lines[0] == "1 answer, 11 tokens in 4 rounds, 2.50 tokens a round, 0.83 tokens a second"
    assert lines[1:6] == [
        "accepted  rounds",
        f"       0       1  {'█' * 10}",
        "       1       0",
        f"       2       3  {'█' * 30}",
        "       3       0",
    ]
    assert lines[7:10] == [
        f"       1       4    75.0%  {'█' * 22}",
        f"       2       3   100.0%  {'█' * 30}",
        "       3       3     0.0%",
    ]
    assert [line.split()[0] for line in lines[10:]] == ["stage", "prefill", "propose", "verify", "decide", "commit"]


def test_a_block_far_wider_than_what_is_accepted_has_one_line_for_all_counts_that_no_round_had() -> None:
    wide = [replace(each, proposals=(*each.proposals, *range(96))) for each in ROUNDS[1:3]]
    lines = str(Statistics.of([PREFILL, *wide])).splitlines()
    assert [line.split()[:2] for line in lines[2:6]] == [["0", "1"], ["1", "0"], ["2", "1"], ["3–99", "0"]]
    assert lines[6] == "position  tested  accepted"


@pytest.mark.parametrize("found", [None, 5, "rounds", [3], [ROUNDS]], ids=repr)
def test_what_is_neither_answer_nor_round_is_named(found: Any) -> None:
    with pytest.raises(RequestError, match="expected answers or rounds"):
        Statistics.of(found)


def test_an_engine_times_every_stage_and_counts_what_step_made(
    planted_pair: Callable[[str], tuple[Path, Planted]], load: Load
) -> None:
    folder, plan = planted_pair("standard")
    engine = load(folder, draft_tokens=7, max_context=256)
    assert engine.statistics() == Statistics()
    tickets = [engine.submit(engine.request(prompt, 30)) for prompt in plan.prompts]
    rounds = [latest for made in iter(engine.step, {}) for latest in made.values()]
    found = engine.statistics()
    assert found == Statistics.of(rounds)
    assert (found.answers, found.tokens) == (len(tickets), 30 * len(tickets))
    assert sum(found.accepted) == found.rounds
    assert all(spent > 0 for spent in found.seconds[:-1])
    joint = [each.times.requests for each in rounds if each.accepted is not None]
    assert max(joint) == len(tickets)
    assert Statistics.of(engine.decode_plain(plan.prompts[0], 9)).accepted == (8,)


def test_a_tally_holds_no_more_after_many_rounds() -> None:
    tally = Tally()
    for _ in range(5000):
        tally.add(ROUNDS[1])
    assert len(vars(tally)["_outcomes"]) == 1
    assert tally.read().accepted == (0, 0, 5000, 0)
