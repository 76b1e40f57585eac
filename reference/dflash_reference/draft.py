"""The draft model: a block of masks in, hidden rows of the proposals out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from dflash_spec.config import read_draft_config, read_target_config
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import block as block_rows
from dflash_reference import context as context_rows
from dflash_reference import head as proposal_head
from dflash_reference import layer, mask, models
from dflash_reference.names import Position, TokenId


class Embed(NamedTuple):
    """x: [R, H], represented in ACT."""

    x: Array


class Attention(NamedTuple):
    """attended: [R, QH·D], represented in ACT."""

    attended: Array


class Final(NamedTuple):
    """hidden: [P, H], represented in ACT."""

    hidden: Array


class Forward(NamedTuple):
    """layers: the residual output [R, H] of each layer. hidden: [P, H]. All represented in ACT."""

    layers: tuple[Array, ...]
    hidden: Array


class Proposal(NamedTuple):
    """layers and hidden as in Forward. logits: [P, V], represented in LOGIT. proposals: [P] token ids."""

    layers: tuple[Array, ...]
    hidden: Array
    logits: Array
    proposals: Array


class Block(NamedTuple):
    """c: [T, H]. layer: the residual output [R, H] of each layer. hidden: [P, H]. proposals: [P]."""

    c: Array
    layer: dict[str, Array]
    hidden: Array
    proposals: Array


def embed(embedding: Array, ids: Array, profile: Profile) -> Embed:
    """Rows ids [R] of the target's table [V, H], as they stand.

    Raises TensorError if an id has no row.

    Clause: DRAFT-001
    Source: NInfer docs/maintainer/dflash.md, proposal; dflash 0.1.0 _raw_input_embeddings.
    """
    for slot, id_ in enumerate(ids):
        if not 0 <= id_ < len(embedding):
            raise TensorError(f"draft.embed: ids[{slot}] is {id_}, expected 0 to {len(embedding) - 1}")
    return Embed(embedding[ids])


def attention(
    q: Array, context_key: Array, context_value: Array, block_key: Array, block_value: Array,
    context_positions: Array, context_length: int, positions: Array, live: int, window: int, causal: int,
    profile: Profile,
) -> Attention:  # fmt: skip
    """Attention of the live block rows over the populated context and themselves; dead rows give zeros.

    q [R, QH, D], context_key and context_value [C, KV, D], block_key and block_value [R, KV, D]. Context rows from
    context_length on and block rows from live on are never read. Raises TensorError if live is outside 1 to R.

    Clause: DRAFT-013
    Source: Infernix include/infernix/ops/sliding_window_attention.h.
    """
    if not 1 <= live <= len(q):
        raise TensorError(f"draft.attention: live is {live}, expected 1 to {len(q)}, the block rows given")
    keys = np.concatenate([mask.populated(context_key, context_length), block_key[:live]])
    values = np.concatenate([mask.populated(context_value, context_length), block_value[:live]])
    places = np.concatenate([mask.populated(context_positions, context_length), positions[:live]])
    visible = mask.visible(positions[:live], places, window, causal)
    attended = np.zeros((len(q), q.shape[1] * q.shape[2]))
    attended[:live] = layer.attention(q[:live], keys, values, visible, profile)
    return Attention(attended)


def final(x: Array, norm: Array, eps: float, profile: Profile) -> Final:
    """The final norm of the proposal rows: x [P + 1, H], of which the anchor's row 0 is dropped -> [P, H].

    Clause: DRAFT-011
    Source: NInfer docs/maintainer/dflash.md, proposal.
    """
    return Final(layer.represent(layer.rms_norm(x[1:], norm, eps), profile))


def forward(
    draft: models.Draft, context: context_rows.Context, x: Array, positions: Array, profile: Profile,
    decode: Callable[..., Array] | None = None,
) -> Forward:  # fmt: skip
    """All layers and the final norm, for live block rows x [R, H] at positions [R]; `decode` is the layer.

    The block's keys and values are read here and kept nowhere: the context is left as it was.

    Clause: DRAFT-014
    Source: NInfer docs/maintainer/dflash.md, commit; dflash 0.1.0 dflash_generate.
    """
    layers = []
    for index in range(draft.config.layers):
        x = (decode or decoder_layer)(draft, index, context, x, positions, profile)
        layers.append(x)
    return Forward(tuple(layers), final(x, draft.norm, draft.config.eps, profile).hidden)


def decoder_layer(
    draft: models.Draft, index: int, context: context_rows.Context, x: Array, positions: Array, profile: Profile
) -> Array:
    """The residual rows after layer `index`, for live block rows x [R, H] at positions [R]."""
    config, w = draft.config, draft.layers[index]
    heads = layer.qkv(
        x, w.input_norm, w.q_proj, w.k_proj, w.v_proj, w.q_norm, w.k_norm,
        positions, config.theta, config.eps, profile,
    )  # fmt: skip
    attended = attend(draft, index, context, heads.q, heads.k, heads.v, positions, profile)
    y = layer.output(attended, w.o_proj, x, profile).y
    return layer.mlp(y, w.post_norm, w.gate_proj, w.up_proj, w.down_proj, config.eps, profile).x_next


def attend(
    draft: models.Draft, index: int, context: context_rows.Context, q: Array, k: Array, v: Array, positions: Array,
    profile: Profile,
) -> Array:  # fmt: skip
    """What the live block rows read in layer `index`, [R, QH·D]: queries, keys and values are those of the block."""
    config = draft.config
    return attention(
        q, context.keys[index].view, context.values[index].view, k, v,
        context.positions.view, context.length, positions, len(q),
        config.windows[index], int(config.causal[index]), profile,
    ).attended  # fmt: skip


def propose(
    draft: models.Draft, context: context_rows.Context, embedding: Array, head: Array,
    anchor: TokenId, frontier: Position, drafts: int, extent: int, public: int, profile: Profile,
) -> Proposal:  # fmt: skip
    """One block forward from the anchor at `frontier`, and the argmax proposals of its first `extent` mask rows.

    embedding and head [V, H] are the target's. The context must cover [0, frontier).
    """
    rows = block_rows.inputs(anchor, TokenId(draft.config.mask_id), frontier, drafts, extent, profile)
    x = embed(embedding, rows.ids[: rows.live], profile).x
    done = forward(draft, context, x, rows.positions[: rows.live], profile)
    logits = proposal_head.logits(done.hidden, head, profile).logits
    return Proposal(done.layers, done.hidden, logits, proposal_head.argmax(logits, public, profile).proposals)


def block(
    config: Array, target_config: Array, draft: dict[str, Array], embedding: Array, head: Array, features: Array,
    anchor: int, drafts: int, extent: int, public: int, profile: Profile,
) -> Block:  # fmt: skip
    """The op draft.block: features [T, n·H] of positions 0 to T - 1, then one proposal with the anchor at T.

    Raises ConfigError for a config, and TensorError for a tensor, that does not fit the others.
    """
    target = read_target_config(target_config.astype(np.uint8).tobytes())
    model = models.Draft(read_draft_config(config.astype(np.uint8).tobytes(), profile, target, backend=1), draft)
    for name, table in (("embedding", embedding), ("head", head)):
        if table.shape != (target.vocab_size, target.hidden_size):
            expected = [target.vocab_size, target.hidden_size]
            raise TensorError(f"draft.block: {name} has shape {list(table.shape)}, expected {expected}")
    context = context_rows.Context(model.config)
    c = context_rows.materialise(model, context, features, np.arange(len(features)), profile)
    done = propose(
        model, context, embedding, head, TokenId(anchor), Position(len(features)), drafts, extent, public, profile
    )
    layers = {str(index): rows for index, rows in enumerate(done.layers)}
    return Block(c, layers, done.hidden, done.proposals)
