"""The attention kernel against a softmax over each row's keys, gathered one by one."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import triton as kernel
from dflash_accelerated.ops.attention.spans import Spans, Store
from torch import Tensor


class Case(NamedTuple):
    """Own rows q, k, v and the stored rows of each request by position, which `store` holds the last of."""

    q: Tensor
    k: Tensor
    v: Tensor
    store: Store
    spans: Spans
    history: list[tuple[Tensor, Tensor]]


LAYER, LANES = 1, 4


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape)


def case(numerics: Numerics, starts: tuple[int, ...], counts: tuple[int, ...], group: int, dim: int, slots: int,
         keep: bool = False) -> Case:  # fmt: skip
    """Two KV heads; NaN in every slot that holds none of a request's last positions, and around the own rows."""
    torch.manual_seed(sum(starts) + dim)
    shape, rows, kv_heads = (LANES, 3, 2, slots + 3, dim), sum(counts), 2
    keys, values = torch.full(shape, torch.nan).to(numerics.act), torch.full(shape, torch.nan).to(numerics.value)
    lanes, history = tuple(3 - at for at in range(len(starts))), []
    for lane, start in zip(lanes, starts, strict=True):
        key, value = drawn(start, kv_heads, dim).to(numerics.act), drawn(start, kv_heads, dim).to(numerics.value)
        for at in range(max(0, start - slots), start):
            keys[lane, LAYER, :, at % slots], values[lane, LAYER, :, at % slots] = key[at], value[at]
        history.append((key, value))
    joined = drawn(rows, kv_heads * (group + 1), dim).to(numerics.act)
    joined = torch.cat((joined, torch.full((rows, 1, dim), torch.nan, dtype=numerics.act)), 1)
    q, k = joined[:, : kv_heads * group], joined[:, kv_heads * group : kv_heads * (group + 1)]
    v = drawn(rows, kv_heads, dim).to(numerics.act)
    own = v.to(numerics.value) if keep else v
    return Case(q, k, own, Store(keys, values, slots), Spans(lanes, starts, counts, torch.device("cpu")), history)


def expected(at: Case, window: int, causal: bool) -> Tensor:
    """FP32 [R, QH · D]: one softmax for each row and head."""
    group, made = at.q.shape[1] // at.k.shape[1], []
    for (key, value), (_, start, count, first) in zip(at.history, at.spans, strict=True):
        own = slice(first, first + count)
        keys, values = torch.cat((key.float(), at.k[own].float())), torch.cat((value.float(), at.v[own].float()))
        for row in range(count):
            position = start + row
            places = [
                p
                for p in range(max(0, start - at.store.slots), start + count)
                if (not causal or p <= position) and (window == 0 or abs(position - p) < window)
            ]
            heads = []
            for head in range(at.q.shape[1]):
                scores = keys[places, head // group] @ at.q[first + row, head].float() * at.q.shape[2] ** -0.5
                heads.append(torch.softmax(scores, 0) @ values[places, head // group])
            made.append(torch.cat(heads))
    return torch.stack(made)


def check(at: Case, numerics: Numerics, window: int, causal: bool, keep: bool = False) -> None:
    """Weighted means of values of size 4 at most: FP32 sums of some dozen terms, then one rounding to ACT."""
    got = kernel.attend(at.q, at.k, at.v, at.store, LAYER, at.spans, window, causal, keep, numerics)
    assert got.dtype == numerics.act
    step = 2.0**-8 if numerics.act == torch.bfloat16 else 0.0
    torch.testing.assert_close(got.float(), expected(at, window, causal), rtol=step, atol=2.0**-18)


def tiles(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int) -> None:
    monkeypatch.setattr(kernel, "TILES", dict.fromkeys((torch.bfloat16, torch.float32), (rows, columns)))


SEEN = [(3, 10, 0), (3, 10, 1), (3, 10, 7), (3, 10, 100), (1, 10, 7), (4, 64, 7)]
"""Query heads to a KV head, channels, window: all windows with one group, all groups with one window."""


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize(("group", "dim", "window"), SEEN)
def test_rows_see_what_they_may(
    numerics: Numerics, monkeypatch: pytest.MonkeyPatch, group: int, dim: int, window: int, causal: bool
):
    """Requests that begin at 0, inside the store, and past it, so that it has wrapped; one has no rows."""
    tiles(monkeypatch, 64, 16)
    at = case(numerics, (0, 19, 90, 5), (3, 6, 2, 0), group, dim, slots=37)
    check(at, numerics, window, causal)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (32, 16)])
def test_many_rows_in_several_tiles(numerics: Numerics, monkeypatch: pytest.MonkeyPatch, rows: int, columns: int):
    tiles(monkeypatch, rows, columns)
    at = case(numerics, (33, 4), (45, 2), 3, 10, slots=100)
    for window, causal in ((0, True), (9, True), (9, False), (0, False)):
        check(at, numerics, window, causal)


@pytest.mark.parametrize("window", [0, 23])
def test_a_context_is_shared_among_programs(numerics: Numerics, monkeypatch: pytest.MonkeyPatch, window: int):
    """As a GPU shares it, in eight parts or two, of which some are empty."""
    monkeypatch.setattr(kernel, "SHARE", 8)
    tiles(monkeypatch, 64, 16)
    at = case(numerics, (95, 3), (4, 2), 3, 10, slots=70)
    assert kernel._splits(4, min(70, window or 70)) == (2 if window else 8)
    check(at, numerics, window, True)


def test_kept_rows_lie_at_their_positions_and_nothing_else_changes(numerics: Numerics, monkeypatch: pytest.MonkeyPatch):
    """Two tiles write three strips of rows between them."""
    tiles(monkeypatch, 64, 16)
    at = case(numerics, (11, 0), (37, 5), 3, 10, slots=60, keep=True)
    before = [part.clone() for part in at.store[:2]]
    check(at, numerics, 0, True, keep=True)
    for lane, start, count, first in at.spans:
        for held, own in zip(before, (at.k, at.v), strict=True):
            held[lane, LAYER, :, start : start + count] = own[first : first + count].transpose(0, 1)
    for held, now in zip(before, at.store[:2], strict=True):
        assert torch.equal(now.view(torch.uint8), held.view(torch.uint8))  # bit for bit: dead slots hold NaN


def test_a_draft_leaves_the_store_as_it_is(numerics: Numerics):
    at = case(numerics, (11,), (5,), 1, 10, slots=20)
    before = [part.clone() for part in at.store[:2]]
    check(at, numerics, 0, False)
    for held, now in zip(before, at.store[:2], strict=True):
        assert torch.equal(now.view(torch.uint8), held.view(torch.uint8))  # bit for bit: dead slots hold NaN


def test_a_hidden_row_weighs_nothing_however_large(numerics: Numerics):
    """Stored rows that the window hides from some rows of a tile, and own rows that causality does."""
    at, plain = (case(numerics, (20,), (4,), 3, 10, slots=30) for _ in range(2))
    at.store.keys[3, LAYER, :, :17], at.store.values[3, LAYER, :, :17] = 1e18, 6e4
    at.k[3], at.v[3] = 1e18, 6e4
    got, wanted = (
        kernel.attend(one.q, one.k, one.v, one.store, LAYER, one.spans, 4, True, False, numerics) for one in (at, plain)
    )
    assert torch.equal(got[:3], wanted[:3])


def test_the_table_counts_not_the_host(numerics: Numerics):
    """A captured launch is replayed with another table: lanes, starts and counts are read from it."""
    at = case(numerics, (19, 8), (2, 5), 3, 10, slots=37)
    host = Spans((0, 0), (0, 0), (6, 6), torch.device("cpu"))
    host.table.copy_(at.spans.table)
    got = kernel.attend(at.q, at.k, at.v, at.store, LAYER, host, 7, True, False, numerics)
    assert torch.equal(got, kernel.attend(at.q, at.k, at.v, at.store, LAYER, at.spans, 7, True, False, numerics))
