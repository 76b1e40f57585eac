"""Several threads of Python on one engine, and threads whose stacks are small."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from dflash_accelerated import Engine
from dflash_accelerated.native import available
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Seat, Spans, Store
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.linear.native import PackedWeight
from dflash_accelerated.ops.materialize import ContextWeights, materializer
from dflash_accelerated.ops.rope import Turns
from dflash_spec.registry import load_profile

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")


def test_two_threads_on_one_engine_get_what_each_gets_alone(random_pair2: Path, load: Callable[..., Engine]) -> None:
    """Each call in C leaves the other thread to run: what a forward lays out must not be written over meanwhile."""
    engine = load(random_pair2, kernels="native", draft_tokens=5, max_batch=8)
    prompts = [[(7 * at + place) % 65 for place in range(3 + 17 * (at % 8))] for at in range(24)]
    alone = [engine.generate(prompt, 20).tokens for prompt in prompts]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda prompt: engine.generate(prompt, 20).tokens, prompts))
    assert together == alone


def test_two_threads_on_one_context_get_their_own_rows() -> None:
    """Calls of different lengths, each long enough for the other thread to come in between."""
    numerics, hidden, heads, dim = Numerics.of(load_profile("zlab"), torch.bfloat16, "native"), 256, 2, 64
    numbers = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=numbers).bfloat16()

    weights = ContextWeights(
        Product([drawn(hidden, 2 * hidden)], numerics), drawn(hidden),
        Product([drawn(2 * heads * dim, hidden)], numerics), drawn(1, dim),
    )  # fmt: skip
    made = materializer(weights, [Seat(0, 0, 0, True)], True, 1e-5, numerics)
    shape, turns = (2, 1, heads, 400, dim), Turns(10000.0, dim, numerics, torch.device("cpu"))
    store = Store(torch.zeros(shape).bfloat16(), torch.zeros(shape).bfloat16(), 400)
    turns.reserve(400)
    rows = {lane: drawn(count, 2 * hidden) for lane, count in ((0, 310), (1, 47))}

    def run(lane: int) -> torch.Tensor:
        return made(rows[lane], [store], turns, Spans([lane], [0], [len(rows[lane])], torch.device("cpu")))

    alone = [run(lane) for lane in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(run, [0, 1] * 60))
    assert all(torch.equal(found, alone[at % 2]) for at, found in enumerate(together))


@pytest.mark.parametrize("rows", [1, 20, 300])
def test_a_thread_with_a_small_stack_can_multiply(rows: int) -> None:
    """musl gives a thread 128 KiB, macOS 512."""
    packed = PackedWeight(torch.randn(300, 70).bfloat16(), torch.bfloat16)
    x = torch.randn(rows, 70).bfloat16()
    made: list[torch.Tensor] = []
    before = threading.stack_size(128 << 10)
    try:
        thread = threading.Thread(target=lambda: made.append(packed.multiply(x)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert torch.equal(made[0], packed.multiply(x))
