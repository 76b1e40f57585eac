"""Kernels on a CUDA device: `pytest -m gpu -s` compares them with PyTorch's and prints how near each comes to a limit.

Written without a GPU: nothing here has run on one yet. Without one every test is skipped. The share printed is of the
device's memory bandwidth, from bytes that must move at least once; the head's product is limited by that too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import conv, filters, head, mlp, rms_norm, sampling, selector
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

REQUESTS, BLOCK, HIDDEN, VOCABULARY, COUNT, RANK = 8, 16, 2560, 151_936, 16, 256
ROWS = REQUESTS * BLOCK
TORCH = Numerics.of(load_profile("ninfer"))
TRITON = replace(TORCH, kernels="triton")

STEP = 2.0**-7
"""The most that a rounding to BF16 which goes the other way moves a value, as a share of it."""

SAME = (0.0, 0.0)

Case = tuple[Callable[..., Any], tuple[Any, ...], int, tuple[float, float]]
"""An op, its arguments without the numerics, the bytes that it must move, and how far its numbers may be from
PyTorch's: as a share of these, and besides. Each case says why; ids are always the same."""


def lattice(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Quarters from -3/4 to 3/4: sums of their products are exact in FP32, in any order."""
    return (torch.randint(-3, 4, shape, device="cuda") / 4).to(dtype)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values that BF16 has."""
    return torch.randn(shape, device="cuda").to(torch.bfloat16).to(dtype)


def norms() -> Case:
    """Sums of squares differ in their order, which turns the one rounding of a result at most."""
    x, weight = normal(ROWS, HIDDEN, dtype=TORCH.act), normal(HIDDEN)
    return rms_norm.rms_norm, (x, weight, 1e-6), 2 * x.nbytes + weight.nbytes, (STEP, 0.0)


def head_turns() -> Case:
    """The normed head is rounded, then turned, and the result rounded. Heads are below 8, where a step is 2⁻⁵; both of
    a pair may be a step off, and |cos| + |sin| is at most √2."""
    raw, norm, angles = normal(ROWS, 32, 128), (1 + normal(128) / 8).clamp(0.5, 1.5), normal(ROWS, 64)
    turn = Tables(angles.cos(), angles.sin())
    moved = raw.nbytes + raw.nbytes // 2 + 2 * turn.cos.nbytes
    return norm_rope, (raw, norm, turn, 1e-6, True), moved, (STEP, 1.5 * 2.0**-5)


def attention() -> Case:
    """A draft's blocks after 2,048 positions.

    A score is a sum of 128 products, whose sizes add up to some 90, times 128^-½: FP32 sums in two orders are at most
    2 · 128 · 2⁻²⁴ · 8 = 2⁻¹³ apart, and by such a share weights differ. Means of values of size 0.8 follow by less.
    """
    places = (REQUESTS, 1, 8, 4096 + BLOCK, 128)
    store = Store(normal(*places, dtype=TORCH.act), normal(*places, dtype=TORCH.value), 4096)
    spans = Spans(range(REQUESTS), [2048] * REQUESTS, [BLOCK] * REQUESTS, torch.device("cuda"))
    q, k, v = (normal(ROWS, heads, 128, dtype=TORCH.act) for heads in (32, 8, 8))
    moved = REQUESTS * 8 * 2048 * 128 * (TORCH.act.itemsize + TORCH.value.itemsize) + 2 * q.nbytes
    return attend, (q, k, v, store, 0, spans, 0, False, False), moved, (STEP, 2.0**-13)


def gates() -> Case:
    """FP32 up to the one rounding, which two exponentials may turn."""
    gate_up = normal(ROWS, 2 * 9728)
    return mlp.gated, (gate_up,), gate_up.nbytes + gate_up.nbytes // 4, (STEP, 0.0)


def convolutions() -> Case:
    """The same roundings in the same order."""
    z, base, delta = normal(ROWS, HIDDEN), normal(4, HIDDEN), normal(ROWS, 4, HIDDEN // 64)
    residual, slot = normal(ROWS, HIDDEN, dtype=TORCH.act), torch.arange(BLOCK, device="cuda").repeat(REQUESTS)
    moved = z.nbytes + base.nbytes + delta.nbytes + 2 * residual.nbytes
    return conv.convolve, (z, base, delta, slot, residual), moved, SAME


def candidates() -> Case:
    """Exact scores, of which many tie."""
    hidden, weight = lattice(ROWS, HIDDEN, dtype=TORCH.act), Product([lattice(VOCABULARY, HIDDEN)], TRITON)
    ids = torch.arange(VOCABULARY, device="cuda")
    return head.top, (hidden, weight, ids, 1.0, 0.0, COUNT), weight.weight.nbytes + hidden.nbytes, SAME


def best() -> Case:
    """A choice, with ties."""
    scores = normal(ROWS, VOCABULARY, dtype=TORCH.act)
    return head.best, (scores, VOCABULARY), scores.nbytes, SAME


def paths() -> Case:
    """Exact scores; every second request draws. A q is a quotient of exponentials, each right to an ulp, whose sum of
    16 rounds in FP32 in PyTorch: under 32 roundings of 2⁻²⁴."""
    ids = torch.randint(VOCABULARY, (REQUESTS, BLOCK, COUNT), device="cuda")
    books = lattice(VOCABULARY, RANK), lattice(VOCABULARY, RANK)
    held = selector.Selector(Product([books[0][:RANK]], TRITON), *books)
    g, hot = lattice(REQUESTS, BLOCK, RANK, dtype=TORCH.act), torch.arange(REQUESTS, device="cuda") % 2 * 3.0
    unary, uniforms = lattice(*ids.shape), torch.rand(REQUESTS, BLOCK, device="cuda")
    moved = (ids.numel() + REQUESTS * BLOCK) * RANK * books[0].element_size() + g.nbytes + 3 * unary.nbytes
    arguments = (head.Candidates(ids, unary), g, held, ids[:, 0, 0].clone(), hot, uniforms)
    return selector.walk, arguments, moved, (2.0**-19, 0.0)


def laws() -> Case:
    """As a path's q, of the 20 that the cap leaves. Scores that leave this margin around top-p are left alike."""
    rows = SettingRows.of(
        [Sampling(0.8, top_p=0.9)] * REQUESTS, [BLOCK] * REQUESTS, TORCH.profile, torch.device("cuda")
    )
    scores = torch.randn(ROWS, VOCABULARY, device="cuda") * 3
    return filters.distribution, (scores, rows), scores.nbytes, (2.0**-19, 0.0)


def draws() -> Case:
    """Sums in float64, 2⁻³⁶ apart at most: one draw of 128 coins in a thousand has one that is as near to a sum."""
    p = torch.softmax(torch.randn(ROWS, VOCABULARY, device="cuda"), dim=1)
    return sampling.draw, (Distribution(None, p), torch.rand(ROWS, device="cuda")), p.nbytes, SAME


CASES = [norms, head_turns, attention, gates, convolutions, candidates, best, paths, laws, draws]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_kernel_agrees_with_pytorch_and_says_how_near_the_limit_it_is(case):
    """Within the bound of its case, in the dtype that PyTorch gives."""
    torch.manual_seed(1)
    op, arguments, moved, (share, besides) = case()
    kernel = _kernel(op)
    expected, found = op(*arguments, TORCH), kernel(*arguments, TRITON)
    pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    for wanted, made in pairs:
        if wanted is not None and wanted.is_floating_point():
            torch.testing.assert_close(made, wanted, rtol=share, atol=besides, equal_nan=True)
        elif wanted is not None:
            assert torch.equal(made, wanted)
    print(f"\n{case.__name__}: {_told(moved, _seconds(lambda: kernel(*arguments, TRITON)))}")


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
    assert answers[0] == answers[1]


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


def _told(moved: int, seconds: float) -> str:
    name = torch.cuda.get_device_name()
    rate = moved / seconds
    limit = next((rate_ for part, rate_ in BANDWIDTH.items() if part in name), None)
    share = f"{rate / limit:.0%} of the memory's" if limit else f"share unknown: no bandwidth is listed for {name}"
    return f"{seconds * 1e6:.1f} µs, {moved / 1e6:.1f} MB, {rate / 1e9:.0f} GB/s, {share}"
