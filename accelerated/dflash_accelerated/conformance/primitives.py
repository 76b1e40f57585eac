"""NUM and RNG ops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from dflash_accelerated import rounds
from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.ops import linear, random, rounding


def _round_to(dtype: torch.dtype) -> Callable[[Call], Answer]:
    def run(call: Call) -> Answer:
        return {"y": rounding.round_sum(call.raw("hi"), call.raw("lo"), dtype)}

    return run


def _contract(call: Call) -> Answer:
    return {"y": linear.linear(call.act("x"), call.weight("w"))}


def _uniform(call: Call) -> Answer:
    key = random.keys(*(call.array(name) for name in ("seed", "position", "purpose", "sub")))
    return {"key": key, "u": random.uniforms(key)}


def _round_keys(call: Call) -> Answer:
    frontier, extent, accepted = (call.integer(name) for name in ("frontier", "extent", "accepted"))
    table = key_table(rounds.round_keys([frontier], [extent], extent))
    return {"accept": table[:extent], "terminal": table[extent + accepted]}


def key_table(keys: rounds.DrawKeys) -> NDArray[np.int64]:
    """The keys of one request, one a row: [N, 3]."""
    return np.concatenate(np.broadcast_arrays(*keys)).T


def _plain_keys(call: Call) -> Answer:
    return {
        "prefill": list(rounds.prefill_key(call.integer("prompt_length"))),
        "decode": list(rounds.decode_key(call.integer("frontier"))),
    }


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "num.round_bf16": _round_to(torch.bfloat16),
    "num.round_fp16": _round_to(torch.float16),
    "num.round_fp32": _round_to(torch.float32),
    "num.contract": _contract,
    "rng.uniform": _uniform,
    "rng.round_keys": _round_keys,
    "rng.plain_keys": _plain_keys,
}
