"""Ends: how many of a round's licensed tokens are kept, and why a request ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array


class Preview(NamedTuple):
    """kept: N. terminal: 1 where the request ends with this round."""

    kept: int
    terminal: int


def preview(licensed: Array, stop_ids: Array, remaining: int, profile: Profile) -> Preview:
    """How many of the licensed tokens [L] are kept, with `remaining` tokens left of the budget.

    Raises RequestError if nothing is licensed or nothing remains.

    Clause: STOP-003
    Source: NInfer docs/maintainer/dflash.md, commit; dflash 0.1.0 dflash_generate.
    """
    if len(licensed) < 1 or remaining < 1:
        raise RequestError(
            f"stop.preview: {len(licensed)} licensed, {remaining} remaining, expected at least 1 of each"
        )
    affordable = licensed[:remaining]
    kept = through_first_stop(affordable, stop_ids)
    stopped = bool(np.isin(affordable[kept - 1], stop_ids))
    return Preview(kept, int(stopped or kept == remaining))


def through_first_stop(tokens: Array, stop_ids: Array) -> int:
    """How many of tokens [L] stand up to the first stop id, itself included; all of them if there is none.

    Clause: STOP-001
    Source: NInfer docs/maintainer/dflash.md, commit; vllm-project/vllm pull 12193.
    """
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return index + 1
    return len(tokens)
