"""Faults of the keyed hash and of the keys that draws use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from dflash_reference import rng
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

KEYED = ("ninfer",)
SAMPLING = "Infernix include/infernix/ops/sampling.h"
DEVICE = "Infernix src/ops/kernel/sampling_device.cuh"
ROUND = "Infernix include/infernix/ops/speculative_round.h"
U64 = np.uint64


def _mix(x: Array) -> Array:
    """SplitMix64's two multiply-xorshift rounds alone."""
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> U64(31))
    return mixed


@fault("dflash_reference.rng.mix", clauses=("RNG-001",), report=SAMPLING, effect="output", profiles=KEYED)
def mixing_constant_added_outside(true: Function) -> Function:
    """The additive constant is added after the multiply-xorshift rounds, so that mixing 0 gives the constant."""
    return lambda x: _mix(x) + U64(0x9E3779B97F4A7C15)


@fault("dflash_reference.rng.mix", clauses=("RNG-001",), report=SAMPLING, effect="output", profiles=KEYED)
def mixing_constant_left_out(true: Function) -> Function:
    """The finaliser runs without the additive constant, so that mixing 0 gives 0."""
    return _mix


@fault("dflash_reference.rng.draw_key", clauses=("RNG-002",), report=SAMPLING, effect="output", profiles=KEYED)
def purpose_not_shifted(true: Function) -> Function:
    """The purpose is mixed in without its shift by 21 bits."""
    return lambda seed, position, purpose, sub: true(seed, position, np.asarray(purpose) * 2.0**-21, sub)


@fault("dflash_reference.rng.draw_key", clauses=("RNG-002",), report=ROUND, effect="output", profiles=KEYED)
def purpose_ignored(true: Function) -> Function:
    """All purposes share one stream."""
    return lambda seed, position, purpose, sub: true(seed, position, np.zeros_like(purpose), sub)


@fault("dflash_reference.rng.draw_key", clauses=("RNG-002",), report=SAMPLING, effect="output", profiles=KEYED)
def sub_index_ignored(true: Function) -> Function:
    """Siblings of one node share one draw."""
    return lambda seed, position, purpose, sub: true(seed, position, purpose, np.zeros_like(sub))


@fault(
    "dflash_reference.rng.draw_key", clauses=("RNG-002",), effect="output", profiles=KEYED,
    report="https://github.com/vllm-project/vllm/issues/6038",
)  # fmt: skip
def seed_cut_to_32_bits(true: Function) -> Function:
    """Only the seed's low half reaches the hash."""

    def wrong(seed: Any, position: Any, purpose: Any, sub: Any) -> Any:
        return true(np.asarray(seed, dtype=U64) & U64(0xFFFFFFFF), position, purpose, sub)

    return wrong


@fault(
    "dflash_reference.rng.draw_key", clauses=("RNG-002",), effect="output", profiles=KEYED,
    report="https://github.com/NVIDIA/TensorRT-LLM/pull/17599",
)  # fmt: skip
def seed_ignored(true: Function) -> Function:
    """Every request draws from one engine-wide stream."""
    return lambda seed, position, purpose, sub: true(np.zeros_like(seed), position, purpose, sub)


@fault("dflash_reference.rng.to_uniform", clauses=("RNG-003",), report=SAMPLING, effect="output", profiles=KEYED)
def uniform_from_23_bits(true: Function) -> Function:
    """The uniform has 23 bits, as the mantissa trick of other generators gives."""
    return lambda key: (key >> U64(41)).astype(np.float64) * 2.0**-23


@fault("dflash_reference.rng.to_uniform", clauses=("RNG-003",), report=SAMPLING, effect="output", profiles=KEYED)
def uniform_from_low_bits(true: Function) -> Function:
    """The uniform takes the key's low 24 bits."""
    return lambda key: (key & U64(0xFFFFFF)).astype(np.float64) * 2.0**-24


@fault("dflash_reference.rng.to_uniform", clauses=("RNG-003",), report=SAMPLING, effect="output", profiles=KEYED)
def uniform_rounds_up_to_one(true: Function) -> Function:
    """The whole key is divided by 2^64 in FP32, whose rounding reaches 1."""
    return lambda key: (key.astype(np.float32) * np.float32(2.0**-64)).astype(np.float64)


@fault(
    "dflash_reference.rng.to_uniform", clauses=("RNG-003",), effect="output", profiles=KEYED,
    report="https://github.com/pytorch/pytorch/issues/16706",
)  # fmt: skip
def uniform_never_zero(true: Function) -> Function:
    """A uniform of 0 is replaced by the smallest step."""
    return lambda key: np.maximum(true(key), 2.0**-24)


@fault("dflash_reference.rng.accept_keys", clauses=("RNG-004",), report=ROUND, effect="output", profiles=KEYED)
def accept_test_keyed_at_the_input(true: Function) -> Function:
    """Proposal i + 1 is tested with the key of position F + i, the row that judges it."""
    return lambda frontier, extent: true(frontier - 1, extent)


@fault(
    "dflash_reference.rng.accept_keys", clauses=("RNG-004",), effect="output", profiles=KEYED,
    report="https://github.com/PaddlePaddle/FastDeploy/pull/5568",
)  # fmt: skip
def one_coin_for_the_round(true: Function) -> Function:
    """All accept tests of a round draw from one key."""

    def wrong(frontier: int, extent: int) -> Array:
        keys: Array = true(frontier, extent)
        keys[:, 0] = frontier + 1
        return keys

    return wrong


@fault(
    "dflash_reference.rng.terminal_key", clauses=("RNG-005",), effect="output", profiles=KEYED,
    report="https://github.com/sgl-project/sglang/pull/7231",
)  # fmt: skip
def accept_coin_reused_for_the_correction(true: Function) -> Function:
    """The correction draws with the purpose of the accept test that rejected."""

    def wrong(frontier: int, extent: int, accepted: int) -> Array:
        key: Array = true(frontier, extent, accepted)
        if accepted < extent:
            key[1] = 2
        return key

    return wrong


@fault("dflash_reference.rng.terminal_key", clauses=("RNG-005",), report=ROUND, effect="output", profiles=KEYED)
def bonus_keyed_as_a_correction(true: Function) -> Function:
    """A round that accepts everything draws its bonus with the purpose of a correction."""

    def wrong(frontier: int, extent: int, accepted: int) -> Array:
        key: Array = true(frontier, extent, accepted)
        key[1] = 3
        return key

    return wrong


@fault("dflash_reference.rng.terminal_key", clauses=("RNG-005",), report=ROUND, effect="output", profiles=KEYED)
def terminal_keyed_at_the_last_accepted(true: Function) -> Function:
    """The terminal token draws at the position of the token before it."""

    def wrong(frontier: int, extent: int, accepted: int) -> Array:
        key: Array = true(frontier, extent, accepted)
        key[0] -= 1
        return key

    return wrong


@fault("dflash_reference.rng.terminal_key", clauses=("RNG-005",), report=ROUND, effect="output", profiles=KEYED)
def empty_round_keyed_as_plain_decode(true: Function) -> Function:
    """A round without proposals draws with the purpose and position of a plain decode step."""

    def wrong(frontier: int, extent: int, accepted: int) -> Array:
        key: Array = true(frontier, extent, accepted)
        if extent == 0:
            key[:2] = frontier, 1
        return key

    return wrong


@fault(
    "dflash_reference.rng.plain_keys", clauses=("RNG-006",), effect="output", profiles=KEYED,
    report="Infernix src/models/qwen3_5/program/prefill.cpp",
)  # fmt: skip
def first_token_keyed_at_the_last_prompt_row(true: Function) -> Function:
    """The first token draws at position n - 1."""
    return lambda prompt_length, frontier, profile: true(prompt_length - 1, frontier, profile)


@fault(
    "dflash_reference.rng.plain_keys", clauses=("RNG-006",), effect="output", profiles=KEYED,
    report="Infernix src/models/qwen3_5/program/decode.cpp",
)  # fmt: skip
def decode_keyed_at_the_emitted_token(true: Function) -> Function:
    """A plain decode step draws at F + 1."""
    return lambda prompt_length, frontier, profile: true(prompt_length, frontier + 1, profile)


def _key(seed: Any, position: Any, purpose: Any, sub: Any) -> Any:
    """The key of 64-bit fields as they come."""
    fields = [np.atleast_1d(np.asarray(field)).astype(U64) for field in (seed, position, purpose, sub)]
    first = rng.mix(fields[0] ^ (fields[1] * U64(0xD1B54A32D192ED03)))
    return rng.mix(first ^ (fields[2] << U64(21)) ^ (fields[3] * U64(0x2545F4914F6CDD1D)))


@fault("dflash_reference.rng.draw_key", clauses=("RNG-002",), report=DEVICE, effect="output", profiles=KEYED)
def position_sign_extended(true: Function) -> Function:
    """A position with its top bit set is widened as a signed number."""

    def wrong(seed: Any, position: Any, purpose: Any, sub: Any) -> Any:
        return _key(seed, np.asarray(position).astype(np.int32).astype(np.int64), purpose, sub)

    return wrong


@fault("dflash_reference.rng.draw_key", clauses=("RNG-002",), report=DEVICE, effect="output", profiles=KEYED)
def purpose_sign_extended(true: Function) -> Function:
    """A purpose with its top bit set is widened as a signed number."""

    def wrong(seed: Any, position: Any, purpose: Any, sub: Any) -> Any:
        wide = np.asarray(purpose).astype(np.int32).astype(np.int64)
        return _key(seed, np.asarray(position).astype(np.int64) & 0xFFFFFFFF, wide, sub)

    return wrong


@fault("dflash_reference.rng.draw_key", clauses=("RNG-002",), report=DEVICE, effect="output", profiles=KEYED)
def purpose_of_three_bits(true: Function) -> Function:
    """Purposes are masked to the few that are in use."""
    return lambda seed, position, purpose, sub: true(seed, position, np.asarray(purpose).astype(np.int64) & 7, sub)


@fault("dflash_reference.rng.draw_key", clauses=("RNG-002",), report=DEVICE, effect="output", profiles=KEYED)
def purpose_shifted_in_32_bits(true: Function) -> Function:
    """The purpose loses the bits that its shift carries past the thirty-second."""
    return lambda seed, position, purpose, sub: true(seed, position, np.asarray(purpose).astype(np.int64) & 2047, sub)


@fault("dflash_reference.rng.draw_key", clauses=("RNG-002",), report=DEVICE, effect="output", profiles=KEYED)
def sub_index_of_16_bits(true: Function) -> Function:
    """The sub-index is held in 16 bits."""
    return lambda seed, position, purpose, sub: true(seed, position, purpose, np.asarray(sub).astype(U64) & U64(0xFFFF))


@fault("dflash_reference.engine.choose", clauses=("RNG-006",), effect="output", profiles=KEYED,
    report="Infernix src/models/qwen3_5/program/prefill.cpp",
)  # fmt: skip
def first_token_greedy(true: Function) -> Function:
    """The token after the prompt is the argmax at every temperature; only later tokens are drawn."""

    def wrong(state: Any, logits: Array, key: Array) -> Any:
        token: Any = true(state, logits, key)
        return type(token)(int(np.argmax(logits[0, : state.public]))) if key[1] == rng.PREFILL else token

    return wrong


@fault("dflash_reference.engine.choose", clauses=("RNG-006",), effect="output", profiles=KEYED,
    report="https://github.com/NVIDIA/TensorRT-LLM/pull/17599",
)  # fmt: skip
def first_token_with_seed_zero(true: Function) -> Function:
    """The prefill draws before the request's seed is set."""

    def wrong(state: Any, logits: Array, key: Array) -> Any:
        kept = state.settings
        if key[1] == rng.PREFILL:
            state.settings = replace(kept, seed=0)
        token = true(state, logits, key)
        state.settings = kept
        return token

    return wrong
