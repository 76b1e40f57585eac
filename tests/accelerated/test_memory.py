"""Buffers: rows past the live length are never read, and masked rows have no weight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from dflash_accelerated import Engine, Numerics
from dflash_accelerated.memory import KvCache, KvPool
from dflash_accelerated.ops import attention
from dflash_accelerated.protocols import Block, ContextRows, LendingVocabulary, Segment
from dflash_accelerated.requests import StageLog
from dflash_spec.errors import RequestError
from dflash_spec.registry import load_profile
from dflash_vectors.planted import Planted

CPU = torch.device("cpu")


def poison(cache: KvCache) -> None:
    cache.keys[:, :, cache.length :] = torch.nan
    cache.values[:, :, cache.length :] = torch.nan


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
@pytest.mark.parametrize("preset", ["standard", "tied"])
def test_nan_past_the_live_length_changes_nothing(
    planted_pair: Callable[[str], tuple[Path, Planted]],
    load: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
    preset: str,
    profile: str,
) -> None:
    folder, plan = planted_pair(preset)
    dtype = torch.bfloat16 if profile == "ninfer" else None
    engine = load(folder, profile=profile, draft_tokens=7, dtype=dtype)
    clean = engine.generate(plan.prompts[1], 41, prefill_chunk=10)
    poisoned = []

    def after(name: str) -> None:
        original = getattr(KvCache, name)

        def wrapped(cache: KvCache, *arguments: Any) -> None:
            original(cache, *arguments)
            poison(cache)
            poisoned.append(name)

        monkeypatch.setattr(KvCache, name, wrapped)

    for name in ("__init__", "advance", "rollback"):
        after(name)
    assert engine.generate(plan.prompts[1], 41, prefill_chunk=10) == clean
    assert {"__init__", "advance", "rollback"} == set(poisoned)


def test_a_rollback_is_a_length_and_what_was_cut_can_be_written_again() -> None:
    numerics = Numerics.of(load_profile("zlab"))
    cache = KvPool(1, 2, 4, numerics, CPU).open(9)
    rows = torch.arange(40, dtype=torch.float32).view(5, 2, 4)
    cache.write(0, 0, rows, -rows)
    cache.advance(5)
    cache.rollback(2)
    cache.write(0, 2, rows[:1] + 100, rows[:1])
    cache.advance(1)
    key, value = cache.context(0, 0).rows
    assert torch.equal(key.transpose(0, 1), torch.cat((rows[:2], rows[:1] + 100)))
    assert torch.equal(value.transpose(0, 1), torch.cat((-rows[:2], rows[:1])))


def test_rows_that_do_not_fit_and_rollbacks_that_lengthen_are_named() -> None:
    cache = KvPool(1, 1, 2, Numerics.of(load_profile("zlab")), CPU).open(4)
    cache.advance(3)
    with pytest.raises(RequestError, match="rows 3 to 5 of a sequence, expected at most 4 rows"):
        cache.check_room(3)
    with pytest.raises(RequestError, match="rollback to 4 rows, expected 0 to 3"):
        cache.rollback(4)


def test_a_closed_cache_leaves_its_lane_to_the_next_one() -> None:
    pool = KvPool(2, 1, 2, Numerics.of(load_profile("ninfer")), CPU)
    cache = pool.open(300)
    assert cache.values.dtype == torch.float16
    where = cache.keys.data_ptr()
    cache.close()
    assert (cache.capacity, cache.length) == (0, 0)
    assert pool.open(300).keys.data_ptr() == where


def test_a_pool_that_is_not_reserved_grows_and_keeps_what_it_holds() -> None:
    pool = KvPool(2, 1, 2, Numerics.of(load_profile("zlab")), CPU, tail=3)
    first = pool.open(4)
    rows = torch.arange(8, dtype=torch.float32).view(4, 1, 2)
    first.write(1, 0, rows, -rows)
    first.advance(4)
    second = pool.open(9)
    assert (first.lane, second.lane, pool.capacity) == (0, 1, 9)
    assert torch.equal(first.context(1, 0).rows.key[0], rows[:, 0])
    assert pool.store.keys.shape == (2, 2, 1, 12, 2)


def test_a_pool_that_is_reserved_never_moves_and_says_what_it_lacks() -> None:
    pool = KvPool(1, 1, 2, Numerics.of(load_profile("zlab")), CPU)
    pool.reserve(2, 5)
    where, held = pool.store.keys.data_ptr(), [pool.open(5), pool.open(3)]
    with pytest.raises(RequestError, match="all 2 lanes are taken, expected a free one"):
        pool.open(1)
    held.pop().close()
    with pytest.raises(RequestError, match="a sequence of 6 rows, expected at most 5"):
        pool.open(6)
    with pytest.raises(RequestError, match="1 sequences are open, expected none to reserve for"):
        pool.reserve(4, 5)
    assert pool.store.keys.data_ptr() == where


def test_a_pool_that_two_engines_reserve_keeps_what_each_was_promised() -> None:
    pool = KvPool(1, 1, 2, Numerics.of(load_profile("zlab")), CPU)
    pool.reserve(2, 5)
    planned = pool.planned_bytes(1, 9)
    pool.reserve(1, 9)
    held = [pool.open(9), pool.open(9)]
    assert [each.lane for each in held] == [0, 1]
    assert planned == pool.store.keys.nbytes + pool.store.values.nbytes == pool.planned_bytes(1, 1)


def test_a_stream_gives_its_buffers_back_when_it_ends_or_is_closed(
    random_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[KvCache] = []
    monkeypatch.setattr(KvCache, "close", lambda cache: closed.append(cache))
    random_engine.generate([1, 2, 3], 4)
    assert len(closed) == 2
    stream = random_engine.stream([1, 2, 3], 40)
    next(stream)
    assert len(closed) == 2
    stream.close()
    assert len(set(closed)) == 4


def test_hidden_rows_of_huge_values_have_no_weight() -> None:
    numerics = Numerics.of(load_profile("zlab"))
    generator = torch.Generator().manual_seed(5)
    queries, keys, values = (torch.randn(shape, generator=generator) for shape in ((3, 6, 4), (2, 11, 4), (2, 11, 4)))
    positions = torch.arange(11)
    visible = attention.visibility(positions[8:], positions, window=4, causal=True)
    clean = attention.attend_rows(queries, [attention.Rows(keys, values)], visible, numerics)
    huge = torch.finfo(torch.float32).max
    keys[:, :5], values[:, :5] = huge, -huge
    assert torch.equal(attention.attend_rows(queries, [attention.Rows(keys, values)], visible, numerics), clean)


@pytest.mark.parametrize(("distance", "seen"), [(4, True), (5, False)])
def test_a_draft_reads_its_whole_window_of_5_and_no_more(random_engine: Engine, distance: int, seen: bool) -> None:
    draft, generator = random_engine.draft, torch.Generator().manual_seed(8)
    features = torch.randn(11, 72, generator=generator)

    def first_layer(change: float) -> torch.Tensor:
        state, log = draft.open(11), StageLog()
        draft.append([ContextRows(state, features)])
        cast(KvCache, state).keys[0, :, 11 - distance] += change
        draft.propose([Block(state, 3, 4, 4, log.record)], cast(LendingVocabulary, random_engine.target.vocabulary))
        return log.take()["layer.0"]

    moved = (first_layer(0.0) != first_layer(1.0)).any(dim=1).tolist()
    assert moved == [seen, False, False, False, False]  # later rows are further from it


@pytest.mark.parametrize(("distance", "seen"), [(6, True), (7, False)])
def test_a_target_reads_its_whole_window_of_7_and_no_more(random_engine: Engine, distance: int, seen: bool) -> None:
    target, prompt = random_engine.target, torch.arange(11)

    def second_layer(change: float) -> torch.Tensor:
        state = target.open(13)
        target.forward([Segment(state, prompt)], (), "none")
        cast(KvCache, state).keys[1, :, 11 - distance] += change
        (step,) = target.forward([Segment(state, torch.tensor([20, 21]))], (1,), "none")
        return step.features

    assert (second_layer(0.0) != second_layer(1.0)).any(dim=1).tolist() == [seen, False]


def test_parts_and_strips_of_an_attention_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    numerics = Numerics.of(load_profile("zlab"))
    generator = torch.Generator().manual_seed(6)
    queries, keys, values = (torch.randn(shape, generator=generator) for shape in ((7, 6, 4), (2, 13, 4), (2, 13, 4)))
    visible = attention.visibility(torch.arange(6, 13), torch.arange(13), window=0, causal=True)
    whole = attention.attend_rows(queries, [attention.Rows(keys, values)], visible, numerics)
    parts = [attention.Rows(keys[:, :9], values[:, :9]), attention.Rows(keys[:, 9:], values[:, 9:])]
    monkeypatch.setattr("dflash_accelerated.ops.attention.torch.SCORES", 2 * 6 * 13)
    strips = attention.attend_rows(queries, parts, visible, numerics)
    # An FP32 sum of 13 products of magnitude at most 4 in another order moves by at most 13 roundings of 2^-24 each.
    assert float((strips - whole).abs().max()) <= 13 * 4 * 2.0**-24


def test_a_pool_that_cannot_grow_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = KvPool(2, 1, 8, Numerics.of(load_profile("zlab")), torch.device("cpu"))
    pool.reserve(2, 5)

    def fail(*given: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(KvPool, "_resize", fail)
        with pytest.raises(MemoryError):
            pool.reserve(8, 50)
    assert (pool.lanes.count, pool.capacity) == (2, 5)
    opened = [pool.open(5) for _ in range(2)]
    assert [each.keys.shape[0] for each in opened] == [2, 2]
    with pytest.raises(RequestError, match="all 2 lanes are taken"):
        pool.open(5)
