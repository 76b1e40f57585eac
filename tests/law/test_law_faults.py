"""Every fault that decides which tokens come out moves a law, or keeps both for a reason that is true."""

from __future__ import annotations

import pytest
from dflash_vectors.faults import Fault
from dflash_vectors.law import kept, trials
from dflash_vectors.law.trials import ACCEPTANCE, CRASH, KEPT, OUTPUT, UNREADABLE

FAULTS = trials.faults_in_scope()
MOVING = [fault for fault in FAULTS if not kept.reason(fault.name)]
KEEPING = [fault for fault in FAULTS if kept.reason(fault.name)]


def named(faults: list[Fault]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fault", faults, ids=lambda fault: fault.name)


@named(MOVING)
def test_a_fault_without_an_excuse_moves_the_law_of_tokens_or_of_counts(fault: Fault) -> None:
    trial = trials.judged(fault)
    assert trial.effect in (OUTPUT, ACCEPTANCE, CRASH)
    if fault.effect == "acceptance":
        assert trial.effect == ACCEPTANCE, f"{fault.name} says that it costs acceptance alone: {trial.config}"


@named(KEEPING)
def test_a_fault_with_an_excuse_keeps_the_law_of_tokens_and_of_counts(fault: Fault) -> None:
    trial = trials.tried(fault, trials.requests_of(fault))
    unreadable = any(fault.name in names for names in kept.UNREADABLE.values())
    assert trial.effect == (UNREADABLE if unreadable else KEPT), kept.reason(fault.name)


def test_every_excuse_is_that_of_one_fault() -> None:
    excused = [name for names in (*kept.REASONS.values(), *kept.UNREADABLE.values()) for name in names]
    assert len(excused) == len(set(excused))
    assert set(excused) <= {fault.name for fault in FAULTS}
