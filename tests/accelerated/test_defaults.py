"""What PyTorch is told to take where nothing is said is the caller's own matter, and no part of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from dflash_accelerated import Engine
from dflash_accelerated.native import available

KERNELS = ["torch", pytest.param("native", marks=pytest.mark.skipif(not available(), reason="no C compiler"))]
PROMPT = [5, 9, 2, 61, 40, 3]


@pytest.fixture
def defaults() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


def answers(load: Callable[..., Engine], folder: Path, kernels: str, change: Callable[[], None]) -> list[object]:
    """Greedy, sampled and joint, after a change of the defaults."""
    engine = load(folder, draft_tokens=4, kernels=kernels)
    change()
    requests = [engine.request(PROMPT[at:], 12, temperature=0.4 * at, seed=at, top_k=9) for at in range(3)]
    made = [engine.generate(PROMPT, 12, temperature=heat, seed=3, top_p=0.9) for heat in (0.0, 0.8)]
    return [each.tokens for each in (*made, *engine.generate_batch(requests), engine.decode_plain(PROMPT, 9))]


@pytest.mark.usefixtures("defaults")
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64, "meta"], ids=str)
def test_defaults_change_no_answer(
    random_pair: Path, random_pair2: Path, load: Callable[..., Engine], second: bool, kernels: str,
    default: torch.dtype | str,
) -> None:  # fmt: skip
    folder = random_pair2 if second else random_pair
    plain = answers(load, folder, kernels, lambda: None)

    def change() -> None:
        if isinstance(default, str):
            torch.set_default_device(default)
        else:
            torch.set_default_dtype(default)

    assert answers(load, folder, kernels, change) == plain
    assert answers(load, folder, kernels, lambda: None) == plain, "and where they were changed before it is loaded"
