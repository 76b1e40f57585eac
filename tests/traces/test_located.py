"""A trace of an engine that begins to do one thing wrong in round 37 is blamed on that round, that place, that rule.

Up to round 37 such an engine's trace is the clean one's, byte for byte, which other tests judge from its beginning; so
here the rounds from 34 on are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash_accelerated.ops.attention import Spans
from dflash_vectors.peers import trace_authors
from dflash_vectors.replay import BUG, Report
from dflash_vectors.replay.recording import record_reference
from dflash_vectors.trace import Trace

from . import faulty
from .conftest import DRAFTS, Made, Make
from .faulty import FROM, PACKAGE, REFERENCE, Faulty

NEW_TOKENS = 120
JUDGED = range(34, 60)


def each(engines: tuple[Faulty, ...]) -> list[Any]:
    return [pytest.param(backend, one, id=f"{one.name}-{backend}") for one in engines for backend in one.backends]


def check_found(report: Report, wrong: Faulty) -> None:
    bug = report.bug
    assert bug is not None, f"{wrong.name} was not found"
    assert (bug.round, bug.place, bug.clause) == (wrong.round, wrong.place, wrong.clause), bug
    assert report.ties == []


def check_same_before(trace: Path, clean: Path) -> None:
    """Every round before FROM is the clean trace's."""
    left, right = Trace.open(trace), Trace.open(clean)
    for number in range(FROM):
        one, other = left.round(number), right.round(number)
        assert one.stages.keys() == other.stages.keys()
        for name, tensor in one.stages.items():
            np.testing.assert_array_equal(tensor.values, other.stages[name].values)
        assert (one.licensed == other.licensed).all()
        assert one.frontiers == other.frontiers


@pytest.mark.parametrize(("backend", "wrong"), each(REFERENCE))
def test_a_fault_in_the_reference_is_found_where_it_begins(
    backend: str, wrong: Faulty, make: Make, clean: Callable[[str], Path], tmp_path: Path
) -> None:
    made = make(backend)
    record_reference(
        tmp_path / "trace", made.reference("zlab"), made.texts, made.pair.prompts[0], made.settings(NEW_TOKENS),
        spoil=wrong.spoil,
    )  # fmt: skip
    check_same_before(tmp_path / "trace", clean(backend))
    check_found(made.replayed(tmp_path / "trace", JUDGED), wrong)


@pytest.mark.parametrize(("backend", "wrong"), each(PACKAGE))
def test_a_fault_in_the_authors_package_is_found_where_it_begins(
    backend: str, wrong: Faulty, make: Make, tmp_path: Path
) -> None:
    made = make(backend)
    stops = [made.pair.words.decoy, *([made.pair.options.mask_id] if wrong.stops == "mask" else [])]
    trace_authors.generate(
        tmp_path / "trace", *made.authors, made.folders, made.pair.prompts[0], NEW_TOKENS, stops, DRAFTS,
        spoil=wrong.spoil,
    )  # fmt: skip
    check_found(made.replayed(tmp_path / "trace", JUDGED), wrong)


@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
def test_rows_that_a_state_keeps_show_in_the_next_tensors_where_its_frontiers_are_not_recorded(
    backend: str, make: Make, tmp_path: Path
) -> None:
    """The package does not crop its target's cache, and does not tell how long it is."""
    made = make(backend)
    trace_authors.generate(
        tmp_path / "trace", *made.authors, made.folders, made.pair.prompts[0], NEW_TOKENS, [made.pair.words.decoy],
        DRAFTS, spoil=lambda watcher: faulty.silent(watcher, faulty.not_cut(True)),
    )  # fmt: skip
    bug = made.replayed(tmp_path / "trace", JUDGED).bug
    assert bug is not None
    assert (bug.round, bug.place, bug.clause) == (FROM + 1, "stage.target.features", "COMMIT-002")
    assert bug.guesses[0].name == "rejected-rows-visible"


WINDOW = 19


class Ring:
    """The accelerated engine's rings, whose writes go wrong from round FROM on; writes count the rounds."""

    def __init__(self, change: Callable[[Ring, Spans], Spans]) -> None:
        self.change, self.writes, self.first = change, -1, 0

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plainly = import_module("dflash_accelerated.ops.materialize.torch")
        store: Callable[..., None] = plainly.store

        def wrong(*arguments: Any) -> None:
            *rows, held, spans, numerics = arguments
            if held.slots != WINDOW:  # a full layer's store
                store(*arguments)
                return
            self.writes += 1
            if self.writes == FROM - 1:
                self.first = spans.starts[0]
            store(*rows, held, spans if self.writes < FROM else self.change(self, spans), numerics)

        monkeypatch.setattr(plainly, "store", wrong)


def last_slot_missed(ring: Ring, spans: Spans) -> Spans:
    """The newest row of a commit does not reach its slot."""
    return Spans(spans.lanes, spans.starts, [count - 1 for count in spans.counts], spans.device)


def slots_captured_once(ring: Ring, spans: Spans) -> Spans:
    """The slots were captured in one round, and the rows of every later round go there."""
    return Spans(spans.lanes, [ring.first], spans.counts, spans.device)


RINGS = pytest.mark.parametrize(
    ("change", "clause"),
    [(last_slot_missed, "CTX-013"), (slots_captured_once, "RING-009")],
    ids=["stale-slot", "slots-captured-once"],
)


def ring_report(made: Made, profile: str, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    from trace_engine import decode  # type: ignore[import-not-found]

    Ring(change).patch(monkeypatch)
    engine = made.engine(profile, kernels="torch")
    decode(tmp_path / "trace", engine, made.folder, made.pair.prompts[0], NEW_TOKENS + 20, profile)
    return made.replayed(tmp_path / "trace", JUDGED)


@RINGS
def test_a_fault_in_the_accelerated_engines_rings_is_found_where_it_begins(
    change: Any, clause: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both layers of this pair are local. The first looks back to one row alone, which is not the one that is wrong."""
    bug = ring_report(make("dflash2", draft_windows=(WINDOW, WINDOW)), "zlab", change, tmp_path, monkeypatch).bug
    assert bug is not None
    assert (bug.round, bug.place, bug.clause) == (FROM, "stage.layer.1", clause), bug.guesses


@RINGS
def test_a_wrong_ring_row_whose_weight_bf16_rounds_away_is_found_when_the_draft_looks_at_it(
    change: Any, clause: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer copies from a row 16 back, which is some rounds later; nothing shows the wrong row before."""
    bug = ring_report(make("dflash2", "BF16"), "ninfer", change, tmp_path, monkeypatch).bug
    assert bug is not None
    assert bug.verdict == BUG
    assert bug.place == "stage.layer.0"
    assert FROM < bug.round <= FROM + 8


def test_more_than_ten_different_faults_are_injected() -> None:
    assert len({(one.place, one.clause) for one in (*REFERENCE, *PACKAGE)}) > 10
