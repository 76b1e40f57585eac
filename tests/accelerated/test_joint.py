"""Batches that cross the seams whole: a target and a draft that give them, and rows that are taken later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from dflash_accelerated import Engine, TensorError
from dflash_accelerated.chain import ChainOrchestrator
from dflash_accelerated.joint import Contexts, Proposals, Segments, Steps
from dflash_accelerated.ops.rows import RowRange, gathered
from dflash_accelerated.protocols import Block, ContextRows, LogitRows, Segment, Vocabulary
from dflash_vectors.planted import Planted
from torch import Tensor

from tests.accelerated.test_protocols import WORDS, ZLAB, Tape, ToyDraft, ToyTarget, request, spoken, together


class JointTarget(ToyTarget):
    """Reads the ids of a whole batch, and gives all rows at once, with the best ids where somebody will ask."""

    def forward(self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows) -> Steps:  # type: ignore[override]
        given = cast(Segments, segments)
        steps = super().forward(segments, taps, logits)
        rows = [step.logits for step in steps if step.logits is not None]
        scores = torch.cat(rows) if rows else None
        chosen = scores.argmax(dim=1).tolist() if given.choosing and scores is not None else None
        return Steps(given.counts, scores, torch.cat([step.features for step in steps]), chosen)


class JointDraft(ToyDraft):
    """Takes ranges of rows, and gives tokens that are on the host."""

    def append(self, rows: Sequence[ContextRows]) -> None:
        given = cast(Contexts, rows)
        for state, features in zip(given.states, given.features, strict=True):
            cast(Tape, state).rows.extend(features.taken[:, 0].tolist())

    def propose(self, blocks: Sequence[Block], vocabulary: Vocabulary) -> Proposals:  # type: ignore[override]
        made = super().propose(blocks, vocabulary)
        return Proposals.certain([each.tokens.tolist() for each in made], torch.device("cpu"))


@pytest.mark.parametrize("wrong", range(6))
@pytest.mark.parametrize(
    ("target", "draft"), [(JointTarget, JointDraft), (JointTarget, ToyDraft), (ToyTarget, JointDraft)]
)
def test_whole_batches_and_lists_of_items_give_the_same_tokens(
    target: type[ToyTarget], draft: type[ToyDraft], wrong: int
) -> None:
    engine = Engine(target(), draft(wrong), ZLAB, draft_tokens=5, max_context=100)
    asked = [request([4, 9, 2], 31), request([1], 17), request([7, 7, 20, 3], 24)]
    assert together(engine, asked) == [tuple(spoken(list(each.prompt), each.max_new_tokens)) for each in asked]
    assert list(engine.decode_plain([4, 9, 2], 31).tokens) == spoken([4, 9, 2], 31)


@pytest.mark.parametrize("after", [0, 1], ids=["prompt", "round"])
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda made: Steps([], made.logits, made.features), "target Broken gave 0 steps, expected 1$"),
        (lambda made: Steps(made.counts, None, made.features), r"gave logits NoneType, expected \d rows"),
        (lambda made: Steps(made.counts, made.logits[1:], made.features), r"gave logits \[\d, 23\], expected \d rows"),
        (lambda made: Steps(made.counts, made.logits[:, 1:], made.features), r"gave logits \[\d, 22\], expected"),
        (lambda made: Steps(made.counts, made.logits, made.features[1:]), r"gave features \[\d, 1\], expected \d rows"),
        (
            lambda made: Steps([each + 1 for each in made.counts], made.logits, made.features),
            r"target Broken gave steps of \[\d\] rows, expected \[\d\]$",
        ),
    ],
)
def test_a_whole_batch_with_less_than_was_asked_is_named(
    broken: Callable[[Any], Steps], message: str, after: int
) -> None:
    class Broken(JointTarget):
        calls = 0

        def forward(self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows) -> Steps:  # type: ignore[override]
            self.calls += 1
            steps = super().forward(segments, taps, logits)
            return broken(steps) if self.calls > after else steps

    with pytest.raises(TensorError, match=message):
        Engine(Broken(), JointDraft(9), ZLAB, draft_tokens=5, max_context=100).generate([4, 9, 2], 31)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda chosen: chosen[1:], r"target Broken gave 5 chosen ids, \d+ to \d+, expected 6, -1 to 22$"),
        (lambda chosen: [*chosen[1:], WORDS], r"target Broken gave 6 chosen ids, \d+ to 23, expected 6, -1 to 22$"),
        (lambda chosen: [*chosen[1:], 4.0], "target Broken gave chosen ids list of float and int, expected a list of"),
        (lambda chosen: [*chosen[1:], True], "target Broken gave chosen ids list of bool and int, expected a list of"),
        (lambda chosen: torch.tensor(chosen), "target Broken gave chosen ids Tensor, expected a list of int$"),
        (lambda chosen: np.array(chosen), "target Broken gave chosen ids ndarray, expected a list of int$"),
        (
            lambda chosen: tuple(np.array(chosen)),
            "target Broken gave chosen ids tuple of int64, expected a list of int$",
        ),
    ],
)
@pytest.mark.parametrize("counts", [list, tuple])
def test_chosen_ids_that_are_none_of_the_rows_are_named(
    broken: Callable[[Any], list[int]], message: str, counts: Callable[[list[int]], list[int]]
) -> None:
    class Broken(JointTarget):
        def forward(  # type: ignore[override]
            self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows
        ) -> Steps:
            made = super().forward(segments, taps, logits)
            if made.chosen is None:
                return made
            return Steps(counts(made.counts), made.logits, made.features, broken(made.chosen))

    with pytest.raises(TensorError, match=message):
        Engine(Broken(), JointDraft(9), ZLAB, draft_tokens=5, max_context=100).generate([4, 9, 2], 31)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("row", [0, 2, 5])
def test_a_verified_row_that_decides_nothing_is_named_and_no_token(row: int, value: float) -> None:
    """All five proposals are right, so each row is read; -1 is what stands for its best id."""

    class Spoilt(JointTarget):
        def forward(  # type: ignore[override]
            self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows
        ) -> Steps:
            made = super().forward(segments, taps, logits)
            if made.chosen is not None and made.logits is not None:
                made.logits[row], made.chosen[row] = value, -1
            return made

    engine = Engine(Spoilt(), JointDraft(9), ZLAB, draft_tokens=5, max_context=100)
    ticket = engine.submit(engine.request([4, 9, 2], 31))
    rounds = [made[ticket] for made in iter(engine.step, {})]
    assert [token for each in rounds for token in each.tokens] == spoken([4, 9, 2], 1)
    with pytest.raises(TensorError, match=f"target logits at position {3 + row}: "):
        raise cast(Exception, rounds[-1].error)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda tokens: [], "draft Broken gave 0 proposals, expected 1$"),
        (lambda tokens: [tokens[0][:3]], r"proposed tokens torch.int64 \[3\], .* N at least 5$"),
        (lambda tokens: [[WORDS, *tokens[0][1:]]], r"draft Broken proposed the id 23, expected 0 to 22"),
        (lambda tokens: [[2.0, *tokens[0][1:]]], "draft Broken proposed ids of float and int, expected int$"),
        (lambda tokens: [np.array(tokens[0])], "draft Broken proposed ids of int64, expected int$"),
    ],
)
def test_whole_proposals_that_were_not_asked_are_named(
    broken: Callable[[list[list[int]]], list[list[int]]], message: str
) -> None:
    class Broken(JointDraft):
        def propose(self, blocks: Sequence[Block], vocabulary: Vocabulary) -> Proposals:  # type: ignore[override]
            return Proposals.certain(broken(super().propose(blocks, vocabulary).tokens), torch.device("cpu"))

    with pytest.raises(TensorError, match=message):
        Engine(JointTarget(), Broken(9), ZLAB, draft_tokens=5, max_context=100).generate([4, 9, 2], 31)


def test_items_are_made_when_somebody_looks_and_share_their_rows() -> None:
    logits, features = torch.randn(6, 23), torch.randn(6, 3)
    steps = Steps([1, 5], logits, features, [4] * 6)
    assert list(steps.chosen or ()) == [4] * 6
    assert [tuple(step[0].shape) for step in steps] == [(1, 23), (5, 23)]  # type: ignore[union-attr]
    steps[1].logits[2, 7] = 4.0
    assert logits[3, 7] == 4.0
    assert steps.chosen is None
    assert [step.logits is not None and len(step.logits) for step in Steps([1, 5], logits[:2], features)] == [1, 1]
    assert [step.logits for step in Steps([1, 5], None, features)] == [None, None]
    assert torch.equal(steps.seen[1].features[1:3].taken, features[2:4])
    assert len(steps.seen[1].logits[4:2]) == 0


def test_ranges_of_other_tensors_do_not_follow_each_other() -> None:
    """Though their places do: rows 0 to 2 of one, and from row 3 on of the other."""
    one, other = torch.randn(9, 4), torch.randn(9, 4)
    assert torch.equal(gathered([RowRange(one, 0, 3), RowRange(other, 3, 2)]), torch.cat((one[:3], other[3:5])))


def test_ranges_that_follow_each_other_are_not_copied() -> None:
    rows = torch.randn(9, 4)
    following = [RowRange(rows, 2, 3), RowRange(rows, 5, 1), RowRange(rows, 6, 2)]
    assert gathered(following).data_ptr() == rows[2:].data_ptr()
    assert torch.equal(gathered(following), rows[2:8])
    assert torch.equal(gathered(following[::2]), torch.cat((rows[2:5], rows[6:8])))
    assert gathered([RowRange.of(rows)]) is rows


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_what_was_kept_of_a_sequence_outlives_its_rounds(
    planted_pair: Callable[[str], tuple[Path, Planted]], load: Callable[..., Engine], kernels: str
) -> None:
    """Tails and pending features are rows of batches: no later batch may be written over them."""
    folder, plan = planted_pair("standard")
    engine = load(folder, draft_tokens=6, kernels=kernels)
    chain = ChainOrchestrator(engine.target, engine.draft, engine.numerics)
    running = [chain.start(request(prompt, 60))[0] for prompt in plan.prompts[:3]]
    held: list[tuple[Tensor, Tensor]] = []
    for _ in range(4):
        chain.round(running)
        for each in running:
            for rows in (each.tail, each.pending):
                assert rows is not None
                held.append((rows, rows.clone()))
    assert all(torch.equal(now, before) for now, before in held)
    for each in running:
        chain.close(each)


def test_what_an_adapter_writes_into_the_rows_of_another_is_read(
    random_pair: Path, load: Callable[..., Engine]
) -> None:
    """One that forbids an id passes on steps that say which ids were best before."""
    engine = load(random_pair)
    forbidden = engine.decode_plain([4, 9, 2], 1, stop_ids=[]).tokens[0]

    class Forbidding:
        def __init__(self, within: Any) -> None:
            self._within = within

        def __getattr__(self, name: str) -> Any:
            return getattr(self._within, name)

        def forward(self, *given: Any) -> Any:
            steps = self._within.forward(*given)
            for step in steps:
                if step.logits is not None:
                    step.logits[:, forbidden] = -1e9
            return steps

    other = Engine(cast(Any, Forbidding(engine.target)), engine.draft, engine.numerics, draft_tokens=5, max_context=100)
    assert forbidden not in other.generate([4, 9, 2], 40, stop_ids=[]).tokens
