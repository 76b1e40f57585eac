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
from dflash_accelerated.ops.materialize import ContextWeights, Materializer, materializer
from dflash_accelerated.ops.rope import Turns
from dflash_accelerated.ops.rows import RowRange
from dflash_spec.registry import load_profile

from tests.accelerated.native.toy import ends, held, stores, turns

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")


def test_two_threads_on_one_engine_get_what_each_gets_alone(random_pair2: Path, load: Callable[..., Engine]) -> None:
    """Each call in C leaves the other thread to run: what a forward lays out must not be written over meanwhile."""
    engine = load(random_pair2, kernels="native", draft_tokens=5, max_batch=8)
    prompts = [[(7 * at + place) % 65 for place in range(3 + 17 * (at % 8))] for at in range(24)]
    alone = [engine.generate(prompt, 20).tokens for prompt in prompts]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda prompt: engine.generate(prompt, 20).tokens, prompts))
    assert together == alone


def context(numerics: Numerics) -> tuple[Materializer, Store, Turns, dict[int, torch.Tensor]]:
    """A context, two lanes of slots, their tables, and rows of each: so many that other threads come in between."""
    hidden, heads, dim = 256, 2, 64
    numbers = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=numbers).bfloat16()

    weights = ContextWeights(
        Product([drawn(hidden, 2 * hidden)], numerics), drawn(hidden),
        Product([drawn(2 * heads * dim, hidden)], numerics), drawn(1, dim),
    )  # fmt: skip
    shape, turns = (2, 1, heads, 400, dim), Turns(10000.0, dim, numerics, torch.device("cpu"))
    store = Store(torch.zeros(shape).bfloat16(), torch.zeros(shape).bfloat16(), 400)
    turns.reserve(400)
    rows = {lane: drawn(count, 2 * hidden) for lane, count in ((0, 310), (1, 47))}
    return materializer(weights, [Seat(0, 0, 0, True)], True, 1e-5, numerics), store, turns, rows


BF16 = Numerics.of(load_profile("zlab"), torch.bfloat16, "native")


def test_two_threads_on_one_context_get_their_own_rows() -> None:
    """Calls of different lengths, each long enough for the other thread to come in between."""
    made, store, table, rows = context(BF16)

    def run(lane: int) -> torch.Tensor:
        return made(rows[lane], [store], table, Spans([lane], [0], [len(rows[lane])], torch.device("cpu")))

    alone = [run(lane) for lane in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(run, [0, 1] * 60))
    assert all(torch.equal(found, alone[at % 2]) for at, found in enumerate(together))


def test_two_threads_that_have_rows_taken_fill_their_own_slots() -> None:
    """Rows that lie apart, and so are gathered in one room."""
    made, store, table, rows = context(BF16)

    def run(lane: int) -> torch.Tensor:
        count = len(rows[lane])
        parts = [RowRange(rows[lane], count // 2, count - count // 2), RowRange(rows[lane], 0, count // 2)]
        store.keys[lane] = 0
        made.take(parts, [store], table, Spans([lane], [0], [count], torch.device("cpu")))
        return store.keys[lane].clone()

    alone = [run(lane) for lane in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda lane: [run(lane) for _ in range(60)], (0, 1)))
    assert all(torch.equal(found, alone[lane]) for lane in (0, 1) for found in together[lane])


def test_two_threads_that_ask_for_the_best_ids_get_their_own() -> None:
    made, vocabulary, table = held(False, True, BF16), ends(BF16), turns(BF16)
    given = {lane: [(13 * at + 5 * lane) % 71 for at in range(count)] for lane, count in ((0, 30), (1, 3))}

    def run(lane: int) -> list[int]:
        own = Spans([lane], [0], [len(given[lane])], torch.device("cpu"))
        return made.best(given[lane], vocabulary, caches[lane], table, own, "all")

    caches = [stores(BF16), stores(BF16)]
    alone = [run(lane) for lane in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda lane: [run(lane) for _ in range(400)], (0, 1)))
    assert all(found == alone[lane] for lane in (0, 1) for found in together[lane])


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
