"""Faults of DFlash2's layer between its convolutions, and of what its layers and selector read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from dflash_reference import context, conv, draft, draft2, layer, num
from dflash_reference.models import Draft2
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

LAYERS = "NInfer docs/maintainer/dflash.md, DFlash2 layers"
ROUTE = "Infernix src/models/qwen3_5/execution/draft.cpp"
FUSED = "Infernix include/infernix/ops/rmsnorm_rope.h"
NINFER = ("ninfer",)


Side = Callable[..., Any]
"""conv.prepare or conv.finish, with the layer's index and the branch's convolution before their arguments."""


def layer_with(prepare: Side, finish: Side) -> Function:
    """A decoder layer whose convolutions are computed by `prepare` and `finish`."""

    def decode(model: Any, index: int, held: Any, x: Array, positions: Array, profile: Any) -> Any:
        config, w, eps = model.config, model.layers[index], model.config.eps
        sizes = {"group": config.conv_group, "block_rows": len(x), "profile": profile}
        a, m = (index, model.attention_conv[index]), (index, model.mlp_conv[index])
        rows, delta = prepare(*a, x, w.input_norm, eps=eps, **sizes)
        heads = draft2.qkv(
            rows, w.q_proj, w.k_proj, w.v_proj, w.q_norm, w.k_norm, positions, config.theta, eps, profile
        )
        attended = draft.attend(model, index, held, heads.q, heads.k, heads.v, positions, profile)
        y = finish(*a, attended, w.o_proj, delta, x, **sizes).residual_next
        rows, delta = prepare(*m, y, w.post_norm, eps=eps, **sizes)
        product = draft2.mlp(rows, w.gate_proj, w.up_proj, profile).product
        return finish(*m, product, w.down_proj, delta, y, **sizes).residual_next

    return decode


def _prepare(index: int, kernel: Any, x: Array, norm: Array, **named: Any) -> Any:
    return conv.prepare(x, norm, kernel.base, kernel.projection, **named)


def _finish(index: int, kernel: Any, branch: Array, weight: Array, delta: Array, residual: Array, **named: Any) -> Any:
    return conv.finish(branch, weight, kernel.base, delta, residual, **named)


@fault("dflash_reference.draft2.decoder_layer", clauses=("CONV-005",), report=LAYERS, effect="acceptance")
def increments_recomputed_from_the_output(true: Function) -> Function:
    """Each branch projects the output side's increments again, from what the branch returns."""

    def finish(index: int, kernel: Any, branch: Array, weight: Array, delta: Array, *rest: Any, **named: Any) -> Any:
        projected = num.contract(num.contract(branch, weight), kernel.projection)
        again = conv.increments(projected, delta.shape[1], delta.shape[2])[:, conv.OUTPUT]
        again = conv.represent_increments(again, named["profile"])
        return _finish(index, kernel, branch, weight, again, *rest, **named)

    return layer_with(_prepare, finish)


@fault("dflash_reference.draft2.decoder_layer", clauses=("CONV-004",), report=LAYERS, effect="acceptance")
def convolution_keeps_its_history(true: Function) -> Function:
    """Before a block's first row comes the last row of the round before, as a causal convolution's cache has it."""
    last: dict[tuple[int, int], Array] = {}

    def prepare(index: int, kernel: Any, x: Array, norm: Array, *, block_rows: int, **named: Any) -> Any:
        key = index, id(kernel)
        before = last.get(key, np.zeros_like(x[:1]))
        last[key] = x[-1:]
        done = _prepare(index, kernel, np.concatenate([before, x]), norm, block_rows=block_rows + 1, **named)
        return conv.Prepared(done.prepared[1:], done.finish_delta[1:])

    return layer_with(prepare, _finish)


@fault("dflash_reference.draft2.projected_row", clauses=("DRAFT-016",), report=LAYERS, effect="acceptance")
def prepared_rows_normed_again(true: Function) -> Function:
    """Attention and MLP norm their input themselves, as DFlash's do."""
    return lambda prepared: layer.unit(prepared, 1e-6)


@fault("dflash_reference.draft2.mlp", clauses=("DRAFT-010",), report=LAYERS, effect="acceptance")
def gate_and_up_of_prepared_rows_exchanged(true: Function) -> Function:
    """SiLU is applied to the up projection."""
    return lambda prepared, gate_proj, up_proj, profile: true(prepared, up_proj, gate_proj, profile)


@fault("dflash_reference.draft2.rounded_once", clauses=("DRAFT-015",), report=ROUTE, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def heads_rounded_before_rotation(true: Function) -> Function:
    """Normed queries and keys are rounded before they are rotated, as DFlash's are."""
    return lambda *given: layer.norm_then_rope(*given)[1]


@fault("dflash_reference.draft2.qkv", clauses=("DRAFT-015",), report=FUSED, effect="acceptance", profiles=NINFER)
def raw_heads_of_prepared_rows_unrounded(true: Function) -> Function:
    """Projection, norm and rotation are one step, as they are for context keys."""

    def wrong(**named: Any) -> Any:
        done, dim = true(**named), len(named["q_norm"])
        places = [named[name] for name in ("positions", "theta", "eps", "profile")]
        q, k = (
            draft2.rotated(
                layer.split_heads(num.contract(named["prepared"], named[f"{side}_proj"]), dim, side),
                named[f"{side}_norm"], *places,
            )
            for side in "qk"
        )  # fmt: skip
        return done._replace(q=q, k=k)

    return by_name(true, wrong)


@fault("dflash_reference.context.materialise", clauses=("CONV-008",), report=LAYERS, effect="acceptance")
def context_rows_convolved(true: Function) -> Function:
    """Each layer prepares context rows as it prepares block rows, by its attention's convolution."""

    def wrong(model: Any, rows: Any, features: Array, positions: Array, profile: Any) -> Array:
        held = rows.length
        c = np.asarray(true(model, rows, features, positions, profile))
        if not isinstance(model, Draft2) or not len(c):
            return c
        config, groups = model.config, c.shape[1] // model.config.conv_group
        for w, a, keys, values in zip(model.layers, model.attention_conv, rows.keys, rows.values, strict=True):
            delta = conv.increments(num.contract(c, a.projection), config.conv_taps, groups)
            mixed = conv.convolve(c, a.base[0], delta[:, 0], config.conv_group, len(c))
            own = conv.represent_prepared(mixed, profile)
            keys.view[held:] = context.layer_key(model, own, w, positions, profile)
            values.view[held:] = context.value(own, w.v_proj, config.kv_heads, profile).value
        return c

    return wrong


@fault("dflash_reference.draft2.selected_row", clauses=("SEL-006",), report=ROUTE, effect="acceptance")
def selector_fed_before_the_final_norm(true: Function) -> Function:
    """The selector projects the last layer's rows, not the normed ones."""
    return lambda done: done.layers[-1][1:]
