"""The keyed uniforms of a round, which are known before its logits are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash_accelerated import rounds
from dflash_accelerated.ops import random


class Coins(NamedTuple):
    """Uniforms FP32 of B requests: `accept` [B, K], and `terminal` [B, K + 1], one for each count that may be accepted.

    Accept tests that a request does not have hold 0.
    """

    accept: NDArray[np.float32]
    terminal: NDArray[np.float32]


def of_keys(seeds: Sequence[int], keys: Sequence[rounds.DrawKey]) -> NDArray[np.float32]:
    """The uniforms FP32 [B, N] that the same N keys give each of B seeds."""
    return _drawn(seeds, np.array(keys, dtype=np.int64).reshape(1, -1, 3))


def of_rounds(seeds: Sequence[int], frontiers: Sequence[int], extents: Sequence[int], drafts: int) -> Coins:
    """Those of one round of each request, in a batch of width `drafts`."""
    keys = rounds.round_keys(frontiers, extents, drafts)
    accept = np.where(keys.tested, _drawn(seeds, keys.accept), np.float32(0))
    return Coins(accept, _drawn(seeds, keys.terminal))


def of_single_draws(seeds: Sequence[int], keys: Sequence[rounds.DrawKey]) -> Coins:
    """One draw of each request, with nothing proposed before it."""
    table = np.array(keys, dtype=np.int64)[:, None]
    return Coins(np.zeros((len(seeds), 0), np.float32), _drawn(seeds, table))


def _drawn(seeds: Sequence[int], keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """FP32 [B, N] of keys [B, N, 3], or [1, N, 3] for all, of requests with these seeds."""
    position, purpose, sub = np.moveaxis(keys, -1, 0)
    return random.uniforms(random.keys(np.array(seeds, np.uint64)[:, None], position, purpose, sub))
