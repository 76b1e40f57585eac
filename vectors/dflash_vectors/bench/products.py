"""The matrix products of a step or a round, and nothing else: the time below which an engine of this kind cannot come.

They are the engine's own objects, with its packed weights, on rows of numbers. Where kernels in C multiply, all of them
are one call, with nothing between them; on a GPU they are one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dflash_accelerated import Engine
from dflash_accelerated.graphs import CudaCapture
from torch import Tensor

from dflash_vectors.bench.harness import Call

Listed = tuple[Any, str]
"""A product and which rows go through it: `block`, `verify`, `context` or `head`."""


@dataclass(frozen=True)
class Bare:
    """Products of the target and of the draft, and K."""

    target: tuple[Listed, ...]
    draft: tuple[Listed, ...]
    drafts: int

    @staticmethod
    def of(engine: Engine) -> Bare:
        """Those that the engine's adapters list."""
        target: Any = engine.target
        draft: Any = engine.draft
        return Bare(tuple(target.products()), tuple(draft.products()), engine.draft_tokens)

    def round(self, batch: int, accepted: int, device: torch.device) -> Call:
        """All products of one joint round in which each request accepts `accepted` proposals.

        The target's head reads the rows that are verified, and before these the rows that propose.
        """
        block, proposing = (self.drafts + 1) * batch, self.drafts * batch
        rows = {"block": block, "context": (accepted + 1) * batch, "head": proposing}
        work = [(product, rows[kind]) for product, kind in self.draft]
        work += [(product, proposing) for product, kind in self.target if kind == "head"]
        work += [(product, block) for product, _ in self.target]
        return _calls(work, device)

    def step(self, batch: int, device: torch.device) -> Call:
        """All products of one joint plain step."""
        return _calls([(product, batch) for product, _ in self.target], device)


def _calls(work: Sequence[tuple[Any, int]], device: torch.device) -> Call:
    if all(product.native for product, _ in work):
        from dflash_accelerated.ops.linear.native import BareProducts

        return BareProducts([(product.native, rows) for product, rows in work])
    ready: list[tuple[Callable[[Tensor], Tensor], Tensor]] = []
    held: dict[tuple[int, int], Tensor] = {}
    for product, rows in work:
        shape = rows, product.inputs
        if shape not in held:
            held[shape] = torch.randn(shape, device=device).bfloat16()
        ready.append((product, held[shape]))

    def run() -> tuple[Tensor, ...]:
        with torch.inference_mode():
            for product, given in ready:
                product(given)
        return ()

    if device.type != "cuda":
        return run
    recorded = run, CudaCapture(device)(run)  # one launch, as a round of the engine has; what it reads lives as long
    return lambda: recorded[1].replay()
