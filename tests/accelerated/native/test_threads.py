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
from dflash_accelerated.ops.linear.native import PackedWeight

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")


def test_two_threads_on_one_engine_get_what_each_gets_alone(random_pair2: Path, load: Callable[..., Engine]) -> None:
    """Each call in C leaves the other thread to run: what a forward lays out must not be written over meanwhile."""
    engine = load(random_pair2, kernels="native", draft_tokens=5, max_batch=8)
    prompts = [[(7 * at + place) % 65 for place in range(3 + 17 * (at % 8))] for at in range(24)]
    alone = [engine.generate(prompt, 20).tokens for prompt in prompts]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda prompt: engine.generate(prompt, 20).tokens, prompts))
    assert together == alone


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
