"""Products in the matrix library's layout, and what forwards hold besides weights and caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dflash_accelerated import Engine, Numerics
from dflash_accelerated.native import available
from dflash_accelerated.numerics import Kernels
from dflash_accelerated.ops.linear import KERNEL_BYTES, Product, filled_up, library, row_counts
from dflash_spec.registry import load_profile
from torch import Tensor

NUMERICS = Numerics.of(load_profile("zlab"), torch.bfloat16)
needs_library = pytest.mark.skipif(
    not library.multiplies(torch.zeros(2, 2, dtype=torch.bfloat16)),
    reason="this CPU's matrix library does not multiply BF16",
)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 16, 17, 33, 129])
def test_a_joined_product_is_the_products_of_its_weights(rows: int) -> None:
    """A BF16 sum of 37 products in FP32, rounded once: off by half an ulp of BF16 and the FP32 sum's own roundings.

    Where PyTorch's library does not multiply BF16, the product is rounded before the residual is added, and then again.
    """
    weights = [drawn(size, 37, seed=size) for size in (11, 3, 20)]
    product, x, residual = Product(weights, NUMERICS), drawn(rows, 37, seed=1), drawn(rows, 34, seed=2)
    exact = x.double() @ torch.cat(weights).double().T
    spread = x.double().abs() @ torch.cat(weights).double().abs().T
    for made, ideal in ((product(x), exact), (product.plus(x, residual, NUMERICS), exact + residual.double())):
        assert made.shape == (rows, 34)
        twice = 0.0 if ideal is exact or torch.ops.mkldnn._is_mkldnn_bf16_supported() else 1 + 2.0**-8
        rounded = (ideal.abs() + twice * exact.abs()) * 2.0**-8
        assert bool(((made.double() - ideal).abs() <= rounded + (spread + 9) * 38 * 2.0**-24).all())


@pytest.mark.parametrize("most", [1, 2, 3, 8, 15, 16, 100, 128, 129, 512, 700])
def test_rows_are_filled_up_to_few_numbers(most: int) -> None:
    assert row_counts(most) == sorted({filled_up(rows) for rows in range(1, most + 1)})
    assert all(rows <= filled_up(rows) < 2 * rows + 1 for rows in range(1, most + 1))


def test_filled_rows_are_no_rows_of_the_answer_and_change_none() -> None:
    product, x = Product([drawn(9, 21, seed=3)], NUMERICS), drawn(16, 21, seed=4)
    assert torch.equal(product(x[:13]), product(x)[:13])


@pytest.mark.parametrize("kernels", ["torch", "native", "triton"])
def test_the_weight_can_be_had_back_from_any_layout(kernels: Kernels) -> None:
    if kernels == "native" and not available():
        pytest.skip("no C compiler")
    weight = drawn(19, 37, seed=5)
    product = Product([weight[:4], weight[4:]], replace(NUMERICS, kernels=kernels))
    assert torch.equal(product.weight, weight)
    assert (product.native is not None) == (kernels == "native")
    assert product.held_bytes >= weight.nbytes


@needs_library
def test_an_engine_multiplies_no_number_of_rows_that_it_did_not_prepare_for(
    write_random_pair: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library keeps a kernel for each; none may come with a later round, however many rows that has."""
    folder = write_random_pair(tmp_path, dtypes=("BF16", "BF16"))
    asked: set[tuple[str, int, tuple[int, ...]]] = set()

    def counting(name: str) -> None:
        true = getattr(library, name)

        def counted(x: Tensor, *rest: Tensor) -> Tensor:
            weight = rest[name == "MULTIPLY_AND_ADD"]
            asked.add((name, len(x), tuple(weight.shape)))
            made: Tensor = true(x, *rest)
            return made

        monkeypatch.setattr(library, name, counted)

    counting("MULTIPLY")
    counting("MULTIPLY_AND_ADD")
    engine = Engine.from_pretrained(
        folder / "target", folder / "draft", max_batch=3, max_context=80, prefill_chunk=9, kernels="torch"
    )
    prepared = set(asked)
    requests = [engine.request([5, 9, 2][: 1 + place % 3], 17 + place, draft_tokens=place % 6) for place in range(7)]
    engine.generate_batch(requests)
    engine.decode_plain([7] * 20, 5)
    assert prepared
    assert asked == prepared
    assert engine.memory().workspace >= len(prepared) * KERNEL_BYTES
