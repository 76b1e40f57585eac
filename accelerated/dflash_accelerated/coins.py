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


def of_keys(seeds: Sequence[int], keys: rounds.DrawKeys) -> NDArray[np.float32]:
    """The uniforms FP32 [B, N] of these draws, by B requests of these seeds; keys of one row are those of all."""
    return random.uniforms(random.keys(np.array(seeds, np.uint64)[:, None], *keys))


def of_rounds(seeds: Sequence[int], frontiers: Sequence[int], extents: Sequence[int], drafts: int) -> Coins:
    """Those of one round of each request, in a batch of width `drafts`."""
    drawn = of_keys(seeds, rounds.round_keys(frontiers, extents, drafts))
    tested = np.arange(drafts) < np.array(extents)[:, None]
    return Coins(np.where(tested, drawn[:, :drafts], np.float32(0)), drawn[:, drafts:])


def of_single_draws(seeds: Sequence[int], keys: Sequence[rounds.DrawKey]) -> Coins:
    """One draw of each request, with nothing proposed before it."""
    return Coins(np.zeros((len(seeds), 0), np.float32), of_keys(seeds, rounds.single_keys(keys)))
