"""What forwards need besides weights and caches: planned, and where that can be, made at the start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from dflash_accelerated.ops.linear import KERNEL_BYTES, Product, filled_up, row_counts


@runtime_checkable
class Multiplying(Protocol):
    """A target or draft that can say what its forwards need."""

    def products(self) -> list[tuple[Product, str]]:
        """Each matrix product, and which rows go through it: block, verify, context or head."""

    def working_bytes(self, rows: int, chunk: int) -> int:
        """Bytes that forwards of `rows` rows, or of `chunk` rows of a prompt, hold between their ops."""


def prepare(adapters: Iterable[object], rows: int, chunk: int) -> int:
    """Have the matrix library, where it multiplies, make its kernels for forwards of up to `rows` rows, and for prompts
    read `chunk` at a time: bytes of these and of what forwards hold. The last part of a prompt may make more, once.

    Logits are held twice, the draft's and the target's.
    """
    known = [adapter for adapter in adapters if isinstance(adapter, Multiplying)]
    products = [each for adapter in known for each in adapter.products()]
    inner = {(one.outputs, one.inputs, one.adds): one for one, place in products if place != "head"}
    heads = {(one.outputs, one.inputs, one.adds): one for one, place in products if place == "head"}
    counts = row_counts(rows)
    made = sum(one.make_ready(counts) for one in heads.values())
    made += sum(one.make_ready({*counts, filled_up(chunk)}) for one in inner.values())
    logits = 2 * rows * sum(one.outputs * one.dtype.itemsize for one in heads.values())
    return made * KERNEL_BYTES + logits + sum(adapter.working_bytes(rows, chunk) for adapter in known)
