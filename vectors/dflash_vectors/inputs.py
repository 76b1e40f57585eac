"""Inputs of the cases, all from one keyed counter hash, so that they are the same bytes on every machine.

Every function takes a `key`, any text; equal keys give equal values. Floats come back as float64 arrays that
hold values of the dtype named. This module does not use the reference, so a planted fault cannot change inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
from dflash_spec.files import canonical_json
from dflash_spec.tensors import Array

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)
PRIMES = (7, 11, 13, 5, 3)
ROOT_3 = 1.7320508075688772


def hashes(key: str, shape: tuple[int, ...]) -> Array:
    """uint64 [shape]: the SplitMix64 stream whose seed is the key's SHA-256."""
    seed = np.uint64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little"))
    with np.errstate(over="ignore"):
        state = seed + GOLDEN * np.arange(1, prod(shape) + 1, dtype=np.uint64)
        state = (state ^ (state >> np.uint64(30))) * FIRST
        state = (state ^ (state >> np.uint64(27))) * SECOND
    return (state ^ (state >> np.uint64(31))).reshape(shape)


def represent(values: Any, dtype: str) -> Array:
    """`values` moved to values of `dtype` (BF16, F16, F32), as float64. Not a rounding rule of the spec."""
    narrow = np.asarray(values, dtype=np.float64).astype(np.float32)
    if dtype == "BF16":
        bits = np.atleast_1d(narrow).view(np.uint32)
        even = (bits >> np.uint32(16)) & np.uint32(1)
        narrow = ((bits + np.uint32(0x7FFF) + even) & np.uint32(0xFFFF0000)).view(np.float32).reshape(narrow.shape)
    elif dtype == "F16":
        narrow = narrow.astype(np.float16)
    elif dtype != "F32":
        raise ValueError(f"dtype {dtype!r}, expected BF16, F16 or F32")
    return narrow.astype(np.float64)


def fp32(value: float) -> float:
    """The FP32 value nearest to `value`: for scalars such as eps, theta, temperature."""
    return float(np.float32(value))


def uniform(key: str, shape: tuple[int, ...], low: float, high: float, dtype: str) -> Array:
    """Values spread evenly over [low, high]."""
    unit = (hashes(key, shape) >> np.uint64(40)).astype(np.float64) * 2.0**-24
    return represent(low + (high - low) * unit, dtype)


def normal_like(key: str, shape: tuple[int, ...], scale: float, dtype: str) -> Array:
    """Bell-shaped values with standard deviation `scale` and no value beyond 3.5 scale (a sum of four uniforms)."""
    bits = hashes(key, shape)
    lanes = sum(((bits >> np.uint64(16 * lane)) & np.uint64(0xFFFF)).astype(np.float64) for lane in range(4))
    return represent((lanes - 2 * 65535.0) / 65536.0 * ROOT_3 * scale, dtype)


def lattice(key: str, shape: tuple[int, ...], step: float, limit: float) -> Array:
    """Multiples of `step` with magnitude at most `limit` (both powers of two, or whole multiples of `step`).

    Products and sums of few such values are exact in FP32 in any order.
    """
    count = int(limit / step)
    return ((hashes(key, shape) >> np.uint64(11)) % np.uint64(2 * count + 1)).astype(np.float64) * step - count * step


def telling(key: str, shape: tuple[int, ...], dtype: str) -> Array:
    """Values within 2 of 0, in which any two slices along any axis differ by far more than a rounding.

    Each axis adds steps of its own prime, a keyed uniform tells single elements apart.
    """
    values = uniform(key, shape, -0.5, 0.5, "F32")
    for axis, size in enumerate(shape):
        steps = (np.arange(size) * PRIMES[axis % len(PRIMES)]) % 17
        along = [1] * len(shape)
        along[axis] = size
        values = values + ((steps - 8) / 16).reshape(along)
    values = represent(values, dtype)
    for axis, size in enumerate(shape):
        rows = np.moveaxis(values, axis, 0).reshape(size, -1)
        for left, right in combinations(range(size), 2):
            if np.array_equal(rows[left], rows[right]):
                raise ValueError(f"telling({key!r}): slices {left} and {right} of axis {axis} are equal")
    return values


def weights(key: str, shape: tuple[int, ...], dtype: str, gain: float = 1.0) -> Array:
    """A projection [out, in] that keeps the scale of its input: standard deviation gain / sqrt(in)."""
    return normal_like(key, shape, gain / float(np.sqrt(float(shape[-1]))), dtype)


def norm_weights(key: str, shape: tuple[int, ...], dtype: str) -> Array:
    """Norm weights from 0.25 to 1.75, far enough from 1 that weight, 1 and 1 + weight are told apart."""
    return uniform(key, shape, 0.25, 1.75, dtype)


def tokens(key: str, count: int, vocabulary: int) -> Array:
    """int64 [count] ids below `vocabulary`; no two neighbours are equal."""
    ids = (hashes(key, (count,)) % np.uint64(vocabulary)).astype(np.int64)
    for index in range(1, count):
        if ids[index] == ids[index - 1]:
            ids[index] = (ids[index] + 1) % vocabulary
    return ids


def text(content: str | bytes | Mapping[str, Any]) -> Array:
    """uint8 [bytes]: a UTF-8 text, or a mapping as JSON, as the inputs of the config ops take it."""
    if isinstance(content, Mapping):
        content = canonical_json(content)
    data = content.encode() if isinstance(content, str) else content
    return np.frombuffer(data, dtype=np.uint8)
