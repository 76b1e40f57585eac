"""DFlash2: DFlash, except that branches convolve their rows and a selector walks to the proposals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.config import read_draft_config, read_target_config
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import block as block_rows
from dflash_reference import context as context_rows
from dflash_reference import conv, draft, layer, models, num, selector
from dflash_reference import head as proposal_head
from dflash_reference.names import Position, TokenId


class Qkv(NamedTuple):
    """q_raw and q: [R, QH, D]. k_raw, k and v: [R, KV, D]. All represented in ACT."""

    q_raw: Array
    k_raw: Array
    q: Array
    k: Array
    v: Array


class Mlp(NamedTuple):
    """product: [R, I], represented in ACT."""

    product: Array


class Proposal(NamedTuple):
    """layers and hidden as in draft.Forward, of P rows: K where the width is fixed, else the extent.

    candidates and q: [P, C] global ids and their law in F32. proposals: [P] token ids. g: [P, rank].
    unary and scores: [P, C] in F32.
    """

    layers: tuple[Array, ...]
    hidden: Array
    candidates: Array
    unary: Array
    g: Array
    scores: Array
    proposals: Array
    q: Array


class Block(NamedTuple):
    """c: [T, H]. layer: the residual output [R, H] of each layer. hidden: [P, H]. The rest as in Proposal."""

    c: Array
    layer: dict[str, Array]
    hidden: Array
    candidates: Array
    proposals: Array
    q: Array


def projected_row(prepared: Array) -> Array:
    """What q, k, v, gate and up read, [R, H]: the prepared rows as they are, not normed again.

    Clause: DRAFT-016
    Source: NInfer docs/maintainer/dflash.md, DFlash2 layers; dflash 0.1.0 Qwen3DFlashDecoderLayer.
    """
    return prepared


def qkv(
    prepared: Array, q_proj: Array, k_proj: Array, v_proj: Array, q_norm: Array, k_norm: Array,
    positions: Array, theta: float, eps: float, profile: Profile,
) -> Qkv:  # fmt: skip
    """Normed and rotated queries and keys, and raw values, of prepared rows [R, H] at positions [R]."""
    rows, dim = projected_row(prepared), len(q_norm)
    q_raw = layer.represent(layer.split_heads(num.contract(rows, q_proj), dim, "q_proj"), profile)
    k_raw = layer.represent(layer.split_heads(num.contract(rows, k_proj), dim, "k_proj"), profile)
    v = layer.represent(layer.split_heads(num.contract(rows, v_proj), dim, "v_proj"), profile)
    q = rotated(q_raw, q_norm, positions, theta, eps, profile)
    return Qkv(q_raw, k_raw, q, rotated(k_raw, k_norm, positions, theta, eps, profile), v)


def rotated(raw: Array, weight: Array, positions: Array, theta: float, eps: float, profile: Profile) -> Array:
    """The raw heads [R, heads, D] normed and rotated, represented in ACT."""
    if profile.axes["dflash2_keys"] == "staged":
        return layer.norm_then_rope(raw, weight, positions, theta, eps, profile)[1]
    return rounded_once(raw, weight, positions, theta, eps, profile)


def rounded_once(raw: Array, weight: Array, positions: Array, theta: float, eps: float, profile: Profile) -> Array:
    """As `rotated`, without a rounding between norm and rotation.

    Clause: DRAFT-015
    Source: Infernix src/models/qwen3_5/execution/draft.cpp; include/infernix/ops/rmsnorm_rope.h.
    """
    return layer.represent(layer.fused_norm_and_rope(raw, weight, positions, theta, eps, profile), profile)


def mlp(prepared: Array, gate_proj: Array, up_proj: Array, profile: Profile) -> Mlp:
    """SwiGLU of prepared rows [R, H], which the finish of the branch projects down."""
    rows = projected_row(prepared)
    return Mlp(layer.represent(layer.silu(num.contract(rows, gate_proj)) * num.contract(rows, up_proj), profile))


def decoder_layer(
    model: models.Draft2, index: int, context: context_rows.Context, x: Array, positions: Array, profile: Profile
) -> Array:
    """The residual rows after layer `index`, for live block rows x [R, H] of one block at positions [R].

    Context rows are read as they are: only the block's own are convolved.

    Clause: CONV-008
    Source: NInfer docs/maintainer/dflash.md, DFlash2 layers.
    """
    config, w, eps = model.config, model.layers[index], model.config.eps
    sizes = {"group": config.conv_group, "block_rows": len(x)}
    a = model.attention_conv[index]
    rows, delta = conv.prepare(x, w.input_norm, a.base, a.projection, eps=eps, profile=profile, **sizes)
    heads = qkv(rows, w.q_proj, w.k_proj, w.v_proj, w.q_norm, w.k_norm, positions, config.theta, eps, profile)
    attended = draft.attend(model, index, context, heads.q, heads.k, heads.v, positions, profile)
    y = conv.finish(attended, w.o_proj, a.base, delta, x, profile=profile, **sizes).residual_next
    m = model.mlp_conv[index]
    rows, delta = conv.prepare(y, w.post_norm, m.base, m.projection, eps=eps, profile=profile, **sizes)
    product = mlp(rows, w.gate_proj, w.up_proj, profile).product
    return conv.finish(product, w.down_proj, m.base, delta, y, profile=profile, **sizes).residual_next


def propose(
    model: models.Draft2, context: context_rows.Context, embedding: Array, head: Array,
    anchor: TokenId, frontier: Position, drafts: int, extent: int, public: int, temperature: float, u: Array,
    profile: Profile,
) -> Proposal:  # fmt: skip
    """One block forward from the anchor at `frontier`, and the walk through the candidates of its mask rows.

    embedding and head [V, H] are the target's, u [P] the uniforms of the walk. The context must cover [0, frontier).
    """
    config = model.config
    rows = block_rows.dflash2_inputs(anchor, TokenId(config.mask_id), frontier, drafts, extent, profile)
    x = draft.embed(embedding, rows.ids[: rows.live], profile).x
    done = draft.forward(model, context, x, rows.positions[: rows.live], profile, decoder_layer)
    best = proposal_head.top(
        done.hidden, head, np.arange(len(head)), public, config.output_multiplier, config.softcap,
        config.selector_top_k, profile,
    )  # fmt: skip
    g = selector.project(selected_row(done), model.selector.projection, profile).g
    walk = selector.walk(
        best.candidates, best.unary, g, model.selector.predecessor, model.selector.successor, anchor,
        temperature, u, profile,
    )  # fmt: skip
    return Proposal(done.layers, done.hidden, best.candidates, best.unary, g, walk.scores, walk.proposals, walk.q)


def selected_row(done: draft.Forward) -> Array:
    """What the selector projects, [P, H]: the hidden rows after the final norm, which the head reads too.

    Clause: SEL-006
    Source: NInfer docs/maintainer/dflash.md, selector; Infernix src/models/qwen3_5/execution/draft.cpp.
    """
    return done.hidden


def block(
    config: Array, target_config: Array, draft: dict[str, Array], embedding: Array, head: Array, features: Array,
    anchor: int, drafts: int, extent: int, public: int, temperature: float, u: Array, profile: Profile,
) -> Block:  # fmt: skip
    """The op draft2.block: features [T, n·H] of positions 0 to T - 1, then one proposal with the anchor at T."""
    target = read_target_config(target_config.astype(np.uint8).tobytes())
    model = models.Draft2(read_draft_config(config.astype(np.uint8).tobytes(), profile, target, backend=2), draft)
    context = context_rows.Context(model.config)
    c = context_rows.materialise(model, context, features, np.arange(len(features)), profile)
    done = propose(
        model, context, embedding, head, TokenId(anchor), Position(len(features)), drafts, extent, public,
        temperature, u, profile,
    )  # fmt: skip
    layers = {str(index): rows for index, rows in enumerate(done.layers)}
    return Block(c, layers, done.hidden, done.candidates, done.proposals, done.q)
