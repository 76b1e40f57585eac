"""The keyed counter hash in NumPy, whose unsigned integers wrap by definition (PyTorch has no 64-bit ones that do)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _words(values: ArrayLike, dtype: Any) -> NDArray[np.uint64]:
    """At least one-dimensional, because NumPy warns of wrapping in scalars only."""
    return np.atleast_1d(np.asarray(values, dtype=np.int64)).astype(dtype).astype(np.uint64)


def keys(seed: ArrayLike, position: ArrayLike, purpose: ArrayLike, sub: ArrayLike) -> NDArray[np.uint64]:
    """The 64-bit keys of draws with these seeds (U64) and position, purpose (I32) and sub-index (U32), all [N] or of
    any shapes that fit together.

    A key depends on these four alone, not on the row of a batch, its width, or how many draws came before.

    Clauses: RNG-001, RNG-002, RNG-007. Source: SplitMix64; Infernix src/ops/kernel/sampling_device.cuh.
    """
    seeds = np.atleast_1d(np.asarray(seed, dtype=np.uint64))
    inner = _mix(seeds ^ (_words(position, np.uint32) * np.uint64(0xD1B54A32D192ED03)))
    draws = _words(sub, np.uint32) * np.uint64(0x2545F4914F6CDD1D)
    return _mix(inner ^ (_words(purpose, np.uint32) << np.uint64(21)) ^ draws)


def uniforms(key: NDArray[np.uint64]) -> NDArray[np.float32]:
    """The top 24 bits of each key times 2⁻²⁴: FP32 in [0, 1), in the keys' shape.

    Clause: RNG-003. Source: Infernix src/ops/kernel/sampling_device.cuh.
    """
    return (key >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
