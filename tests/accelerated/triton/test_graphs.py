"""Recorded forwards in Triton's interpreter, where a replay computes the recording's body again on its own tensors.

What a CUDA graph would have kept from its recording shows here too: the body sees spans that refuse lanes and starts on
the host, and inputs, tables and outputs are the tensors of the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_accelerated import Engine
from dflash_accelerated.graphs import Captured, Profiles, Tensors
from dflash_accelerated.protocols import Block, ContextRows, Segment
from dflash_accelerated.requests import StageLog
from dflash_accelerated.settings import Sampling

DRAFTS, BATCH = 2, 3
WIDTH = DRAFTS + 1
SCRIPT = [([0, 1], [1, 3]), ([1, 0], [3, 2]), ([2, 0, 1], [2, 3, 1]), ([1, 2], [1, 1])]
"""Which sequences take part in a round, and how many rows of each verify are kept."""


class Again:
    """A capture that runs the body, and again at each replay."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, body: Callable[[], Tensors]) -> Captured:
        outputs = body()

        def replay() -> None:
            self.replays += 1
            body()

        return Captured(outputs, replay)


def engine_of(folder: Path, capture: Again | None, poisoned: bool = False) -> Any:
    engine = Engine.from_pretrained(
        folder / "target", folder / "draft", kernels="triton", draft_tokens=DRAFTS, max_batch=BATCH, max_context=40
    )
    target: Any = engine.target
    draft: Any = engine.draft
    if capture:
        profiles = Profiles(BATCH, WIDTH, draft.taps, capture)
        for adapter in (target, draft):
            adapter.capture(profiles)
    if capture and poisoned:
        for graphs in (target._graphs, draft._appending, draft._proposing):
            for held in (*graphs._inputs, *graphs._outputs):
                held.fill_(torch.nan if held.is_floating_point() else 0)
    return engine


def played(
    engine: Any, recorder: Callable[[int], StageLog | None] = lambda at: None
) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """What each round of the script gives, and what is then stored: sequences of other lengths, in changing rows."""
    target, draft = engine.target, engine.draft
    generator = torch.Generator().manual_seed(7)

    def ids(count: int) -> torch.Tensor:
        return torch.randint(0, 60, (count,), generator=generator)

    target.open(5)  # its lane stays empty, and the others' are not their rows
    states = []
    for length in (9, 2, 6):
        states.append((target.open(40), draft.open(40)))
        own, context = states[-1]
        (step,) = target.forward([Segment(own, ids(length))], draft.taps, "last")
        draft.append([ContextRows(context, step.features)])
    for at, (rows, kept) in enumerate(SCRIPT):
        log = recorder(at)
        heat = [Sampling(0.9 if (at + row) % 2 else 0.0) for row in rows]
        blocks = [
            Block(states[row][1], int(ids(1)), DRAFTS, DRAFTS, log.record if log else None, hot,
                  torch.rand(DRAFTS, generator=generator) if hot.temperature else None)
            for row, hot in zip(rows, heat, strict=True)
        ]  # fmt: skip
        made = draft.propose(blocks, target.vocabulary)
        laws = [part for each in made if each.law for part in each.law if part is not None]
        steps = target.forward([Segment(states[row][0], ids(WIDTH)) for row in rows], draft.taps, "all")
        plain = target.forward([Segment(states[row][0], ids(1)) for row in rows], (), "all") if at % 3 == 0 else []
        for row, count in zip(rows, kept, strict=True):
            states[row][0].rollback(states[row][1].length + count)
        features = [step.features[:count] for step, count in zip(steps, kept, strict=True)]
        draft.append([ContextRows(states[row][1], part) for row, part in zip(rows, features, strict=True)])
        given = [*(each.tokens for each in made), *laws, *(each.logits for each in (*steps, *plain))]
        stored = [part for row in rows for state in states[row] for part in state.view().parts]
        yield [*given, *(step.features for step in steps)], stored


@pytest.fixture(params=["dflash", "dflash2"])
def pair(request: pytest.FixtureRequest, random_pair: Path, random_pair2: Path) -> Path:
    return random_pair2 if request.param == "dflash2" else random_pair


@pytest.mark.usefixtures("products_row_by_row")
def test_a_replay_gives_what_a_forward_gives_at_any_length_lane_and_ids(pair: Path) -> None:
    """Bit for bit, and what a round gave stays as it was: the next replay writes over the recording's own tensors only.

    Rows of an append that are not live hold NaN at first, and then what earlier rounds left there.
    """
    capture = Again()
    recorded = engine_of(pair, capture, poisoned=True)
    kept = []
    for (wanted, lines), (given, stored) in zip(played(engine_of(pair, None)), played(recorded), strict=True):
        assert all(torch.equal(*each) for each in zip(wanted + lines, given + stored, strict=True))
        kept += [(made, made.clone()) for made in given]
    assert all(torch.equal(then, now) for now, then in kept)
    target, draft = recorded.target, recorded.draft
    assert capture.replays == 3 * len(SCRIPT) + 2 + 1  # steps of one row, and a prompt short enough for an append
    assert [graphs.count for graphs in (target._graphs, draft._proposing, draft._appending)] == [3, 2, 3]


def test_blocks_that_are_observed_are_not_replayed(pair: Path) -> None:
    capture = Again()
    log = StageLog()
    next(played(engine_of(pair, capture), lambda at: log))
    assert capture.replays == 1 + 1 + 2  # the prompt's append, a step, and of a round all but the block
    assert "hidden" in log.take()


@pytest.mark.usefixtures("products_row_by_row")
def test_requests_that_join_and_leave_get_the_tokens_they_get_without_graphs(random_pair2: Path) -> None:
    capture = Again()
    answers = []
    for engine in (engine_of(random_pair2, None), engine_of(random_pair2, capture)):
        requests = [
            engine.request([5, 9, 2, 7][: at + 1], 2 + 2 * at, temperature=0.7 * (at % 2), seed=at, stop_ids=[])
            for at in range(3)
        ]
        answers.append([each.tokens for each in engine.generate_batch(requests)])
    assert answers[0] == answers[1]
    assert capture.replays > 3
