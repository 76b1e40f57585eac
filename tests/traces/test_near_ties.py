"""Where a token differs: a near tie is told and passed, a wider gap is a bug, and recorded numbers have no doubt.

Every token of the pair has a twin whose logit is nearly its own, so that an engine that rounds elsewhere says other
tokens than the reference. The replay goes on along what it said.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash_spec.files import read_metadata, read_tensors, write_tensors
from dflash_spec.tensors import Tensor
from dflash_vectors.faults import Function, patched
from dflash_vectors.innocents import INNOCENTS, computing_as
from dflash_vectors.replay import BUG, Report
from dflash_vectors.replay.recording import record_reference

from .conftest import Made, Make

NEW_TOKENS = 60
ROUNDED = next(innocent for innocent in INNOCENTS if innocent.name == "rounded-mlp")


def without(folder: Path, *stages: str) -> None:
    """A trace that has not recorded these stages."""
    for path in folder.glob("*.safetensors"):
        held = {name: tensor for name, tensor in read_tensors(path).items()
                if name.removeprefix("stage.") not in stages}  # fmt: skip
        write_tensors(path, held, read_metadata(path))


@pytest.fixture(scope="module")
def twins(make: Make) -> Made:
    return make("dflash", "BF16", twins=True)


def rounded(twins: Made, folder: Path) -> None:
    with computing_as(ROUNDED):
        record_reference(
            folder, twins.reference("ninfer"), twins.texts, twins.pair.prompts[0], twins.settings(NEW_TOKENS)
        )  # fmt: skip


def test_an_honest_engine_that_says_other_tokens_passes_with_its_near_ties_told(twins: Made, tmp_path: Path) -> None:
    rounded(twins, tmp_path / "trace")
    report = twins.replayed(tmp_path / "trace")
    assert report.bug is None
    assert report.complete
    assert report.judged == len(report.trace)
    assert len({finding.round for finding in report.ties}) >= 3, "this pair has too few near ties to test anything"
    for finding in report.ties:
        assert finding.tie is not None
        print(f"round {finding.round}, {finding.place}: gap {finding.tie.gap:.4f}, doubt {finding.tie.doubt:.4f}")
        assert finding.place in ("decision.proposals", "decision.accepted", "decision.licensed", "decision.first")
        assert twins.pair.words.twin.get(finding.tie.expected) == finding.tie.got or (
            twins.pair.words.twin.get(finding.tie.got) == finding.tie.expected
        )


def test_a_near_tie_is_told_too_where_no_logits_are_recorded(twins: Made, tmp_path: Path) -> None:
    rounded(twins, tmp_path / "trace")
    told = {(finding.round, finding.place) for finding in twins.replayed(tmp_path / "trace").ties}
    without(tmp_path / "trace", "logits", "target.logits", "layer.1", "hidden")
    report = twins.replayed(tmp_path / "trace")
    assert report.bug is None
    assert told <= {(finding.round, finding.place) for finding in report.ties}


def strangers(report: Report) -> Any:
    bug = report.bug
    assert bug is not None
    assert bug.verdict == BUG
    assert bug.tie is not None
    return bug


def other_token(watch: Any) -> AbstractContextManager[None]:
    """From round 5 on the round's last token is the next id, which is no twin."""

    def maker(true: Function) -> Function:
        def wrong(proposals: Any, accepted: int, terminal: int) -> Any:
            return true(proposals, accepted, (terminal + 2) % 15 if watch.rounds >= 5 else terminal)

        return wrong

    return patched("dflash_reference.law.licensed_row", maker)


@pytest.mark.parametrize("recorded", [True, False], ids=["with-logits", "without-logits"])
def test_a_token_beyond_its_doubt_is_a_bug_with_gap_and_doubt(recorded: bool, twins: Made, tmp_path: Path) -> None:
    record_reference(
        tmp_path / "trace", twins.reference("ninfer"), twins.texts, twins.pair.prompts[0], twins.settings(NEW_TOKENS),
        spoil=other_token,
    )  # fmt: skip
    if not recorded:
        without(tmp_path / "trace", "target.logits")
    bug = strangers(twins.replayed(tmp_path / "trace"))
    assert (bug.round, bug.place, bug.clause) == (5, "decision.licensed", "LAW-002")
    assert bug.tie.gap > 1
    assert bug.tie.doubt < 0 if recorded else 0 < bug.tie.doubt < 1
    assert f"expected {bug.tie.expected}; logit gap" in bug.problem


def test_a_twin_that_the_recorded_logits_do_not_choose_is_a_bug(twins: Made, tmp_path: Path) -> None:
    """The gap is that of a near tie, but the trace's own numbers decide it, and without doubt."""
    rounded(twins, tmp_path / "trace")
    path = tmp_path / "trace" / "round-000004.safetensors"
    held = read_tensors(path)
    logits = np.array(held["stage.target.logits"].values)
    row = int(held["decision.accepted"].values)
    said = int(held["decision.licensed"].values[row])
    twin = {**twins.pair.words.twin, **{b: a for a, b in twins.pair.words.twin.items()}}[said]
    assert abs(logits[row, said] - logits[row, twin]) < 0.5
    logits[row, twin], logits[row, said] = logits[row, said] + 0.0625, logits[row, said]
    held["stage.target.logits"] = Tensor.of("BF16", logits)
    write_tensors(path, held, read_metadata(path))
    bug = strangers(twins.replayed(tmp_path / "trace"))
    assert (bug.round, bug.place, bug.clause) == (4, "decision.licensed", "LAW-002")
    assert "by numbers that the trace itself holds" in bug.problem
