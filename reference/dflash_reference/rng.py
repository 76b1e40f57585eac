"""Keyed randomness: a counter hash that gives every draw of a request its own uniform, and the keys of the draws."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from dflash_spec.registry import Profile
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]
Int32 = NDArray[np.int32]

PREFILL, DECODE, ACCEPT, CORRECTION, BONUS, PROPOSAL = range(6)
"""Purposes: first token after a prompt, plain step, accept test, end of a round with a rejection and without one,
and DFlash2's own draw."""


class Uniform(NamedTuple):
    """key: [N] uint64. u: [N] float64, multiples of 2^-24 in [0, 1)."""

    key: UInt64
    u: NDArray[np.float64]


class RoundKeys(NamedTuple):
    """accept: [P, 3] and terminal: [3] int32, each row position, purpose, sub-index."""

    accept: Int32
    terminal: Int32


class PlainKeys(NamedTuple):
    """prefill: [3] and decode: [3] int32, position, purpose, sub-index."""

    prefill: Int32
    decode: Int32


class BatchUniforms(NamedTuple):
    """accept: [B, K] and terminal: [B] float64, multiples of 2^-24 in [0, 1)."""

    accept: NDArray[np.float64]
    terminal: NDArray[np.float64]


class ProposalKeys(NamedTuple):
    """keys: [K, 3] int32, position, purpose, sub-index."""

    keys: Int32


def mix(x: UInt64) -> UInt64:
    """One SplitMix64 output of each state in `x` (uint64, any shape).

    Clause: RNG-001
    Source: SplitMix64 (Steele, Lea, Flood 2014); Infernix include/infernix/ops/sampling.h.
    """
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw_key(seed: Any, position: Any, purpose: Any, sub: Any) -> UInt64:
    """The 64-bit key of each draw: seed uint64 [N], position and purpose int32 [N], sub uint32 [N] -> [N].

    Clause: RNG-002
    Source: Infernix src/ops/kernel/sampling_device.cuh.
    """
    first = mix(_words(seed, 64) ^ (_words(position, 32) * np.uint64(0xD1B54A32D192ED03)))
    return mix(first ^ (_words(purpose, 32) << np.uint64(21)) ^ (_words(sub, 32) * np.uint64(0x2545F4914F6CDD1D)))


def _words(values: Any, bits: int) -> UInt64:
    """`values` modulo 2^bits as a uint64 array of at least one axis (NumPy warns of wrap-around only on scalars)."""
    words = np.atleast_1d(np.asarray(values)).astype(np.uint64)
    return words & np.uint64((1 << bits) - 1)


def to_uniform(key: UInt64) -> NDArray[np.float64]:
    """The uniform of each key: its top 24 bits times 2^-24, so 0 occurs and 1 does not.

    Clause: RNG-003
    Source: Infernix src/ops/kernel/sampling_device.cuh.
    """
    return (key >> np.uint64(40)).astype(np.float64) * 2.0**-24


def uniform(seed: Any, position: Any, purpose: Any, sub: Any, profile: Profile) -> Uniform:
    """The op rng.uniform: key and uniform of N draws."""
    key = draw_key(seed, position, purpose, sub)
    return Uniform(key, to_uniform(key))


def draw(seed: int, position: int, purpose: int, sub: int = 0) -> float:
    """The uniform of one draw."""
    return float(to_uniform(draw_key(seed, position, purpose, sub))[0])


def accept_keys(frontier: int, extent: int) -> Int32:
    """The keys of the accept tests of a round's `extent` proposals, [P, 3]; `frontier` is the anchor's position.

    Clause: RNG-004
    Source: Infernix src/ops/kernel/speculative_round.cuh.
    """
    return np.array([(frontier + slot + 1, ACCEPT, 0) for slot in range(extent)], np.int32).reshape(extent, 3)


def terminal_key(frontier: int, extent: int, accepted: int) -> Int32:
    """The key of the token that ends a round with `accepted` of `extent` proposals kept, [3].

    Clause: RNG-005
    Source: Infernix src/ops/kernel/speculative_round.cuh; NInfer docs/maintainer/dflash.md, verification.
    """
    purpose = CORRECTION if accepted < extent else BONUS
    return np.array((frontier + accepted + 1, purpose, 0), np.int32)


def round_keys(frontier: int, extent: int, accepted: int, profile: Profile) -> RoundKeys:
    """The op rng.round_keys: every key of one round."""
    return RoundKeys(accept_keys(frontier, extent), terminal_key(frontier, extent, accepted))


def plain_keys(prompt_length: int, frontier: int, profile: Profile) -> PlainKeys:
    """The key of the first token after a prompt, and of one plain step whose input token is at `frontier`.

    Clause: RNG-006
    Source: Infernix src/models/qwen3_5/program/prefill.cpp and decode.cpp.
    """
    prefill = np.array((prompt_length, PREFILL, 0), np.int32)
    return PlainKeys(prefill, np.array((frontier, DECODE, 0), np.int32))


def proposal_keys(frontier: int, drafts: int, profile: Profile) -> ProposalKeys:
    """The key of each draw of a DFlash2 proposal: step i draws the token of position frontier + i + 1 at frontier + i.

    Clause: SEL-008
    Source: Infernix include/infernix/ops/candidate_selector.h.
    """
    return ProposalKeys(np.array([(frontier + step, PROPOSAL, 0) for step in range(drafts)], np.int32).reshape(-1, 3))


def batch_uniforms(
    seeds: Any, frontiers: Any, extents: Any, accepted: Any, drafts: int, drawn: int, profile: Profile
) -> BatchUniforms:
    """The uniforms of one round of B requests in a batch of width `drafts` = K: every argument but it is [B].

    Neither a request's place in the batch, nor the width, nor how many uniforms were `drawn` before counts.

    Clause: RNG-007
    Source: Infernix include/infernix/ops/sampling.h.
    """
    accept, terminal = np.zeros((len(seeds), drafts)), np.zeros(len(seeds))
    for row, (seed, frontier, extent, kept) in enumerate(zip(seeds, frontiers, extents, accepted, strict=True)):
        keys = round_keys(int(frontier), int(extent), int(kept), profile)
        for slot, key in enumerate(keys.accept):
            accept[row, slot] = draw(seed, *key)
        terminal[row] = draw(seed, *keys.terminal)
    return BatchUniforms(accept, terminal)
