"""Kernels on a CUDA device: `pytest -m gpu -s` compares them with PyTorch's and prints how near each comes to a limit.

Written without a GPU: nothing here has run on one yet. Without one every test is skipped. The share printed is of the
device's memory bandwidth, from bytes that must move at least once, and of its arithmetic where there are products.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import acceptance, conv, filters, head, materialize, mlp, rms_norm, sampling, selector
from dflash_accelerated.ops.attention.spans import Spans, Store
from dflash_accelerated.ops.attention.torch import attend
from dflash_accelerated.ops.filters import Distribution
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.norm_rope.torch import norm_rope
from dflash_accelerated.ops.rope import Tables
from dflash_accelerated.settings import Sampling, SettingRows
from dflash_spec.registry import load_profile

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"),
]

BANDWIDTH = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.039e12, "4090": 1.008e12}
"""Bytes per second, of the SXM forms (A100: of 80 GB), from NVIDIA's data sheets; other devices print no share."""
ARITHMETIC = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "4090": 165e12}
"""Operations per second on BF16 with FP32 sums, dense, from the same."""

REQUESTS, BLOCK, HIDDEN, VOCABULARY, COUNT, RANK = 8, 16, 2560, 151_936, 16, 256
ROWS = REQUESTS * BLOCK
TORCH = Numerics.of(load_profile("ninfer"))
TRITON = replace(TORCH, kernels="triton")

STEP = 2.0**-7
"""The most that a rounding to BF16 which goes the other way moves a value, as a share of it."""

SAME = (0.0, 0.0)

Case = tuple[Callable[..., Any], tuple[Any, ...], int, int, tuple[float, float]]
"""An op, its arguments without the numerics, the bytes that it must move, the operations of its products, and how far
its numbers may be from PyTorch's: as a share of these, and besides. Each case says why; ids are always the same."""


def lattice(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Quarters from -3/4 to 3/4: sums of their products are exact in FP32, in any order."""
    return (torch.randint(-3, 4, shape, device="cuda") / 4).to(dtype)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values that BF16 has."""
    return torch.randn(shape, device="cuda").to(torch.bfloat16).to(dtype)


def norms() -> Case:
    """Sums of squares differ in their order, which turns the one rounding of a result at most."""
    x, weight = normal(ROWS, HIDDEN, dtype=TORCH.act), normal(HIDDEN)
    return rms_norm.rms_norm, (x, weight, 1e-6), 2 * x.nbytes + weight.nbytes, 0, (STEP, 0.0)


def head_turns() -> Case:
    """The normed head is rounded, then turned, and the result rounded. Heads are below 8, where a step is 2⁻⁵; both of
    a pair may be a step off, and |cos| + |sin| is at most √2."""
    raw, norm, angles = normal(ROWS, 32, 128), (1 + normal(128) / 8).clamp(0.5, 1.5), normal(ROWS, 64)
    turn = Tables(angles.cos(), angles.sin())
    moved = raw.nbytes + raw.nbytes // 2 + 2 * turn.cos.nbytes
    return norm_rope, (raw, norm, turn, 1e-6, True), moved, 0, (STEP, 1.5 * 2.0**-5)


def attention() -> Case:
    """A draft's blocks after 2,048 positions.

    A score is a sum of 128 products, whose sizes add up to some 90, times 128^-½: FP32 sums in two orders are at most
    2 · 128 · 2⁻²⁴ · 8 = 2⁻¹³ apart, and by such a share weights differ. Means of values of size 0.8 follow by less.
    """
    places = (REQUESTS, 1, 8, 4096 + BLOCK, 128)
    store = Store(normal(*places, dtype=TORCH.act), normal(*places, dtype=TORCH.value), 4096)
    spans = Spans(range(REQUESTS), [2048] * REQUESTS, [BLOCK] * REQUESTS, torch.device("cuda"))
    q, k, v = (normal(ROWS, heads, 128, dtype=TORCH.act) for heads in (32, 8, 8))
    moved = REQUESTS * 8 * 2048 * 128 * (TORCH.act.itemsize + TORCH.value.itemsize) + 2 * q.nbytes + k.nbytes + v.nbytes
    products = 3 * 2 * q.numel() * (2048 + BLOCK)  # weights go through in two parts
    return attend, (q, k, v, store, 0, spans, 0, False, False), moved, products, (STEP, 2.0**-13)


def gates() -> Case:
    """FP32 up to the one rounding, which two exponentials may turn."""
    gate_up = normal(ROWS, 2 * 9728)
    return mlp.gated, (gate_up,), gate_up.nbytes + gate_up.nbytes // 4, 0, (STEP, 0.0)


def convolutions() -> Case:
    """The same roundings in the same order."""
    z, base, delta = normal(ROWS, HIDDEN), normal(4, HIDDEN), normal(ROWS, 4, HIDDEN // 64)
    residual, slot = normal(ROWS, HIDDEN, dtype=TORCH.act), torch.arange(BLOCK, device="cuda").repeat(REQUESTS)
    moved = z.nbytes + base.nbytes + delta.nbytes + 2 * residual.nbytes
    return conv.convolve, (z, base, delta, slot, residual), moved, 0, SAME


def candidates() -> Case:
    """Exact scores, of which many tie."""
    hidden, weight = lattice(ROWS, HIDDEN, dtype=TORCH.act), Product([lattice(VOCABULARY, HIDDEN)], TRITON)
    ids = torch.arange(VOCABULARY, device="cuda")
    moved, products = weight.weight.nbytes + hidden.nbytes + ids.nbytes, 2 * ROWS * weight.weight.numel()
    return head.top, (hidden, weight, ids, 1.0, 0.0, COUNT), moved, products, SAME


def best() -> Case:
    """A choice, with ties."""
    scores = normal(ROWS, VOCABULARY, dtype=TORCH.act)
    return head.best, (scores, VOCABULARY), scores.nbytes, 0, SAME


def paths() -> Case:
    """Exact scores; every second request draws. A q is a quotient of exponentials, each right to an ulp, whose sum of
    16 rounds in FP32 in PyTorch: under 32 roundings of 2⁻²⁴."""
    ids = torch.randint(VOCABULARY, (REQUESTS, BLOCK, COUNT), device="cuda")
    books = lattice(VOCABULARY, RANK), lattice(VOCABULARY, RANK)
    held = selector.Selector(Product([books[0][:RANK]], TRITON), *books)
    g, hot = lattice(REQUESTS, BLOCK, RANK, dtype=TORCH.act), torch.arange(REQUESTS, device="cuda") % 2 * 3.0
    unary, uniforms = lattice(*ids.shape), torch.rand(REQUESTS, BLOCK, device="cuda")
    rows = ids.numel() + REQUESTS * BLOCK
    moved = rows * RANK * books[0].element_size() + ids.nbytes + g.nbytes + 3 * unary.nbytes
    arguments = (head.Candidates(ids, unary), g, held, ids[:, 0, 0].clone(), hot, uniforms)
    return selector.walk, arguments, moved, 0, (2.0**-19, 0.0)


def laws() -> Case:
    """As a path's q, of the 20 that the cap leaves. Scores that leave this margin around top-p are left alike."""
    rows = SettingRows.of(
        [Sampling(0.8, top_p=0.9)] * REQUESTS, [BLOCK] * REQUESTS, TORCH.profile, torch.device("cuda")
    )
    scores = torch.randn(ROWS, VOCABULARY, device="cuda") * 3
    return filters.distribution, (scores, rows), scores.nbytes, 0, (2.0**-19, 0.0)


def draws() -> Case:
    """Sums in float64, 2⁻³⁶ apart at most: one draw of 128 coins in a thousand has one that is as near to a sum."""
    p = torch.softmax(torch.randn(ROWS, VOCABULARY, device="cuda"), dim=1)
    return sampling.draw, (Distribution(None, p), torch.rand(ROWS, device="cuda")), p.nbytes, 0, SAME


def verified() -> tuple[acceptance.Chains, acceptance.SparseLaw, Distribution]:
    """Proposals, their laws over some candidates, and laws over every id in which those have most of the weight."""
    ids = torch.rand(REQUESTS * BLOCK, VOCABULARY, device="cuda").topk(COUNT).indices
    q = torch.softmax(torch.randn(ids.shape, device="cuda"), dim=1)
    scores = torch.randn(REQUESTS, BLOCK + 1, VOCABULARY, device="cuda")
    scores[:, :BLOCK].scatter_add_(2, ids.view(REQUESTS, BLOCK, COUNT), torch.full_like(q, 9).view(REQUESTS, BLOCK, -1))
    law = Distribution(None, torch.softmax(scores.flatten(0, 1), dim=1))
    return acceptance.Chains.of([*ids[:, 0].view(REQUESTS, BLOCK)]), acceptance.SparseLaw(ids, q), law


def tests_of_proposals() -> Case:
    """One FP32 product and one comparison each."""
    chains, drawn_from, law = verified()
    moved = drawn_from.q.nbytes + chains.proposals.nbytes
    coins = torch.rand(REQUESTS, BLOCK, device="cuda")
    return acceptance.accepted_count, (chains, drawn_from, law, coins), moved, 0, SAME


def corrections() -> Case:
    """As draws: sums in float64, in another order. Half of the requests have a bonus."""
    chains, drawn_from, law = verified()
    accepted = torch.arange(REQUESTS, device="cuda") % 2 * BLOCK
    moved = REQUESTS * law.p[0].nbytes
    return acceptance.terminal, (chains, accepted, drawn_from, law, torch.rand(REQUESTS, device="cuda")), moved, 0, SAME


CASES = [
    norms, head_turns, attention, gates, convolutions, candidates, best, paths, laws, draws, tests_of_proposals,
    corrections,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_kernel_agrees_with_pytorch_and_says_how_near_the_limit_it_is(case):
    """Within the bound of its case, in the dtype that PyTorch gives."""
    torch.manual_seed(1)
    op, arguments, moved, products, (share, besides) = case()
    kernel = _kernel(op)
    expected, found = op(*arguments, TORCH), kernel(*arguments, TRITON)
    pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    for wanted, made in pairs:
        if wanted is not None and wanted.is_floating_point():
            torch.testing.assert_close(made, wanted, rtol=share, atol=besides, equal_nan=True)
        elif wanted is not None:
            assert torch.equal(made, wanted)
    print(f"\n{case.__name__}: {_told(moved, products, _seconds(lambda: kernel(*arguments, TRITON)))}")


def test_context_is_stored_as_pytorch_stores_it():
    """Keys as turned heads are, values the same."""
    torch.manual_seed(1)
    layers, kv_heads, slots = 5, 8, 2048
    raw_k, raw_v = (normal(ROWS, layers, kv_heads, 128) for _ in range(2))
    norms, angles = (1 + normal(layers, 128) / 8).clamp(0.5, 1.5), normal(ROWS, 64)
    turn = Tables(angles.cos(), angles.sin())
    spans = Spans(range(REQUESTS), [4096 - 5] * REQUESTS, [BLOCK] * REQUESTS, torch.device("cuda"))
    places = (REQUESTS, layers, kv_heads, slots, 128)
    held, other = (
        Store(
            torch.zeros(places, dtype=TORCH.act, device="cuda"),
            torch.zeros(places, dtype=TORCH.value, device="cuda"),
            slots,
        )
        for _ in range(2)
    )
    kernel = _kernel(materialize.store)
    materialize.store(raw_k, raw_v, norms, turn, 1e-6, True, held, spans, TORCH)
    kernel(raw_k, raw_v, norms, turn, 1e-6, True, other, spans, TRITON)
    torch.testing.assert_close(other.keys, held.keys, rtol=STEP, atol=1.5 * 2.0**-5)
    assert torch.equal(other.values, held.values)
    moved = 2 * (raw_k.nbytes + raw_k.nbytes // 2)
    took = _seconds(lambda: kernel(raw_k, raw_v, norms, turn, 1e-6, True, other, spans, TRITON))
    print(f"\nstored context: {_told(moved, 0, took)}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_kernel_can_be_captured(case):
    """In a CUDA graph, which allows neither a look at a result nor memory that is not the graph's own."""
    torch.manual_seed(1)
    op, arguments, *_ = case()
    kernel = _kernel(op)
    expected = kernel(*arguments, TRITON)  # compiled by now
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = kernel(*arguments, TRITON)
    graph.replay()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("products_row_by_row")
@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
def test_graphed_rounds_give_the_tokens_of_ungraphed_ones(tmp_path, write_random_pair, load, profile, second):
    """Requests of several lengths that join and leave, in FP32 and in BF16.

    An append has more rows with graphs than without. Where no product of a row depends on the others, nothing does, and
    every token is the same.
    """
    folder = write_random_pair(tmp_path / "pair", second=second)
    dtype = torch.bfloat16 if profile == "ninfer" else None
    answers = []
    for graphs in (False, None):
        engine = load(folder, device="cuda", dtype=dtype, profile=profile, draft_tokens=5, max_batch=3, graphs=graphs)
        requests = [engine.request(range(1, 4 + at), 20 + 4 * at, stop_ids=[]) for at in range(8)]
        made = [each.tokens for each in engine.generate_batch(requests)]
        plain = engine.decode_plain([3, 1, 4], 12, stop_ids=[]).tokens
        answers.append([*made, plain])
        assert (engine.target._graphs is None) == (graphs is False)
        if graphs is None:
            assert engine.target._graphs.count
            assert engine.draft._appending.count
            assert engine.draft._proposing.count
            assert engine.memory().workspace
            assert engine.memory().graphs >= engine._pool.held_bytes > 0
    assert answers[0] == answers[1]


@pytest.mark.parametrize("temperature", [0.0, 0.7], ids=["greedy", "sampled"])
@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
def test_a_round_waits_twice(tmp_path, write_random_pair, load, second, temperature):
    """For its proposals and for its decision, as PyTorch counts what waits. test_transfers.py counts without a GPU."""
    engine = load(write_random_pair(tmp_path / "pair", second=second), device="cuda", draft_tokens=5, max_batch=3)
    for at in range(3):
        engine.submit(engine.request([3, 1, 4], 60, seed=at, stop_ids=[], temperature=temperature))
    for _ in range(3):
        engine.step()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 2, [str(each.message) for each in waits]


def _kernel(op: Callable[..., Any]) -> Callable[..., Any]:
    """What the file `triton.py` beside an op's own file holds by its name."""
    found: Callable[..., Any] = getattr(import_module(op.__module__.replace(".torch", ".triton")), op.__name__)
    return found


def _seconds(call: Callable[[], Any], repeats: int = 50) -> float:
    for _ in range(5):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000 / repeats


def _told(moved: int, products: int, seconds: float) -> str:
    name = torch.cuda.get_device_name()
    shares = [
        f"{amount / seconds / limit:.0%} of the {what}'s"
        for amount, limits, what in ((moved, BANDWIDTH, "memory"), (products, ARITHMETIC, "arithmetic"))
        for part, limit in limits.items()
        if amount and part in name
    ]
    share = ", ".join(shares) or f"share unknown: no limits are listed for {name}"
    return f"{seconds * 1e6:.1f} µs, {moved / 1e6:.1f} MB, {moved / seconds / 1e9:.0f} GB/s, {share}"
