"""Faults of the draft's MLP, its final rows, its dead rows, and of where it rounds."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from dflash_reference import draft, elementary, layer, num
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft import LAYERS, ROUTE, WINDOW


def by_name(true: Function, wrong: Function) -> Function:
    """`wrong` with every argument given by the name that `true` has for it."""
    names = inspect.signature(true)

    def called(*args: Any, **named: Any) -> Any:
        return wrong(**names.bind(*args, **named).arguments)

    return called


def _projected(n: Array, projection: Array, named: dict[str, Any]) -> Array:
    return layer.split_heads(num.contract(n, projection), len(named["q_norm"]), "fused")


def _finished(side: str, raw: Array, named: dict[str, Any]) -> tuple[Array, Array]:
    """The normed and the rotated heads of side q or k."""
    places = (named[name] for name in ("positions", "theta", "eps", "profile"))
    return layer.norm_then_rope(raw, named[f"{side}_norm"], *places)


@fault("dflash_reference.layer.mlp", clauses=("DRAFT-010",), report=LAYERS, effect="acceptance")
def gate_and_up_exchanged(true: Function) -> Function:
    """SiLU is applied to the up projection."""

    def wrong(gate_proj: Array, up_proj: Array, **named: Any) -> Any:
        return true(gate_proj=up_proj, up_proj=gate_proj, **named)

    return by_name(true, wrong)


@fault("dflash_reference.layer.silu", clauses=("DRAFT-010",), report=LAYERS, effect="acceptance")
def gelu_for_silu(true: Function) -> Function:
    """The gate goes through the sigmoid form of GELU."""
    return lambda x: x / (1.0 + elementary.exp(-1.702 * x))


@fault("dflash_reference.layer.mlp", clauses=("DRAFT-010",), report=LAYERS, effect="acceptance")
def mlp_added_to_the_normed_row(true: Function) -> Function:
    """The residual of the MLP branch is the row after the post-attention norm."""

    def wrong(down_proj: Array, profile: Profile, **named: Any) -> Any:
        done: layer.Mlp = true(down_proj=down_proj, profile=profile, **named)
        return done._replace(x_next=layer.represent(done.m + num.contract(done.product, down_proj), profile))

    return by_name(true, wrong)


@fault("dflash_reference.draft.final", clauses=("DRAFT-011",), effect="acceptance",
    report="https://github.com/sgl-project/SpecForge/pull/473",
)  # fmt: skip
def proposals_shifted_by_one(true: Function) -> Function:
    """Row i proposes the token after its own position, so the anchor's row stays and the last one is dropped."""
    return lambda x, norm, eps, profile: true(np.concatenate([x[:1], x[:-1]]), norm, eps, profile)


@fault("dflash_reference.layer.qkv", clauses=("DRAFT-012",), report=ROUTE, effect="acceptance", profiles=("ninfer",))
def heads_unrounded_before_the_head_norm(true: Function) -> Function:
    """Projection and head norm are fused, and raw heads are rounded only where they are shown."""

    def wrong(**named: Any) -> Any:
        done: layer.Qkv = true(**named)
        q_normed, q = _finished("q", _projected(done.n, named["q_proj"], named), named)
        k_normed, k = _finished("k", _projected(done.n, named["k_proj"], named), named)
        return done._replace(q_normed=q_normed, k_normed=k_normed, q=q, k=k)

    return by_name(true, wrong)


@fault("dflash_reference.layer.norm_then_rope", clauses=("DRAFT-012",), effect="acceptance", profiles=("ninfer",),
    report="Infernix include/infernix/ops/rmsnorm_rope.h, as version 2 has it",
)  # fmt: skip
def heads_unrounded_before_rotation(true: Function) -> Function:
    """Head norm and rotation are fused, with one rounding at the end."""

    def wrong(raw: Array, weight: Array, positions: Array, theta: float, eps: float, profile: Profile) -> Any:
        normed, _ = true(raw, weight, positions, theta, eps, profile)
        turned = layer.rope(layer.head_norm(raw, weight, eps), positions, theta, profile)
        return normed, layer.represent(turned, profile)

    return wrong


@fault("dflash_reference.layer.qkv", clauses=("DRAFT-012",), report=ROUTE, effect="acceptance", profiles=("ninfer",))
def row_unrounded_before_the_projections(true: Function) -> Function:
    """Norm and projections are fused, and the normed row is rounded only where it is shown."""

    def wrong(**named: Any) -> Any:
        n, profile = layer.rms_norm(named["x"], named["input_norm"], named["eps"]), named["profile"]
        q_raw, k_raw, v = (layer.represent(_projected(n, named[f"{side}_proj"], named), profile) for side in "qkv")
        (q_normed, q), (k_normed, k) = _finished("q", q_raw, named), _finished("k", k_raw, named)
        return layer.Qkv(layer.represent(n, profile), q_raw, k_raw, q_normed, k_normed, q, k, v)

    return by_name(true, wrong)


@fault("dflash_reference.layer.mlp", clauses=("DRAFT-012",), report=ROUTE, effect="acceptance", profiles=("ninfer",))
def product_unrounded_before_down(true: Function) -> Function:
    """SwiGLU and down projection are fused, and the product is rounded only where it is shown."""

    def wrong(**named: Any) -> Any:
        done: layer.Mlp = true(**named)
        product = layer.silu(num.contract(done.m, named["gate_proj"])) * num.contract(done.m, named["up_proj"])
        x_next = named["y"] + num.contract(product, named["down_proj"])
        return done._replace(x_next=layer.represent(x_next, named["profile"]))

    return by_name(true, wrong)


@fault("dflash_reference.draft.attention", clauses=("DRAFT-013",), report=WINDOW, effect="output",
    profiles=("ninfer",),
)  # fmt: skip
def dead_rows_attended_to(true: Function) -> Function:
    """The block is as wide as its buffer: rows past the live count take part."""

    def wrong(live: int, **named: Any) -> Any:
        return true(live=len(named["q"]), **named)

    return by_name(true, wrong)


@fault("dflash_reference.draft.attention", clauses=("DRAFT-013",), report=WINDOW, effect="output",
    profiles=("ninfer",),
)  # fmt: skip
def dead_outputs_left_unwritten(true: Function) -> Function:
    """Output rows past the live count keep what the buffer held."""

    def wrong(live: int, **named: Any) -> Any:
        attended = true(live=live, **named).attended
        return draft.Attention(np.concatenate([attended[:live], np.full_like(attended[live:], 3.0)]))

    return by_name(true, wrong)
