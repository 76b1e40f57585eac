"""What forwards need besides weights and caches: planned, and where that can be, made at the start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from dflash_accelerated.ops.linear import KERNEL_BYTES, Product, filled_up, row_counts


@runtime_checkable
class Multiplying(Protocol):
    """A target or draft whose matrix products can be asked for."""

    def products(self) -> list[tuple[Product, str]]:
        """Each product, and which rows go through it: block, verify, context or head."""


def prepare(adapters: Iterable[object], rows: int, chunk: int) -> int:
    """Have the matrix library, where it multiplies, make its kernels for forwards of up to `rows` rows, and for prompts
    read `chunk` at a time: bytes of these and of what forwards hold. The last part of a prompt may make more, once.

    A layer holds at most what its products give; logits are held twice, the draft's and the target's.
    """
    products = [each for adapter in adapters if isinstance(adapter, Multiplying) for each in adapter.products()]
    inner = {(one.outputs, one.inputs, one.adds): one for one, place in products if place != "head"}
    heads = {(one.outputs, one.inputs, one.adds): one for one, place in products if place == "head"}
    counts = row_counts(rows)
    made = sum(one.make_ready(counts) for one in heads.values())
    made += sum(one.make_ready({*counts, filled_up(chunk)}) for one in inner.values())
    widths = max(rows, chunk) * sum(one.outputs * one.dtype.itemsize for one in inner.values())
    return made * KERNEL_BYTES + widths + 2 * rows * sum(one.outputs * one.dtype.itemsize for one in heads.values())
