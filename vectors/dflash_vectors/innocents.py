"""Innocent variants: the reference computed as honest FP32 ports compute it.

Each variant patches functions of the reference with FP32 arithmetic in another order or by another method that the
clauses leave free. A correct port is some mixture of these, so every vector must let all of them pass. NumPy
computes FP32 sums and products of arrays in IEEE arithmetic, one operation at a time; no library product is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from dflash_reference import elementary, layer, num
from dflash_spec.registry import PROFILES, Profile, load_profile
from dflash_spec.tensors import Array

from dflash_vectors import innocents_dflash2 as dflash2
from dflash_vectors import innocents_sampling as sampling
from dflash_vectors.faults import Function, patched

F32 = np.float32
LANES = 32
SPLITS = 4
CHUNK = 8


@dataclass(frozen=True)
class Innocent:
    """A legitimate way to compute. `patches` maps a reference function to a maker of its replacement."""

    name: str
    patches: dict[str, Callable[[Function], Function]]
    profiles: tuple[str, ...] = PROFILES


@contextmanager
def computing_as(innocent: Innocent) -> Iterator[None]:
    """The reference, computing in the way of `innocent`."""
    with ExitStack() as stack:
        for target, maker in innocent.patches.items():
            stack.enter_context(patched(target, maker))
        yield


Fold = Callable[[Array], Array]
"""FP32 terms [..., n] -> their FP32 sum [...] in some order."""


def _in_order(terms: Array) -> Array:
    total = np.zeros(terms.shape[:-1], F32)
    for index in range(terms.shape[-1]):
        total = total + terms[..., index]
    return total


def _reversed(terms: Array) -> Array:
    return _in_order(terms[..., ::-1])


def _tree(terms: Array) -> Array:
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[..., :1])], -1)
        terms = terms[..., 0::2] + terms[..., 1::2]
    return terms[..., 0] if terms.shape[-1] else np.zeros(terms.shape[:-1], F32)


def _blocks(terms: Array) -> Array:
    parts = [_in_order(terms[..., at : at + CHUNK]) for at in range(0, terms.shape[-1], CHUNK)]
    return _in_order(np.stack(parts, -1)) if parts else _in_order(terms)


def _lanes(terms: Array) -> Array:
    """Lane sums with stride 32, as a warp forms them, then a tree over the lanes."""
    return _tree(np.stack([_in_order(terms[..., lane::LANES]) for lane in range(LANES)], -1))


def _split_k(terms: Array) -> Array:
    size = -(-terms.shape[-1] // SPLITS) or 1
    return _reversed(np.stack([_tree(terms[..., at * size : (at + 1) * size]) for at in range(SPLITS)], -1))


def _compensated(terms: Array) -> Array:
    """Kahan's sum."""
    total = lost = np.zeros(terms.shape[:-1], F32)
    for index in range(terms.shape[-1]):
        term = terms[..., index] - lost
        moved = total + term
        lost = (moved - total) - term
        total = moved
    return total


def _contract_by(fold: Fold) -> Callable[[Function], Function]:
    """num.contract with products rounded to FP32 and summed by `fold`."""

    def contract(x: Array, w: Array) -> Array:
        return fold(x.astype(F32)[..., None, :] * w.astype(F32)).astype(np.float64)

    return lambda true: contract


def _fused(true: Function) -> Function:
    """A chain of fused multiply-adds: exact products, one rounding for each."""

    def contract(x: Array, w: Array) -> Array:
        total = np.zeros((*x.shape[:-1], w.shape[0]))
        for index in range(w.shape[1]):
            total = (total + x[..., index, None] * w[:, index]).astype(F32).astype(np.float64)
        return total

    return contract


def _tensor_core(true: Function) -> Function:
    """Exact products, added to the accumulator eight at a time, cut (not rounded) to FP32 after each eight."""

    def contract(x: Array, w: Array) -> Array:
        total = np.zeros((*x.shape[:-1], w.shape[0]))
        for at in range(0, w.shape[1], CHUNK):
            total = _cut(total + true(x[..., at : at + CHUNK], w[:, at : at + CHUNK]))
        return total

    return contract


def _cut(x: Array) -> Array:
    near = x.astype(F32)
    return np.where(np.abs(near) > np.abs(x), np.nextafter(near, F32(0)), near).astype(np.float64)


def _wide_backwards(true: Function) -> Function:
    return lambda x, w: true(x[..., ::-1], w[:, ::-1])


def _unit_by(fold: Fold, reciprocal: bool) -> Callable[[Function], Function]:
    """layer.unit in FP32: with a rounded reciprocal root and a product, or a root and a division."""

    def unit(x: Array, eps: float) -> Array:
        narrow = x.astype(F32)
        root = np.sqrt(fold(narrow * narrow) / F32(x.shape[-1]) + F32(eps))[..., None]
        return (narrow * (F32(1) / root) if reciprocal else narrow / root).astype(np.float64)

    return lambda true: unit


def _norm_by_weight_first(true: Function) -> Function:
    """A norm that multiplies by the weight before it divides by the root."""

    def norm(x: Array, weight: Array, eps: float) -> Array:
        narrow = x.astype(F32)
        mean = _tree(narrow * narrow) * (F32(1) / F32(x.shape[-1]))
        scale: Array = (F32(1) / np.sqrt(mean + F32(eps)))[..., None]
        return (narrow * weight.astype(F32) * scale).astype(np.float64)

    return norm


def _exp_off_by_two(true: Function) -> Function:
    """exp in FP32 that is two ulps too large and two too small, in turn, but never below 0; e^0 is 1 everywhere."""

    def exp(x: Any) -> Array:
        near = np.asarray(true(np.asarray(x, dtype=np.float64))).astype(F32)
        sign = np.where(np.arange(near.size) % 2, F32(1), F32(-1)).reshape(near.shape)
        moved = near + sign * F32(2) * np.where(np.isfinite(near) & (near != 1), np.spacing(near), F32(0))
        return np.where(near == 0, near, np.maximum(moved, 0)).astype(np.float64)

    return exp


def _online_softmax(block: int) -> Callable[[Function], Function]:
    """Attention that walks over the keys in blocks with a running maximum, all in FP32."""

    def attention(q: Array, keys: Array, values: Array, visible: Array, profile: Profile) -> Array:
        rows, heads, size = q.shape
        result = np.zeros((rows, heads, size), F32)
        served = [layer.kv_head(head, heads, keys.shape[1]) for head in range(heads)]
        counts = visible.sum(axis=1)
        for count in np.unique(counts):  # rows that see equally many keys walk together
            chosen = np.flatnonzero(counts == count)
            seen = np.nonzero(visible[chosen])[1].reshape(len(chosen), count)
            near, far = (np.swapaxes(held.astype(F32)[seen][:, :, served], 1, 2) for held in (keys, values))
            result[chosen] = _walk(q[chosen].astype(F32), near, far, block)
        return layer.represent(result.reshape(rows, -1).astype(np.float64), profile)

    return lambda true: attention


def _walk(q: Array, keys: Array, values: Array, block: int) -> Array:
    """q [..., D] over keys and values [..., N, D]."""
    scale = F32(1) / np.sqrt(F32(q.shape[-1]))
    top: Array = np.full(q.shape[:-1], -np.inf, F32)
    total: Array = np.zeros(q.shape[:-1], F32)
    weighted = np.zeros(q.shape, F32)
    for at in range(0, keys.shape[-2], block):
        score = _tree((q * scale)[..., None, :] * keys[..., at : at + block, :])
        highest: Array = np.maximum(top, score.max(axis=-1))
        kept = _exp32(top - highest)
        weights = _exp32(score - highest[..., None])
        total = total * kept + _in_order(weights)
        products = weights[..., None] * values[..., at : at + block, :]
        weighted = weighted * kept[..., None] + _in_order(np.swapaxes(products, -1, -2))
        top = highest
    return weighted / total[..., None]


def _exp32(x: Array) -> Array:
    return np.asarray(elementary.exp(x.astype(np.float64))).astype(F32)


def _narrow_weights(true: Function) -> Function:
    """Attention weights held in BF16 for the product with the values, their sum in FP32."""

    def weighted_sum(weights: Array, values: Array, visible: Array) -> Array:
        return np.asarray(true(num.round_to(weights, "BF16"), values, visible))

    return weighted_sum


def _rounded_branches(true: Function) -> Function:
    """The products of o_proj are rounded to BF16 before the residual is added."""

    def output(attended: Array, o_proj: Array, x: Array, profile: Profile) -> Any:
        return layer.Output(layer.represent(x + layer.represent(num.contract(attended, o_proj), profile), profile))

    return output


def _rounded_mlp(true: Function) -> Function:
    """Gate, up, SiLU and down are rounded to BF16, as a port of separate tensor operations does."""

    def mlp(
        y: Array, post_norm: Array, gate_proj: Array, up_proj: Array, down_proj: Array, eps: float, profile: Profile
    ) -> Any:
        m = layer.represent(layer.rms_norm(y, post_norm, eps), profile)
        activated = layer.represent(layer.silu(layer.represent(num.contract(m, gate_proj), profile)), profile)
        product = layer.represent(activated * layer.represent(num.contract(m, up_proj), profile), profile)
        branch = layer.represent(num.contract(product, down_proj), profile)
        return layer.Mlp(m, product, layer.represent(y + branch, profile))

    return mlp


def _fp32_table(true: Function) -> Function:
    """cos and sin of FP32 angles: theta to an FP32 power one ulp off, its reciprocal and the angle rounded."""

    def rope_table(positions: Array, theta: float, dim: int, profile: Profile) -> tuple[Array, Array]:
        power = (1 / elementary.rope_frequencies(theta, dim)).astype(F32)
        power = np.where(power == 1, power, np.nextafter(power, F32(np.inf)))
        angle = (positions[:, None].astype(F32) * (F32(1) / power)).astype(np.float64)
        sine, cosine = elementary.sin_cos(angle)
        return cosine.astype(F32).astype(np.float64), sine.astype(F32).astype(np.float64)

    return rope_table


def _rounded_table(true: Function) -> Function:
    """cos and sin of exact angles, held in FP32."""

    def rope_table(positions: Array, theta: float, dim: int, profile: Profile) -> tuple[Array, Array]:
        cosine, sine = true(positions, theta, dim, profile)
        return cosine.astype(F32).astype(np.float64), sine.astype(F32).astype(np.float64)

    return rope_table


def _fp32_rope(true: Function) -> Function:
    """The rotation itself in FP32, products rounded before they are added."""

    def rope(x: Array, positions: Array, theta: float, profile: Profile) -> Array:
        cosine, sine = (t[:, None, :].astype(F32) for t in layer.rope_table(positions, theta, x.shape[-1], profile))
        half = x.shape[-1] // 2
        first, second = x[..., :half].astype(F32), x[..., half:].astype(F32)
        turned = np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
        return turned.astype(np.float64)

    return rope


def _sum_by(fold: Fold) -> Callable[[Function], Function]:
    return lambda true: lambda x: fold(x.astype(F32)).astype(np.float64)


def _reciprocal_temperature(true: Function) -> Function:
    """exp(x · (1/T) - x_0 · (1/T)), each product rounded to FP32."""

    def tempered(logits: Array, temperature: float) -> Array:
        scaled = logits.astype(F32) * (F32(1) / F32(temperature))
        return _exp32(scaled - scaled.max(axis=1, keepdims=True)).astype(np.float64)

    return tempered


def _fp32_ranks(true: Function) -> Function:
    """The cumulative sum of a draw, and its goal, in FP32. Exact fractions are left alone."""

    def rank(weights: Any, goal: Any) -> Any:
        if not isinstance(goal, float | np.floating):
            return true(weights, goal)
        return true([F32(weight) for weight in weights], F32(goal))

    return rank


CONTRACT, UNIT, EXP = "dflash_reference.num.contract", "dflash_reference.layer.unit", "dflash_reference.elementary.exp"
ATTENTION, TABLE = "dflash_reference.layer.attention", "dflash_reference.layer.rope_table"
SUM, TEMPERED = "dflash_reference.num.sum_last", "dflash_reference.processing.tempered"
RANK, KEPT = "dflash_reference.processing.rank", "dflash_reference.filters.kept"
PENALISED, SHARES = "dflash_reference.penalties.penalised", "dflash_reference.filters.renormalised"
CONVOLVE, SCORED = "dflash_reference.conv.convolve", "dflash_reference.selector.scored"
SOFTENED, CAPPED = "dflash_reference.selector.softened", "dflash_reference.head.capped"
WHOLE_PORT = {
    CONTRACT: _contract_by(_lanes),
    UNIT: _unit_by(_tree, reciprocal=True),
    EXP: _exp_off_by_two,
    ATTENTION: _online_softmax(4),
    "dflash_reference.layer.rope": _fp32_rope,
    SUM: _sum_by(_lanes),
    TEMPERED: _reciprocal_temperature,
    RANK: _fp32_ranks,
    CONVOLVE: dflash2.increments_apart,
    SCORED: dflash2.codebooks_first,
    SOFTENED: dflash2.fp32_law,
    CAPPED: dflash2.fp32_cap,
    PENALISED: sampling.fused_penalties,
    KEPT: sampling.scan_of_weights,
    SHARES: sampling.reciprocal_sums,
}

INNOCENTS = (
    Innocent("fp32-in-order", {CONTRACT: _contract_by(_in_order)}),
    Innocent("fp32-reversed", {CONTRACT: _contract_by(_reversed)}),
    Innocent("fp32-tree", {CONTRACT: _contract_by(_tree)}),
    Innocent("fp32-blocks-of-8", {CONTRACT: _contract_by(_blocks)}),
    Innocent("fp32-32-lanes", {CONTRACT: _contract_by(_lanes)}),
    Innocent("fp32-split-k-4", {CONTRACT: _contract_by(_split_k)}),
    Innocent("fp32-compensated", {CONTRACT: _contract_by(_compensated)}),
    Innocent("fused-chain", {CONTRACT: _fused}),
    Innocent("tensor-core", {CONTRACT: _tensor_core}),
    Innocent("wide-reversed", {CONTRACT: _wide_backwards}),
    Innocent("norm-by-reciprocal-root", {UNIT: _unit_by(_in_order, reciprocal=True)}),
    Innocent("norm-by-division", {UNIT: _unit_by(_lanes, reciprocal=False)}),
    Innocent(
        "norm-weight-first",
        {f"dflash_reference.{name}": _norm_by_weight_first
         for name in ("layer.rms_norm", "layer.head_norm", "context.context_norm")},
    ),
    Innocent("exp-two-ulps-off", {EXP: _exp_off_by_two}),
    Innocent("fp32-sums", {SUM: _sum_by(_in_order), RANK: _fp32_ranks}),
    Innocent("reciprocal-temperature", {TEMPERED: _reciprocal_temperature, SUM: _sum_by(_tree)}),
    Innocent("online-softmax-of-3", {ATTENTION: _online_softmax(3)}),
    Innocent("online-softmax-of-16", {ATTENTION: _online_softmax(16)}),
    Innocent("bf16-attention-weights", {"dflash_reference.layer.weighted_sum": _narrow_weights}, ("ninfer",)),
    Innocent("rounded-o-proj", {"dflash_reference.layer.output": _rounded_branches}, ("ninfer",)),
    Innocent("rounded-mlp", {"dflash_reference.layer.mlp": _rounded_mlp}, ("ninfer",)),
    Innocent("fp32-held-table", {TABLE: _rounded_table, "dflash_reference.layer.rope": _fp32_rope}),
    Innocent("fp32-angles", {TABLE: _fp32_table}, ("zlab",)),
    Innocent("increments-apart", {CONVOLVE: dflash2.increments_apart}),
    Innocent("last-tap-first", {CONVOLVE: dflash2.last_tap_first}),
    Innocent("rounded-convolved-branch", {"dflash_reference.conv.finish": dflash2.rounded_branch}, ("ninfer",)),
    Innocent("rounded-swiglu", {"dflash_reference.draft2.mlp": dflash2.rounded_swiglu}, ("ninfer",)),
    Innocent("codebooks-first", {SCORED: dflash2.codebooks_first}),
    Innocent("fp32-law", {SOFTENED: dflash2.fp32_law, SUM: _sum_by(_tree)}),
    Innocent("fp32-cap", {CAPPED: dflash2.fp32_cap}),
    Innocent("fused-penalties", {PENALISED: sampling.fused_penalties}, ("ninfer",)),
    Innocent("scan-of-fp32-weights", {KEPT: sampling.scan_of_weights, SHARES: sampling.reciprocal_sums}),
    Innocent("mass-before-each-token", {KEPT: sampling.mass_before, TEMPERED: _reciprocal_temperature}),
    Innocent("whole-fp32-port", WHOLE_PORT),
    Innocent("whole-fp32-port-with-fp32-angles", {**WHOLE_PORT, TABLE: _fp32_table}, ("zlab",)),
)  # fmt: skip


def innocents_of(profile: str) -> list[Innocent]:
    """The variants that are legitimate in a profile."""
    base = load_profile(profile).base or profile
    return [innocent for innocent in INNOCENTS if base in innocent.profiles]
