"""Faults of the target's sampling pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.inputs import represent

SAMPLING = "Infernix include/infernix/ops/sampling.h"
DEVICE = "Infernix src/ops/kernel/sampling_device.cuh"
KEYED = ("ninfer",)


@fault("dflash_reference.processing.public_columns", clauses=("PROC-001",), report=SAMPLING, effect="output")
def padding_rows_sampled(true: Function) -> Function:
    """Padding rows of the vocabulary take part in sampling and in the target's argmax."""
    return lambda logits, public: logits


@fault("dflash_reference.processing.greedy", clauses=("PROC-002",), report=SAMPLING, effect="output")
def target_tie_to_the_highest_id(true: Function) -> Function:
    """The last of equal maxima is the target's token."""

    def wrong(logits: Array, public: int, profile: Any) -> Any:
        rows = logits[:, public - 1 :: -1] if public == logits.shape[1] else logits[:, :public][:, ::-1]
        return true(logits, public, profile)._replace(tokens=public - 1 - np.argmax(rows, axis=1))

    return wrong


@fault(
    "dflash_reference.processing.greedy", clauses=("PROC-002",), effect="output",
    report="https://github.com/pegainfer-project/pegainfer/pull/204",
)  # fmt: skip
def target_argmax_starts_at_zero(true: Function) -> Function:
    """The running maximum starts at 0 with id 0, so a row of negative logits yields id 0."""

    def wrong(logits: Array, public: int, profile: Any) -> Any:
        return true(np.maximum(logits, 0.0), public, profile)

    return wrong


@fault(
    "dflash_reference.processing.tempered", clauses=("PROC-003",), effect="output",
    report="https://github.com/ohdearquant/lattice/pull/974",
)  # fmt: skip
def temperature_not_applied(true: Function) -> Function:
    """The verifier judges at temperature 1, whatever the request says."""
    return lambda logits, temperature: true(logits, 1.0)


@fault("dflash_reference.processing.tempered", clauses=("PROC-003",), report=DEVICE, effect="output")
def temperature_multiplied(true: Function) -> Function:
    """Logits are multiplied by the temperature."""
    return lambda logits, temperature: true(logits, 1.0 / temperature)


@fault("dflash_reference.processing.tempered", clauses=("PROC-003",), report=DEVICE, effect="output")
def temperature_kept_above_a_hundred_thousandth(true: Function) -> Function:
    """Temperatures below 1e-5 count as 1e-5."""
    return lambda logits, temperature: true(logits, max(temperature, 1e-5))


@fault("dflash_reference.processing.tempered", clauses=("PROC-003",), report=DEVICE, effect="output")
def temperature_after_the_exponential(true: Function) -> Function:
    """The temperature divides the differences' exponentials, which normalisation cancels."""
    return lambda logits, temperature: true(logits, 1.0) / temperature


@fault(
    "dflash_reference.processing.tempered", clauses=("PROC-003",), effect="crash",
    report="https://github.com/sgl-project/sglang/pull/23296",
)  # fmt: skip
def exponential_overflows(true: Function) -> Function:
    """The largest logit is not subtracted, and FP32 overflows to infinity over infinity."""

    def wrong(logits: Array, temperature: float) -> Array:
        with np.errstate(over="ignore"):
            powers = np.exp(logits / temperature)
        return np.where(powers > np.finfo(np.float32).max, np.nan, powers)

    return wrong


@fault(
    "dflash_reference.processing.tempered", clauses=("PROC-003",), effect="output",
    report="https://github.com/EricLBuehler/mistral.rs/pull/2424",
)  # fmt: skip
def sampling_by_argmax(true: Function) -> Function:
    """The largest logit takes all the probability."""
    return lambda logits, temperature: np.where(true(logits, temperature) == 1.0, 1.0, 0.0)


@fault("dflash_reference.processing.capped", clauses=("PROC-004",), report=SAMPLING, effect="output", profiles=KEYED)
def cap_of_nineteen(true: Function) -> Function:
    """The support ends one rank early."""
    return lambda rows, cap: true(rows, cap - 1)


@fault("dflash_reference.processing.capped", clauses=("PROC-004",), report=SAMPLING, effect="output", profiles=KEYED)
def cap_left_out(true: Function) -> Function:
    """Every public id is in the support."""
    return lambda rows, cap: true(rows, rows.shape[1])


@fault("dflash_reference.processing.capped", clauses=("PROC-004",), report=SAMPLING, effect="output", profiles=KEYED)
def equal_logits_by_descending_id(true: Function) -> Function:
    """Of equal logits the higher id comes first, and is kept at the cap."""

    def wrong(rows: Array, cap: int) -> Array:
        width = rows.shape[1]
        ranked: Array = width - 1 - np.argsort(-rows[:, ::-1], axis=1, kind="stable")
        return ranked[:, :cap]

    return wrong


@fault("dflash_reference.processing.capped", clauses=("PROC-004",), report=SAMPLING, effect="output", profiles=KEYED)
def support_by_id(true: Function) -> Function:
    """The twenty largest are kept, in ascending order of id."""
    return lambda rows, cap: np.sort(true(rows, cap), axis=1)


@fault("dflash_reference.processing.capped", clauses=("PROC-004",), report=SAMPLING, effect="output", profiles=KEYED)
def support_tells_zeros_apart(true: Function) -> Function:
    """An integer sort key puts +0 above -0."""
    return lambda rows, cap: true(rows - np.where(np.signbit(rows) & (rows == 0), 1e-30, 0.0), cap)


@fault("dflash_reference.processing.rank", clauses=("PROC-005",), report=DEVICE, effect="output")
def rank_at_equality(true: Function) -> Function:
    """A cumulative sum that equals the goal ends the draw."""

    def wrong(weights: Sequence[Any], goal: Any) -> int:
        cumulative = 0.0
        for index, weight in enumerate(weights):
            cumulative += weight
            if goal <= cumulative:
                return index
        return true(weights, goal)  # type: ignore[no-any-return]

    return wrong


@fault("dflash_reference.processing.rank", clauses=("PROC-005",), report=DEVICE, effect="crash")
def fall_back_to_the_last_slot(true: Function) -> Function:
    """Where no sum exceeds the goal the last slot is drawn, padding or not."""
    return lambda weights, goal: true(weights, goal) if goal < sum(weights) else len(weights) - 1


@fault("dflash_reference.processing.rank", clauses=("PROC-005",), report=DEVICE, effect="output")
def fall_back_to_the_first_rank(true: Function) -> Function:
    """Where no sum exceeds the goal the first rank is drawn, as an argmax over an all-false row gives."""
    return lambda weights, goal: true(weights, goal) if goal < sum(weights) else 0


@fault("dflash_reference.processing.rank", clauses=("PROC-005",), report=DEVICE, effect="output")
def rank_by_exclusive_sum(true: Function) -> Function:
    """The first rank whose preceding sum reaches the goal is drawn, one rank late."""

    def wrong(weights: Sequence[Any], goal: Any) -> int:
        return min(int(true(weights, goal)) + 1, max(i for i, w in enumerate(weights) if w > 0))

    return wrong


@fault("dflash_reference.processing.public_columns", clauses=("PROC-001",), report=SAMPLING, effect="output")
def target_padding_masked_with_a_number(true: Function) -> Function:
    """Padding rows are given -1e9 instead of being left out."""
    return lambda logits, public: np.where(np.arange(logits.shape[1]) < public, logits, -1e9)


@fault("dflash_reference.processing.tempered", clauses=("PROC-003",), report=DEVICE, effect="output")
def temperature_kept_above_a_floor(true: Function) -> Function:
    """Low temperatures are raised to a hundredth."""
    return lambda logits, temperature: true(logits, max(temperature, 0.01))


@fault("dflash_reference.processing.tempered", clauses=("PROC-003",), report=DEVICE, effect="output")
def temperature_kept_below_a_ceiling(true: Function) -> Function:
    """High temperatures are lowered to 2."""
    return lambda logits, temperature: true(logits, min(temperature, 2.0))


@fault("dflash_reference.processing.draw", clauses=("PROC-005",), report=DEVICE, effect="output")
def probabilities_drawn_in_bf16(true: Function) -> Function:
    """Probabilities are rounded to BF16 before they are added."""
    return lambda support, p, u, profile: true(support, represent(p, "BF16"), u, profile)


@fault("dflash_reference.processing.draw", clauses=("PROC-005",), report=DEVICE, effect="output")
def probabilities_drawn_in_fp16(true: Function) -> Function:
    """Probabilities are rounded to FP16 before they are added."""
    return lambda support, p, u, profile: true(support, represent(p, "F16"), u, profile)
