"""Ranking in Triton: one 64-bit key per score, which also says whose score it is."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.ops.compiling import OPTIONS

CHUNK = 1024
"""How many keys a program of the merge orders."""

NOTHING = tl.constexpr(-(2**63))
"""Below the key of every score."""


@triton.jit
def key_of(score, ids):
    """The key I64 of FP32 scores, by which they are ordered: descending, lower id first on ties; ids below 2³².

    The score's bits as an integer of the same order (adding 0 turns -0 into +0), then the id, negated.
    """
    bits = (score + 0.0).to(tl.int32, bitcast=True).to(tl.int64)
    return ((bits ^ ((bits >> 63) & 0x7FFFFFFF)) << 32) - ids


@triton.jit
def id_of(key):
    """The id I64 in a key."""
    return (-key) & 0xFFFFFFFF


@triton.jit
def score_of(key):
    """The score FP32 in a key."""
    bits = (key + id_of(key)) >> 32
    return (bits ^ ((bits >> 63) & 0x7FFFFFFF)).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def best_keys(keys, COUNT: tl.constexpr, PLACES: tl.constexpr):
    """The COUNT largest of each row of keys [M, N], descending, in the first of [M, PLACES]. No key comes twice."""
    place = tl.arange(0, PLACES)[None, :]
    best = tl.full([keys.shape[0], PLACES], NOTHING, tl.int64)
    for rank in range(COUNT):
        top = tl.max(keys, axis=1)[:, None]
        best = tl.where(place == rank, top, best)
        keys = tl.where(keys == top, NOTHING, keys)
    return best


@triton.jit
def _merge(keys, merged, width, COUNT: tl.constexpr, PLACES: tl.constexpr, CHUNK: tl.constexpr):
    """The COUNT largest of one chunk of one row: keys [N, width] to merged [N, chunks, COUNT]."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    own = tl.load(keys + row * width + at, mask=at < width, other=NOTHING)
    place = tl.arange(0, PLACES)
    best = best_keys(own[None, :], COUNT, PLACES)
    to = merged + (row * tl.num_programs(1) + chunk) * COUNT
    tl.store(to + place[None, :], best, mask=place[None, :] < COUNT)


def merged(keys: Tensor, count: int) -> Tensor:
    """Of keys I64 [N, W], so many that one program can order them: [N, at most CHUNK], the `count` best among them."""
    while keys.shape[1] > CHUNK:
        rows, width = keys.shape
        chunks = triton.cdiv(width, CHUNK)
        made = keys.new_empty(rows, chunks * count)
        _merge[(rows, chunks)](keys, made, width, count, triton.next_power_of_2(count), CHUNK, **OPTIONS)
        keys = made
    return keys
