"""Honest ways to compute DFlash2's steps: what the innocent variants patch of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import conv, draft2, elementary, layer, num
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function

F32 = np.float32


def increments_apart(true: Function) -> Function:
    """A convolution that adds base · row and increment · row tap by tap, each product and sum in FP32."""

    def convolve(z: Array, base: Array, delta: Array, group: int, block_rows: int) -> Array:
        increments = np.repeat(delta, group, axis=-1).astype(F32)
        total = np.zeros(z.shape, F32)
        for tap in range(len(base)):
            row = conv.rows_before(z, conv.steps_back(tap), block_rows).astype(F32)
            total = total + base[tap].astype(F32) * row
            total = total + increments[:, tap] * row
        return total.astype(np.float64)

    return convolve


def last_tap_first(true: Function) -> Function:
    """A convolution in FP32 that adds base and increment first, and starts from the last tap."""

    def convolve(z: Array, base: Array, delta: Array, group: int, block_rows: int) -> Array:
        coefficients = base.astype(F32) + np.repeat(delta, group, axis=-1).astype(F32)
        total = np.zeros(z.shape, F32)
        for tap in reversed(range(len(base))):
            row = conv.rows_before(z, conv.steps_back(tap), block_rows).astype(F32)
            total = total + coefficients[:, tap] * row
        return total.astype(np.float64)

    return convolve


def rounded_branch(true: Function) -> Function:
    """The products of o_proj and down_proj are rounded to BF16 before they are convolved."""

    def finish(
        branch: Array, weight: Array, base: Array, finish_delta: Array, residual: Array, group: int, block_rows: int,
        profile: Profile,
    ) -> Any:  # fmt: skip
        z = layer.represent(num.contract(branch, weight), profile)
        mixed = conv.convolve(z, base[conv.OUTPUT], finish_delta, group, block_rows)
        return conv.Finished(layer.represent(residual + mixed, profile))

    return finish


def rounded_swiglu(true: Function) -> Function:
    """Gate, up and SiLU are rounded to BF16, as a port of separate tensor operations does."""

    def mlp(prepared: Array, gate_proj: Array, up_proj: Array, profile: Profile) -> Any:
        rows = draft2.projected_row(prepared)
        activated = layer.represent(layer.silu(layer.represent(num.contract(rows, gate_proj), profile)), profile)
        product = activated * layer.represent(num.contract(rows, up_proj), profile)
        return draft2.Mlp(layer.represent(product, profile))

    return mlp


def codebooks_first(true: Function) -> Function:
    """Scores whose predecessor and successor entries meet before the hidden row does, all in FP32."""

    def scored(unary: Array, predecessor: Array, g: Array, successor: Array) -> Array:
        pairs = predecessor.astype(F32) * successor.astype(F32)
        return np.asarray(unary.astype(F32) + num.contract(g, pairs.astype(np.float64)).astype(F32)).astype(np.float64)

    return scored


def fp32_law(true: Function) -> Function:
    """The walk's softmax in FP32: a rounded 1/T before the maximum is subtracted, and a rounded 1/sum."""

    def softened(scores: Array, temperature: float) -> Array:
        scaled = scores.astype(F32) * (F32(1) / F32(temperature))
        powers = np.asarray(elementary.exp((scaled - scaled.max()).astype(np.float64))).astype(F32)
        total = num.sum_last(powers.astype(np.float64)).astype(F32)
        return (powers * (F32(1) / total)).astype(np.float64)

    return softened


def fp32_cap(true: Function) -> Function:
    """Multiplier and cap in FP32, with a rounded reciprocal of the cap and a tangent two ulps too large."""

    def capped(logits: Array, multiplier: float, softcap: float) -> Array:
        scaled = logits.astype(F32) * F32(multiplier)
        if softcap <= 0:
            return scaled.astype(np.float64)
        bent = elementary.tanh((scaled * (F32(1) / F32(softcap))).astype(np.float64)).astype(F32)
        off = np.where(np.abs(bent) < 1, bent + F32(2) * np.spacing(bent), bent)
        return (F32(softcap) * np.clip(off, F32(-1), F32(1))).astype(np.float64)

    return capped
