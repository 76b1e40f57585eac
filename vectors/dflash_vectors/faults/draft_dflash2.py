"""Faults of DFlash2's layer between its convolutions, and of what its layers and selector read."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import context, conv, draft2, layer, num
from dflash_reference.models import Draft2
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

LAYERS = "NInfer docs/maintainer/dflash.md, DFlash2 layers"
ROUTE = "Infernix src/models/qwen3_5/execution/draft.cpp"
FUSED = "Infernix include/infernix/ops/rmsnorm_rope.h"
NINFER = ("ninfer",)


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
