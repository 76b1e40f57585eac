"""Keyed numbers for the checker: points to ask at, and seeds to hand to an implementation."""

from __future__ import annotations

import hashlib

import numpy as np
from dflash_spec.tensors import Array


def hashes(key: str, count: int) -> Array:
    """uint64 [count]: SplitMix64 from the SHA-256 of the key. Equal keys give equal numbers on every machine."""
    start = np.uint64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little"))
    with np.errstate(over="ignore"):
        state = start + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, count + 1, dtype=np.uint64)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
