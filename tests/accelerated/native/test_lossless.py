"""With the engine's own products no row depends on those beside it: what is verified is what plain decoding reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_accelerated import Engine, Generation, RoundTrace
from dflash_accelerated.native import available
from dflash_vectors.planted import Planted
from torch import Tensor

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")

SENSES: dict[str, dict[str, Any]] = {
    "zlab": {},
    "zlab-bf16": {"dtype": torch.bfloat16},
    "ninfer": {"profile": "ninfer", "dtype": torch.bfloat16},
}
TOKENS = 60


@pytest.fixture(scope="module", params=SENSES)
def sense(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SENSES[request.param] | {"kernels": "native"}


@pytest.fixture(scope="module", params=["dflash", "dflash2"])
def pair(
    request: pytest.FixtureRequest, sense: dict[str, Any], planted_pair: Callable[..., tuple[Path, Planted]],
    load: Callable[..., Engine],
) -> tuple[Engine, Planted]:  # fmt: skip
    folder, plan = planted_pair("standard", request.param)
    return load(folder, draft_tokens=7, public_tokens=plan.public, **sense), plan


def by_position(
    decode: Callable[..., Generation], prompt: list[int], **options: Any
) -> tuple[list[int], dict[int, Tensor]]:
    """The tokens, and the target's logits of each position from which one was taken."""
    traces: list[RoundTrace] = []
    made = decode(prompt, TOKENS, stop_ids=[], observer=traces.append, **options)
    rows = {}
    for trace in traces:
        for place, row in enumerate(trace.stages["target.logits"]):
            rows[trace.frontier + place] = row  # what was rejected is written over by the next round
    return list(made.tokens), rows


def test_what_is_verified_has_the_bits_of_plain_decoding(pair: tuple[Engine, Planted]) -> None:
    engine, plan = pair
    for prompt in plan.prompts[:3]:
        tokens, verified = by_position(engine.generate, list(prompt))
        plain, steps = by_position(engine.decode_plain, list(prompt))
        assert tokens == plain
        shared = sorted(steps.keys() & verified.keys())
        assert len(shared) >= TOKENS - 2
        assert all(torch.equal(verified[at], steps[at]) for at in shared)


def test_a_request_has_the_bits_that_it_has_alone(pair: tuple[Engine, Planted]) -> None:
    engine, plan = pair
    seen: dict[int, list[Tensor]] = {}

    def request(at: int, into: list[Tensor]) -> Any:
        def observe(trace: RoundTrace) -> None:
            into.extend(trace.stages[name] for name in ("target.logits", "hidden") if name in trace.stages)

        return engine.request(
            plan.prompts[at % len(plan.prompts)], 20 + at, stop_ids=[], temperature=0.5 * (at % 2), seed=at,
            draft_tokens=7 - at % 3, observer=observe,
        )  # fmt: skip

    together = engine.generate_batch([request(at, seen.setdefault(at, [])) for at in range(8)])
    for at in range(8):
        own: list[Tensor] = []
        (alone,) = engine.generate_batch([request(at, own)])
        assert alone.tokens == together[at].tokens
        assert len(own) == len(seen[at])
        assert all(torch.equal(one, other) for one, other in zip(own, seen[at], strict=True))
