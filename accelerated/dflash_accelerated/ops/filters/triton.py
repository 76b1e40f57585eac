"""The processed distribution in Triton, for profiles whose support is capped.

Where it is every id, PyTorch's runs: to bound a whole row it orders the row's best ids first, and looks on the host
whether they were enough, so that a CUDA graph cannot hold it.
"""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.filters import torch as plainly
from dflash_accelerated.ops.filters.torch import Distribution
from dflash_accelerated.ops.ranking.triton import CHUNK, NOTHING, best_keys, id_of, key_of, merged, score_of
from dflash_accelerated.settings import SettingRows

TILE = 1024
"""Scores to a program of the first pass."""


@triton.jit
def _best_of_tile(
    scores, keys, vocabulary, row_stride, COUNT: tl.constexpr, PLACES: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The COUNT best of a tile of one row: keys [N, tiles, COUNT]."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, place = tile * TILE + tl.arange(0, TILE), tl.arange(0, PLACES)[None, :]
    score = tl.load(scores + row * row_stride + at, mask=at < vocabulary, other=0)
    own = tl.where(at < vocabulary, key_of(score, at.to(tl.int64)), NOTHING)
    best = best_keys(own[None, :], COUNT, PLACES)
    tl.store(keys + (row * tl.num_programs(1) + tile) * COUNT + place, best, mask=place < COUNT)


@triton.jit
def _running_sums(weights, COUNT: tl.constexpr):
    """The sums float64 of what comes before each of float64 weights [N], one after another, and of the first COUNT."""
    place, total = tl.arange(0, weights.shape[0]), tl.full([], 0, tl.float64)
    sums = tl.zeros_like(weights)
    for rank in range(COUNT):
        sums = tl.where(place == rank, total, sums)
        total += tl.sum(tl.where(place == rank, weights, 0.0), axis=0)
    return sums, total


@triton.jit
def _law_of_row(
    keys, temperature, top_k, top_p, min_p, support, p, width,
    CAP: tl.constexpr, COUNT: tl.constexpr, PLACES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Top-k, min-p and top-p among the COUNT best of a row of keys [N, width], and what is left over its sum."""
    row, at, place = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNK), tl.arange(0, PLACES)
    own = tl.load(keys + row * width + at, mask=at < width, other=NOTHING)
    best = tl.reshape(best_keys(own[None, :], COUNT, PLACES), [PLACES])
    k, share, floor = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    limit, score = tl.where((k >= 1) & (k < CAP), k, CAP), score_of(best)
    within = (place < COUNT) & (place < limit) & (score > float("-inf"))
    largest = tl.sum(tl.where(place == 0, score, 0.0), axis=0)
    heated = tl.div_rn(score - largest, tl.zeros_like(score) + tl.load(temperature + row))
    weight = tl.where(within, tl.exp(heated.to(tl.float64)).to(tl.float32), 0.0)
    wide = weight.to(tl.float64)
    before, total = _running_sums(wide, COUNT)
    likely = weight >= floor * tl.sum(tl.where(place == 0, weight, 0.0), axis=0)
    enough = tl.where(share >= 1, float("inf"), share.to(tl.float64) * total)
    kept = within & ((likely & (before < enough)) | (place == 0))
    left = tl.where(kept, wide, 0.0)
    held = place < COUNT
    tl.store(p + row * COUNT + place, (left / tl.sum(left, axis=0)).to(tl.float32), mask=held)
    tl.store(support + row * COUNT + place, tl.where(kept, id_of(best), -1), mask=held)


def distribution(scores: Tensor, rows: SettingRows, numerics: Numerics) -> Distribution:
    """softmax(score / T) of what a row's filters leave: scores FP32 [N, V].

    Profile axis `sampling_cap`: with a cap n > 0 the support is the n largest scores, descending, lower id first on
    ties; with 0 it is every id in ascending order, and PyTorch computes it. A refused row's probabilities mean nothing.

    Clauses: PROC-003, PROC-004, PROC-011 to PROC-016. Source: Infernix include/infernix/ops/sampling.h,
    src/ops/kernel/sampling_device.cuh; dflash 0.1.0 _sampling_probs.
    """
    cap = int(numerics.profile.axes["sampling_cap"])
    if not cap:
        return plainly.distribution(scores, rows, replace(numerics, kernels="torch"))
    count, vocabulary = min(rows.width or scores.shape[1], scores.shape[1]), scores.shape[1]
    support = rows.top_k.new_empty(len(scores), count)
    p = scores.new_empty(len(scores), count)
    if not len(scores):
        return Distribution(support, p)
    tiles, places = triton.cdiv(vocabulary, TILE), triton.next_power_of_2(count)
    keys = support.new_empty(len(scores), tiles * count)
    _best_of_tile[(len(scores), tiles)](
        scores, keys, vocabulary, scores.stride(0), COUNT=count, PLACES=places, TILE=TILE, **OPTIONS
    )
    keys = merged(keys, count)
    settings = (each.contiguous() for each in (rows.temperature, rows.top_k, rows.top_p, rows.min_p))
    _law_of_row[(len(scores),)](
        keys, *settings, support, p, keys.shape[1], CAP=cap, COUNT=count, PLACES=places, CHUNK=CHUNK, **OPTIONS
    )
    return Distribution(support, p)
