"""Random scripts of requests that join, leave, swap rows, are kept, forked, restored and cancelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
import torch
from dflash_accelerated import Request, Round, chain, rounds
from dflash_accelerated.chain import ChainOrchestrator
from dflash_accelerated.images import Images
from dflash_accelerated.joint import Seen
from dflash_accelerated.lanes import Snapshot
from dflash_accelerated.memory import KvCache, KvPool
from dflash_accelerated.models.dflash import DFlashDraft
from dflash_accelerated.ops.attention import Spans
from dflash_accelerated.ops.rows import RowRange
from dflash_accelerated.requests import Running
from dflash_accelerated.rings import RingState
from dflash_spec.errors import DFlashError
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.accelerated.lockstep import LIMIT, RING, Lockstep, Pair

SCRIPTS, STEPS = 25, 70
LEAST = {"step": 2000, "ring wrap": 50, "partial accept": 50, "restore after reject": 50, "row swap": 50}
Pairs = Callable[[str], Pair]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products so small mostly wait for a pool of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """A planted pair of either backend."""
    return cache(lambda backend: Pair(tmp_path_factory.mktemp(backend), backend))


def run(pair: Pair, scripts: int, steps: int) -> Counter[str]:
    """Play random scripts, the same ones each time: how often what happened."""
    seen: Counter[str] = Counter()
    machine: Any = type("Scripted", (Lockstep,), {"pair": pair, "seen": seen})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=scripts, stateful_step_count=steps, derandomize=True, deadline=None, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck), print_blob=False,
        ),
    )  # fmt: skip
    return seen


def test_engine_reference_and_a_stateless_recomputation_agree_after_every_step(
    pair_of: Pairs, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = run(pair_of("dflash2"), SCRIPTS, STEPS)
    with capsys.disabled():
        print(f"\n{dict(seen)}")
    assert {name: seen[name] for name, least in LEAST.items() if seen[name] < least} == {}


def test_so_they_do_where_every_context_row_is_kept(pair_of: Pairs) -> None:
    """A DFlash draft has caches, of which a local layer reads its window alone."""
    assert run(pair_of("dflash"), 5, STEPS)["partial accept"] >= 50


# Faults of an engine, each of which must be found by the scripts.


def rejected_rows_stay_visible(patch: pytest.MonkeyPatch) -> None:
    """A cut leaves the first rejected row."""
    true = KvCache.rollback
    patch.setattr(KvCache, "rollback", lambda self, length: true(self, min(self.length, length + 1)))


def a_lane_keeps_what_was_pending(patch: pytest.MonkeyPatch) -> None:
    """The next request in a lane finds the feature rows that the last one left."""
    left: list[torch.Tensor] = []
    close, open_ = ChainOrchestrator.close, ChainOrchestrator.open

    def closed(self: ChainOrchestrator, running: Running) -> None:
        left.extend([running.pending] if running.pending is not None else [])
        close(self, running)

    def opened(self: ChainOrchestrator, request: Request) -> Running:
        running = open_(self, request)
        running.pending = left.pop() if left else None
        return running

    patch.setattr(ChainOrchestrator, "close", closed)
    patch.setattr(ChainOrchestrator, "open", opened)


def a_lane_keeps_its_rows(patch: pytest.MonkeyPatch) -> None:
    """A lane's cache starts with the length that the last request left."""
    lengths: dict[int, int] = {}
    open_, close = KvPool.open, KvCache.close

    def opened(self: KvPool, capacity: int) -> KvCache:
        cache = open_(self, capacity)
        cache.length = lengths.get(cache.keys.data_ptr(), 0)
        return cache

    def closed(self: KvCache) -> None:
        lengths[self.keys.data_ptr()] = self.length
        close(self)

    patch.setattr(KvPool, "open", opened)
    patch.setattr(KvCache, "close", closed)


def counts_follow_rows(patch: pytest.MonkeyPatch) -> None:
    """As many rows become context as the row that stood here in the last round kept."""
    true = ChainOrchestrator.round
    before: list[list[int]] = []

    def played(self: ChainOrchestrator, running: Sequence[Running]) -> list[Round]:
        made = true(self, running)
        order = [id(each) for each in running]
        if before and sorted(before[-1]) == sorted(order) and before[-1] != order:
            pending = [cast(torch.Tensor, each.pending) for each in running]
            counts = [len(pending[order.index(each)]) for each in before[-1]]
            for each, rows, count in zip(running, pending, counts, strict=True):
                each.pending = rows[:count]
        before.append(order)
        return made

    patch.setattr(ChainOrchestrator, "round", played)


def a_restored_prompt_is_read_from_its_start(patch: pytest.MonkeyPatch) -> None:
    """The whole prompt is processed on top of what was restored."""
    patch.setattr(chain, "left_to_feed", lambda prompt, tokens, *covered: 0)


def positions_restart_after_a_fork(patch: pytest.MonkeyPatch) -> None:
    """A fork's ring is laid out as if its oldest row stood at position 0."""
    true = RingState.load

    def loaded(self: RingState, held: Snapshot) -> None:
        oldest = max(0, held.length - RING) % RING
        turned = tuple(part.roll(-oldest, 2) for part in held.parts)
        true(self, Snapshot(held.length, turned))

    patch.setattr(RingState, "load", loaded)


def slots_of_round_one_are_used_again(patch: pytest.MonkeyPatch) -> None:
    """The slots of so many rows are computed once, as in a captured graph."""
    captured: dict[tuple[int, ...], Spans] = {}
    true = DFlashDraft._append

    def append(self: DFlashDraft, spans: Spans, features: Sequence[RowRange]) -> None:
        true(self, captured.setdefault(spans.counts, spans), features)

    patch.setattr(DFlashDraft, "_append", append)


def a_prefix_comes_back_without_its_context(patch: pytest.MonkeyPatch) -> None:
    """The draft's frontier is restored, and none of its rows."""

    def loaded(self: RingState, held: Snapshot) -> None:
        self.length = held.length

    patch.setattr(RingState, "load", loaded)


def a_fork_shares_its_cache(patch: pytest.MonkeyPatch) -> None:
    """A fork goes on in its source's buffers."""
    patch.setattr(Snapshot, "copied", lambda self, device=None: self)

    def loaded(self: KvCache, held: Snapshot) -> None:
        self.lane = held.parts[0].storage_offset() // held.parts[0]._base.stride(0)  # type: ignore[union-attr]
        self.length = held.length

    patch.setattr(KvCache, "load", loaded)


def an_image_is_a_view(patch: pytest.MonkeyPatch) -> None:
    """What a request writes after its checkpoint shows in the image."""
    patch.setattr(Snapshot, "copied", lambda self, device=None: self)


def a_replica_loses_its_last_row(patch: pytest.MonkeyPatch) -> None:
    """The last row of a copy is not copied."""
    true = Snapshot.copied

    def copied(self: Snapshot, device: torch.device | None = None) -> Snapshot:
        made = true(self, device)
        for part in made.parts:
            part.select(2, -1).zero_()
        return made

    patch.setattr(Snapshot, "copied", copied)


def any_generation_is_taken(patch: pytest.MonkeyPatch) -> None:
    """A stale name gives what its slot holds now."""
    true = Images.get
    patch.setattr(Images, "get", lambda self, name: self.held[name.slot] or true(self, name))


def one_row_too_many_becomes_context(patch: pytest.MonkeyPatch) -> None:
    """Of a round that rejects, the first rejected row becomes context with the others."""
    patch.setattr(Seen, "captured", lambda self, rows: self.features[: rows + 1])


def the_anchor_is_processed_twice(patch: pytest.MonkeyPatch) -> None:
    """A commit is applied twice: the frontier moves on over the tokens that it has passed."""
    true = rounds.commit

    def committed(anchor: int, licensed: Sequence[int], kept: int, frontier: int) -> rounds.Commit:
        done = true(anchor, licensed, kept, frontier)
        return done._replace(frontier=frontier + 2 * kept) if kept > 4 else done

    patch.setattr(rounds, "commit", committed)


def the_tail_is_that_of_the_last_column(patch: pytest.MonkeyPatch) -> None:
    """A text goes on from the last row that was verified, kept or not."""
    patch.setattr(Seen, "after", lambda self, column: self.logits[-1:])


def an_ended_request_keeps_rows_pending(patch: pytest.MonkeyPatch) -> None:
    """An image is made without catching up, and says that its context stands where its text does."""

    def checked(self: ChainOrchestrator, running: Running) -> None:
        if running.draft is not None and running.pending is not None:
            cast(RingState, running.draft).length = running.frontier
            running.pending = None

    patch.setattr(ChainOrchestrator, "check", checked)


FAULTS = (
    rejected_rows_stay_visible, a_lane_keeps_what_was_pending, a_lane_keeps_its_rows, counts_follow_rows,
    a_restored_prompt_is_read_from_its_start, positions_restart_after_a_fork, slots_of_round_one_are_used_again,
    a_prefix_comes_back_without_its_context, a_fork_shares_its_cache, an_image_is_a_view, a_replica_loses_its_last_row,
    any_generation_is_taken, one_row_too_many_becomes_context, the_anchor_is_processed_twice,
    the_tail_is_that_of_the_last_column, an_ended_request_keeps_rows_pending,
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_wrong_engine_is_found(
    pair_of: Pairs, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Whatever shows first: another value, a refusal, or a state that no longer fits its buffers."""
    fault(monkeypatch)
    with pytest.raises((AssertionError, DFlashError, RuntimeError, IndexError, pytest.fail.Exception)):
        run(pair_of("dflash2"), SCRIPTS, STEPS)


def test_rows_of_other_tokens_and_other_positions_lie_far_apart(pair_of: Pairs) -> None:
    """Else a row in a wrong place, or of a wrong token, could pass for the right one."""
    pair = pair_of("dflash2")
    one, other = (pair.recomputed(tuple(walk[:40])) for walk in pair.walks)
    for mine, theirs in zip((one.target[0], one.draft[0]), (other.target[0], other.draft[0]), strict=True):
        apart = np.abs(mine[:, None] - mine[None]).max(axis=(2, 3)) + np.eye(len(mine)) * 9
        assert apart.min() > 100 * LIMIT * np.abs(mine).max(), "two positions"
        assert np.abs(mine - theirs).max(axis=(1, 2)).min() > 100 * LIMIT * np.abs(mine).max(), "two texts"
