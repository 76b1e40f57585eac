"""Which figures a run takes, with every measurement made up."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dflash_vectors.bench import run, timing
from dflash_vectors.bench.figures import OURS, Figure, Report
from dflash_vectors.bench.harness import Plan
from dflash_vectors.bench.pairs import Pair

BOTH = {("step", 1), ("round", 1), ("step", 4), ("round", 4)}


def asked(parts: str, contexts: tuple[int, ...]) -> run.Asked:
    return run.Asked(
        tuple(parts.split(",")), contexts, (1, 4), Plan(1, 1), 1, "torch", torch.device("cpu"), 1, None, False, "tiny"
    )


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(what: str) -> Any:
        return lambda party, context, plan: Figure(what, party.pair.backend, context, 1, {OURS: [1.0]})

    def batch(party: Any, what: str, context: int, size: int, plan: Plan) -> Figure:
        return Figure(what, party.pair.backend, context, size, {OURS: [1.0]})

    for what, name in (("step", "step"), ("round", "round_"), ("prefill", "prefill")):
        monkeypatch.setattr(timing, name, alone(what))
    monkeypatch.setattr(timing, "_batch", batch)
    monkeypatch.setattr(run, "loaded", lambda asked, pair, peer: SimpleNamespace(pair=pair))


@pytest.mark.parametrize("parts", ["batch", "prefill,batch", "step,batch", "round,batch", "step,round,prefill,batch"])
def test_each_backend_has_every_batch_once_whatever_else_is_timed(parts: str) -> None:
    report = Report({})
    for backend in ("dflash", "dflash2"):
        pair = Pair(Path("target"), Path("draft"), backend, {}, "made up")
        for _, job in run.jobs(asked(parts, (96,)), pair, None, report):
            job()
    for backend in ("dflash", "dflash2"):
        timed = [(each.what, each.batch) for each in report.figures if each.backend == backend]
        assert sorted(each for each in timed if each[0] != "prefill") == sorted(BOTH)


def test_a_batch_is_timed_at_the_first_context() -> None:
    report = Report({})
    for _, job in run.jobs(asked("step,batch", (96, 288)), Pair(Path(), Path(), "dflash", {}, ""), None, report):
        job()
    timed = [(each.what, each.context, each.batch) for each in report.figures]
    assert timed == [
        ("step", 96, 1), ("step", 288, 1), ("round", 96, 1), ("step", 96, 4), ("round", 96, 4),
    ]  # fmt: skip
