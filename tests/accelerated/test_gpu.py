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

Case = tuple[Callable[..., Any], tuple[Any, ...], int]
"""An op, its arguments without the numerics, and the bytes that it must move."""


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values that BF16 has."""
    return torch.randn(shape, device="cuda").to(torch.bfloat16).to(dtype)


def norms() -> Case:
    x, weight = normal(ROWS, HIDDEN, dtype=TORCH.act), normal(HIDDEN)
    return rms_norm.rms_norm, (x, weight, 1e-6), 2 * x.nbytes + weight.nbytes


def head_turns() -> Case:
    raw, turn = normal(ROWS, 32, 128), Tables(normal(ROWS, 64), normal(ROWS, 64))
    return norm_rope, (raw, normal(128), turn, 1e-6, True), raw.nbytes + raw.nbytes // 2 + 2 * turn.cos.nbytes


def attention() -> Case:
    """A draft's blocks after 2,048 positions."""
    places = (REQUESTS, 1, 8, 4096 + BLOCK, 128)
    store = Store(normal(*places, dtype=TORCH.act), normal(*places, dtype=TORCH.value), 4096)
    spans = Spans(range(REQUESTS), [2048] * REQUESTS, [BLOCK] * REQUESTS, torch.device("cuda"))
    q, k, v = (normal(ROWS, heads, 128, dtype=TORCH.act) for heads in (32, 8, 8))
    moved = REQUESTS * 8 * 2048 * 128 * (TORCH.act.itemsize + TORCH.value.itemsize) + 2 * q.nbytes
    return attend, (q, k, v, store, 0, spans, 0, False, False), moved


def gates() -> Case:
    gate_up = normal(ROWS, 2 * 9728)
    return mlp.gated, (gate_up,), gate_up.nbytes + gate_up.nbytes // 4


def convolutions() -> Case:
    z, base, delta = normal(ROWS, HIDDEN), normal(4, HIDDEN), normal(ROWS, 4, HIDDEN // 64)
    residual, slot = normal(ROWS, HIDDEN, dtype=TORCH.act), torch.arange(BLOCK, device="cuda").repeat(REQUESTS)
    moved = z.nbytes + base.nbytes + delta.nbytes + 2 * residual.nbytes
    return conv.convolve, (z, base, delta, slot, residual), moved


def candidates() -> Case:
    hidden, weight = normal(ROWS, HIDDEN, dtype=TORCH.act), Product([normal(VOCABULARY, HIDDEN)], TRITON)
    ids = torch.arange(VOCABULARY, device="cuda")
    return head.top, (hidden, weight, ids, 1.0, 0.0, COUNT), weight.weight.nbytes + hidden.nbytes


def best() -> Case:
    scores = normal(ROWS, VOCABULARY, dtype=TORCH.act)
    return head.best, (scores, VOCABULARY), scores.nbytes


def paths() -> Case:
    ids = torch.randint(VOCABULARY, (REQUESTS, BLOCK, COUNT), device="cuda")
    books = normal(VOCABULARY, RANK), normal(VOCABULARY, RANK)
    held = selector.Selector(Product([books[0][:RANK]], TRITON), *books)
    g, hot = normal(REQUESTS, BLOCK, RANK, dtype=TORCH.act), torch.zeros(REQUESTS, device="cuda")
    unary, uniforms = normal(*ids.shape), torch.rand(REQUESTS, BLOCK, device="cuda")
    moved = (ids.numel() + REQUESTS * BLOCK) * RANK * books[0].element_size() + g.nbytes + 3 * unary.nbytes
    return selector.walk, (head.Candidates(ids, unary), g, held, ids[:, 0, 0].clone(), hot, uniforms), moved


def laws() -> Case:
    rows = SettingRows.of(
        [Sampling(0.8, top_p=0.9)] * REQUESTS, [BLOCK] * REQUESTS, TORCH.profile, torch.device("cuda")
    )
    scores = torch.randn(ROWS, VOCABULARY, device="cuda") * 3
    return filters.distribution, (scores, rows), scores.nbytes


def draws() -> Case:
    p = torch.softmax(torch.randn(ROWS, VOCABULARY, device="cuda"), dim=1)
    return sampling.draw, (Distribution(None, p), torch.rand(ROWS, device="cuda")), p.nbytes


STEP, STEP_OF_A_TERM = 2.0**-7, 2.0**-5
CASES = [norms, head_turns, attention, gates, convolutions, candidates, best, paths, laws, draws]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_kernel_agrees_with_pytorch_and_says_how_near_the_limit_it_is(case):
    """What differs is the order of FP32 sums and the last bit of exponentials, which may turn roundings to BF16.

    One of the result moves it by a step, 2⁻⁷ of it at most. One of a term before a sum that cancels (a turned pair, a
    tap) moves it by a step of the term: terms are below 8 here, where a step is 2⁻⁵.
    """
    torch.manual_seed(1)
    op, arguments, moved = case()
    kernel = _kernel(op)
    expected, found = op(*arguments, TORCH), kernel(*arguments, TRITON)
    pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    for wanted, made in pairs:
        if wanted is not None and wanted.is_floating_point():
            assert torch.equal(made.isnan(), wanted.isnan())
            away, size = (made.float() - wanted.float()).abs(), wanted.float().abs()
            cancelling = STEP_OF_A_TERM if wanted.dtype == torch.bfloat16 else 0.0
            assert bool((away <= STEP * size + cancelling)[~wanted.isnan()].all())
        elif wanted is not None:  # ids: sums that are nearly equal may swap two
            assert (made == wanted).float().mean() > 0.99
    print(f"\n{case.__name__}: {_told(moved, _seconds(lambda: kernel(*arguments, TRITON)))}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_kernel_can_be_captured(case):
    """In a CUDA graph, which allows neither a look at a result nor memory that is not the graph's own."""
    torch.manual_seed(1)
    op, arguments, _ = case()
    kernel = _kernel(op)
    expected = kernel(*arguments, TRITON)  # compiled by now
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = kernel(*arguments, TRITON)
    graph.replay()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
def test_graphed_rounds_give_the_tokens_of_ungraphed_ones(tmp_path, write_random_pair, load, profile, second):
    """Requests of several lengths that join and leave, in FP32 and in BF16.

    An append has more rows with graphs than without, so that a product's sum may have another order: at a near tie one
    answer in four may part from the other.
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
    agreed = sum(one == other for one, other in zip(*answers, strict=True))
    assert agreed >= 3 * len(answers[0]) / 4


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
