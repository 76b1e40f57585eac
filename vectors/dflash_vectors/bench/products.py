"""The matrix products of a step or a round, and nothing else: the time below which an engine of this kind cannot come.

They are the engine's own objects, with its packed weights, on rows of numbers. Where an adapter does not list them,
products of the same shapes stand in for them, which the report says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from dflash_accelerated import Engine
from torch import Tensor

from dflash_vectors.bench.harness import Call
from dflash_vectors.bench.pairs import Pair

Listed = tuple[Any, str]
"""A product and which rows go through it: `block`, `verify`, `context` or `head`."""


@dataclass(frozen=True)
class Bare:
    """Products of the target and of the draft; `own` says that they are the engine's."""

    target: tuple[Listed, ...]
    draft: tuple[Listed, ...]
    drafts: int
    own: bool

    @staticmethod
    def of(engine: Engine, pair: Pair) -> Bare:
        """Those that the engine's adapters list, or their stand-ins."""
        models: tuple[Any, Any] = (engine.target, engine.draft)
        if all(hasattr(model, "products") for model in models):
            return Bare(tuple(models[0].products()), tuple(models[1].products()), engine.draft_tokens, True)
        target, draft = (
            json.loads((folder / "config.json").read_text("utf-8")) for folder in (pair.target, pair.draft)
        )
        return Bare(tuple(_of_target(target)), tuple(_of_draft(draft)), engine.draft_tokens, False)

    def round(self, batch: int, accepted: int, device: torch.device) -> Call:
        """All products of one joint round in which each request accepts `accepted` proposals."""
        drafts = self.drafts
        rows = {"verify": drafts + 1, "block": drafts + 1, "context": accepted + 1, "head": drafts + 1}
        work = [(product, rows[kind] * batch) for product, kind in (*self.target, *self.draft)]
        work += [
            (product, drafts * batch) for product, kind in self.target if kind == "head"
        ]  # it proposes with it too
        return _calls(work, device)

    def step(self, batch: int, device: torch.device) -> Call:
        """All products of one joint plain step."""
        return _calls([(product, batch) for product, _ in self.target], device)


def _calls(work: Iterable[tuple[Any, int]], device: torch.device) -> Call:
    held = {width: torch.randn(8 * 16, width, device=device).bfloat16() for width in {p.inputs for p, _ in work}}
    ready: list[tuple[Callable[[Tensor], Tensor], Tensor]] = []
    for product, rows in work:
        given = held[product.inputs]
        given = given if rows <= len(given) else given.repeat(-(-rows // len(given)), 1)
        ready.append((product, given[:rows].contiguous()))

    def run() -> None:
        with torch.inference_mode():
            for product, given in ready:
                product(given)

    return run


class _StandIn:
    """A product of one shape in PyTorch, with weights of its own."""

    def __init__(self, outputs: int, inputs: int) -> None:
        self.outputs, self.inputs = outputs, inputs
        self._weight = torch.randn(outputs, inputs).bfloat16()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self._weight)


def _of_layer(config: dict[str, Any], rows: str) -> Iterable[Listed]:
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    for outputs, inputs in ((heads + 2 * kv, hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)):
        yield _StandIn(outputs, inputs), rows


def _of_target(config: dict[str, Any]) -> Iterable[Listed]:
    for _ in range(config["num_hidden_layers"]):
        yield from _of_layer(config, "verify")
    yield _StandIn(config["vocab_size"], config["hidden_size"]), "head"


def _of_draft(config: dict[str, Any]) -> Iterable[Listed]:
    nested, hidden = config["dflash_config"], config["hidden_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    for _ in range(config["num_hidden_layers"]):
        yield from _of_layer(config, "block")
        if "conv_kernel_size" in nested:
            taps = 2 * nested["conv_kernel_size"] * (hidden // nested["conv_group_size"])
            yield from ((_StandIn(taps, hidden), "block") for _ in range(2))
    yield _StandIn(hidden, len(nested["target_layer_ids"]) * hidden), "context"
    yield _StandIn(2 * kv * config["num_hidden_layers"], hidden), "context"
