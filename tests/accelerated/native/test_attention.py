"""Attention in C against float64: windows, rings, several requests, and bits that depend on nothing but the row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from dflash_accelerated.native import available, empty, kernels
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention.native import attend
from dflash_accelerated.ops.attention.spans import Spans, Store
from dflash_spec.registry import load_profile
from torch import Tensor

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
CPU = torch.device("cpu")
SENSES = {
    "ninfer": Numerics.of(load_profile("ninfer"), None, "native"),
    "zlab-f32": Numerics.of(load_profile("zlab"), None, "native"),
    "zlab-bf16": Numerics.of(load_profile("zlab"), torch.bfloat16, "native"),
}
NO_TILES = "-without-tiles"
HUGE = 1e30


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Two threads, as where the engine runs; given back what was."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[*SENSES, "zlab-bf16" + NO_TILES])
def numerics(request: pytest.FixtureRequest) -> Iterator[Numerics]:
    """Each sense, BF16 with matrix tiles where the machine has them, and without."""
    kernels().use_tiles(not request.param.endswith(NO_TILES))
    yield SENSES[request.param.removesuffix(NO_TILES)]
    kernels().use_tiles(1)


def store_of(lanes: int, layers: int, kv: int, slots: int, dim: int, numerics: Numerics) -> Store:
    """Full of NaN, which must not be read."""
    shape = (lanes, layers, kv, slots + 3, dim)
    return Store(
        torch.full(shape, torch.nan, dtype=numerics.act), torch.full(shape, torch.nan, dtype=numerics.value), slots
    )


def filled(store: Store, layer: int, spans: Sequence[tuple[int, int, int]], seed: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [positions, KV, D] of each request, the live ones put into the store; NaN before them."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for lane, start, count in spans:
        shape = (start + count, store.keys.shape[2], store.keys.shape[4])
        k, v = (torch.randn(shape, generator=generator) for _ in range(2))
        k, v = k.to(store.keys.dtype), v.to(store.keys.dtype)
        for p in range(max(0, start - store.slots), start):
            store.keys[lane, layer, :, p % store.slots] = k[p]
            store.values[lane, layer, :, p % store.slots] = v[p].to(store.values.dtype)
        made.append((k, v))
    return made


def ideal(q: Tensor, k: Tensor, v: Tensor, start: int, slots: int, window: int, causal: bool) -> tuple[Tensor, Tensor]:
    """In float64, one row after another; and what each sum's magnitudes come to, for a bound."""
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    out, size = torch.zeros(rows, heads, dim, dtype=torch.float64), torch.zeros(rows, heads, dim, dtype=torch.float64)
    for row in range(rows):
        at = start + row
        seen = [
            p for p in range(max(0, start - slots), start + rows)
            if not (causal and p > at) and (not window or abs(p - at) < window)
        ]  # fmt: skip
        keys, values = (x[seen].double().repeat_interleave(group, 1) for x in (k, v))
        weights = torch.softmax(torch.einsum("hd,phd->hp", q[row].double(), keys) * dim**-0.5, 1)
        out[row], size[row] = (torch.einsum("hp,phd->hd", weights, x) for x in (values, values.abs()))
    return out.view(rows, -1), size.view(rows, -1)


def one_call(
    numerics: Numerics, spans: Sequence[tuple[int, int, int]], heads: tuple[int, int, int], slots: int, window: int,
    causal: bool, keep: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    query_heads, kv, dim = heads
    store = store_of(4, 2, kv, slots, dim, numerics)
    held = filled(store, 1, spans, 5)
    rows = sum(count for _, _, count in spans)
    q = torch.randn(rows, query_heads, dim, generator=torch.Generator().manual_seed(6)).to(numerics.act)
    k = torch.cat([k[start:] for (_, start, _), (k, _) in zip(spans, held, strict=True)])
    v = torch.cat([v[start:] for (_, start, _), (_, v) in zip(spans, held, strict=True)])
    if keep:
        v = v.to(numerics.value)
    lanes, starts, counts = zip(*spans, strict=True)
    packed = Spans(lanes, starts, counts, CPU)
    return q, k, v, store, held, attend(q, k, v, store, 1, packed, window, causal, keep, numerics)


CASES = {
    "one-row": ([(2, 257, 1)], (8, 2, 64), 512, 0, True),
    "empty-store": ([(0, 0, 7)], (6, 2, 10), 19, 0, True),
    "causal-block": ([(1, 130, 16)], (8, 2, 64), 300, 0, True),
    "draft-block": ([(1, 70, 16)], (6, 2, 10), 128, 0, False),
    "wrapped-ring": ([(3, 211, 9)], (4, 1, 36), 33, 21, False),
    "wrapped-full": ([(0, 100, 5)], (6, 2, 12), 16, 0, False),
    "wrapped-causal-window": ([(0, 100, 13)], (4, 4, 18), 16, 5, True),
    "three-requests": ([(2, 65, 3), (0, 0, 5), (3, 300, 17)], (6, 2, 20), 320, 40, True),
    "two-chunks": ([(0, 1500, 4), (1, 2047, 2)], (4, 2, 128), 2100, 0, True),
    "ring-in-pairs": ([(0, 211, 17)], (6, 2, 96), 64, 21, True),
    "odd-ring-in-pairs": ([(3, 211, 5)], (4, 1, 32), 50, 0, False),
    "two-waves-of-chunks": ([(2, 17000, 2)], (2, 2, 32), 17100, 0, True),
    "window-over-chunks": ([(1, 2040, 17)], (3, 1, 32), 2100, 1100, True),
    "late-window-over-chunks": ([(1, 2040, 17)], (2, 1, 32), 2100, 70, True),
    "own-rows-amid-sixteen": ([(0, 33, 17)], (4, 1, 32), 64, 0, True),
    "prefill-in-pairs": ([(2, 0, 3), (0, 40, 75)], (6, 2, 64), 128, 0, True),
    "prefill": ([(0, 40, 75)], (4, 1, 48), 128, 0, True),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_see_what_they_must_and_nothing_else(case: str, numerics: Numerics) -> None:
    spans, heads, slots, window, causal = CASES[case]
    q, _, _, store, held, made = one_call(numerics, spans, heads, slots, window, causal)
    torch.set_num_threads(1)  # for what it is compared with: tensors so small wait for a pool of threads
    first = 0
    for (_, start, count), (k, v) in zip(spans, held, strict=True):
        stored = torch.cat((v[:start].to(store.values.dtype).double(), v[start:].double()))
        out, size = ideal(q[first : first + count], k, stored, start, slots, window, causal)
        # A score sums D products of size ~1: its error is below D·2⁻²⁴·8, and moves weights by that share; the sum over
        # up to 2,049 keys in a chain adds as many roundings of its own; then the one to ACT. Where all is BF16, weights
        # may be rounded to it: 2⁻⁹ of each, in the sum and in what divides it.
        weights = 2.0**-8 * size if numerics.value == torch.bfloat16 else 0.0
        act = 2.0**-8 if numerics.act == torch.bfloat16 else 2.0**-24
        bound = size * (16 * heads[2] + 2 * (start + count)) * 2.0**-24 + out.abs() * act + weights
        assert bool(((made[first : first + count].double() - out).abs() <= bound).all())
        first += count


UNSPLIT = ("causal-block", "three-requests", "two-chunks", "two-waves-of-chunks", "prefill", "ring-in-pairs",
           "window-over-chunks", "late-window-over-chunks", "prefill-in-pairs")  # fmt: skip
"""Whose rows, one after another, find in the store what they found together: all causal, and no ring too small."""


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("case", UNSPLIT)
def test_a_row_does_not_depend_on_threads_or_on_other_rows(case: str, tiny: bool, numerics: Numerics) -> None:
    """Nor where values are so small that sums fall below the normal numbers, which products of pairs count as 0."""
    spans, heads, slots, window, causal = CASES[case]
    q, k, v, store, _, _ = one_call(numerics, spans, heads, slots, window, causal)
    size = torch.finfo(numerics.value).tiny if tiny else 1.0
    store.values.mul_(size)
    v = (v * size).to(numerics.value).to(v.dtype)
    lanes, starts, counts = zip(*spans, strict=True)
    packed = Spans(lanes, starts, counts, CPU)
    together = attend(q, k, v, store, 1, packed, window, causal, False, numerics)
    torch.set_num_threads(1)
    assert torch.equal(together, attend(q, k, v, store, 1, packed, window, causal, False, numerics))
    first = 0
    for lane, start, count in spans:
        for row in range(count):  # one after another, each storing itself for those after it
            at = slice(first + row, first + row + 1)
            alone = Spans([lane], [start + row], [1], CPU)
            made = attend(q[at], k[at], v[at], store, 1, alone, window, causal, True, numerics)
            assert torch.equal(made, together[at]), (start, row)
        first += count


@pytest.mark.parametrize("case", ["one-row", "prefill-in-pairs", "two-waves-of-chunks", "wrapped-causal-window"])
def test_work_stays_within_the_bytes_that_it_asks_for(
    case: str, numerics: Numerics, monkeypatch: pytest.MonkeyPatch
) -> None:
    beyond = []

    def guarded(shape: Any, dtype: torch.dtype) -> Tensor:
        if dtype != torch.uint8:
            return empty(shape, dtype)
        held = torch.full((shape + 4096,), 0xA5, dtype=torch.uint8)
        beyond.append(held[shape:])
        return held[:shape]

    monkeypatch.setattr("dflash_accelerated.ops.attention.native.empty", guarded)
    spans, heads, slots, window, causal = CASES[case]
    one_call(numerics, spans, heads, slots, window, causal)
    (rest,) = beyond
    assert bool((rest == 0xA5).all())


def test_hidden_rows_have_no_weight_however_large_they_are() -> None:
    numerics = SENSES["ninfer"]
    store = store_of(1, 1, 1, 64, 10, numerics)
    ((k, v),) = filled(store, 0, [(0, 40, 6)], 1)
    q = torch.randn(6, 2, 10, generator=torch.Generator().manual_seed(2)).to(numerics.act)
    spans = Spans([0], [40], [6], CPU)
    clean = attend(q, k[40:], v[40:], store, 0, spans, 7, True, False, numerics)
    store.keys[0, 0, :, :34] = HUGE
    store.values[0, 0, :, :34] = torch.inf  # what FP16 makes of a BF16 65536
    assert torch.equal(clean, attend(q, k[40:], v[40:], store, 0, spans, 7, True, False, numerics))
    store.keys[0, 0, :, 34] = HUGE  # the first row's window begins here
    again = attend(q, k[40:], v[40:], store, 0, spans, 7, True, False, numerics)
    assert torch.equal(clean[1:], again[1:])
    assert not torch.equal(clean[0], again[0])


def test_a_chunk_that_a_row_does_not_see_is_no_part_of_it(numerics: Numerics) -> None:
    """The first row alone sees position 1023: a NaN there is its own, whoever of the two threads takes the chunks."""
    spans, rows = Spans([0], [1030], [3], CPU), []
    store = store_of(1, 1, 1, 1100, 32, numerics)
    ((k, v),) = filled(store, 0, [(0, 1030, 3)], 1)
    q = torch.randn(3, 2, 32, generator=torch.Generator().manual_seed(2)).to(numerics.act)
    for spoilt in (False, True):
        if spoilt:
            store.values[0, 0, :, 1023] = torch.nan
        for threads in (1, 2):
            torch.set_num_threads(threads)
            rows.append(attend(q, k[1030:], v[1030:], store, 0, spans, 8, True, False, numerics))
    assert bool(rows[2][0].isnan().all())
    assert not bool(rows[2][1:].isnan().any())
    assert torch.equal(rows[0], rows[1])
    for made in rows[2:]:
        assert torch.equal(made[1:], rows[0][1:])


SPOILT = {
    "last-row": ([(0, 40, 16)], (8, 2, 64), 64, 0),
    "last-row-of-few-lines": ([(0, 40, 3)], (2, 1, 32), 64, 0),
    "last-row-after-a-chunk": ([(0, 1030, 16)], (8, 2, 32), 1100, 0),
    "last-row-of-odd-channels": ([(0, 100, 5)], (6, 2, 10), 128, 0),
    "first-of-a-window": ([(0, 1030, 16)], (8, 2, 32), 1100, 20),
}


@pytest.mark.parametrize(
    ("part", "bad"), [("value", torch.nan), ("value", torch.inf), ("key", torch.nan), ("query", torch.nan)]
)
@pytest.mark.parametrize("case", SPOILT)
def test_what_a_row_does_not_see_cannot_spoil_it(case: str, part: str, bad: float, numerics: Numerics) -> None:
    """A proposal that overflows may be rejected: then the rows before it stand, and are what they are without it.

    A row that sees it, or whose own query is no number, says so in every channel.
    """
    spans, heads, slots, window = SPOILT[case]
    q, k, v, store, _, clean = one_call(numerics, spans, heads, slots, window, True)
    ((lane, start, count),) = spans
    packed = Spans([lane], [start], [count], CPU)
    if part == "query":
        q[0 if window else -1] = bad
    elif window:
        (store.values if part == "value" else store.keys)[lane, 1, :, start - window + 1] = bad
    else:
        (v if part == "value" else k)[-1] = bad
    seen = slice(0, 1) if window else slice(count - 1, count)
    hidden = slice(1, count) if window else slice(0, count - 1)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        made = attend(q, k, v, store, 1, packed, window, True, False, numerics)
        assert torch.equal(made[hidden], clean[hidden])
        assert not bool(made[seen].isfinite().any())


def test_only_kept_rows_change_the_store(numerics: Numerics) -> None:
    for keep in (False, True):
        spans = [(2, 5, 3), (0, 9, 2)]
        _, _, _, store, held, _ = one_call(numerics, spans, (4, 2, 18), 32, 0, True, keep)
        blank = store_of(4, 2, 2, 32, 18, numerics)
        filled(blank, 1, [(2, 5, 3), (0, 9, 2)], 5)
        for (lane, start, count), (keys, values) in zip(spans, held, strict=True):
            if keep:
                blank.keys[lane, 1, :, start : start + count] = keys[start:].transpose(0, 1)
                blank.values[lane, 1, :, start : start + count] = values[start:].transpose(0, 1).to(numerics.value)
        assert torch.equal(store.keys.nan_to_num(7), blank.keys.nan_to_num(7))
        assert torch.equal(store.values.nan_to_num(7), blank.values.nan_to_num(7))


def test_rows_may_be_slices_of_one_projection() -> None:
    numerics = SENSES["zlab-f32"]
    store = store_of(1, 1, 2, 32, 10, numerics)
    joined = torch.randn(5, 8, 10, generator=torch.Generator().manual_seed(3))
    q, k, v = joined[:, :4], joined[:, 4:6], joined[:, 6:]
    spans = Spans([0], [0], [5], CPU)
    made = attend(q, k, v, store, 0, spans, 0, True, False, numerics)
    assert torch.equal(
        made, attend(q.contiguous(), k.contiguous(), v.contiguous(), store, 0, spans, 0, True, False, numerics)
    )
