"""Rounds of a whole batch, committed together or not at all."""

from dflash_accelerated.ops.commits.torch import (
    CANCELLED,
    ENDS,
    GOES_ON,
    Batch,
    Resolved,
    check_once,
    check_rounds,
    effects,
    features,
    hidden,
    ready,
    replay_round,
    resolve,
)

__all__ = [
    "CANCELLED", "ENDS", "GOES_ON", "Batch", "Resolved", "check_once", "check_rounds", "effects", "features", "hidden",
    "ready", "replay_round", "resolve",
]  # fmt: skip
