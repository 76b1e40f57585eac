"""What DFlash2 adds: CONV, SEL and RING ops, and its own ops of other chapters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dflash_accelerated import rounds
from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.conformance.layers import layer_of
from dflash_accelerated.layers import ConvWeights
from dflash_accelerated.models import dflash2
from dflash_accelerated.ops import conv, head, materialize, mlp, qkv, rope, selector
from dflash_accelerated.rings import Rings, lane_bytes


def _slots(rows: int, call: Call) -> torch.Tensor:
    width = call.integer("block_rows")
    return conv.slots([width] * (rows // width), torch.device("cpu"))


def _prepare(call: Call) -> Answer:
    x = call.act("x")
    weights = ConvWeights(call.weight("base"), call.weight("projection"))
    slots = _slots(len(x), call)
    return conv.prepare(x, call.weight("norm"), weights, slots, call.number("eps"), call.numerics)._asdict()


def _finish(call: Call) -> Answer:
    residual = call.act("residual")
    weights = (call.act("branch"), call.weight("weight"), call.weight("base"), call.act("finish_delta"))
    return {"residual_next": conv.finish(*weights, residual, _slots(len(residual), call), call.numerics)}


def _qkv(call: Call) -> Answer:
    layer = layer_of(call, "q_proj", "k_proj", "v_proj", "q_norm", "k_norm")
    turn = rope.tables(call.ids("positions"), call.number("theta"), layer.q_norm.shape[0], call.numerics)
    return qkv.project_prepared(call.act("prepared"), layer, turn, call.number("eps"), call.numerics)._asdict()


def _mlp(call: Call) -> Answer:
    weights = (call.weight("gate_proj"), call.weight("up_proj"))
    return {"product": mlp.swiglu(call.act("prepared"), *weights, call.numerics)}


def _materialize(call: Call) -> Answer:
    """Columns past a lane's count are left out here as the engine leaves them out: it has only rows that count."""
    c, positions, counts = call.act("c"), call.ids("positions"), call.integers("counts")
    rings = Rings(call.act("ring_key"), call.context_value("ring_value"))
    k_proj, v_proj = (call.weight(f"context_{name}").flatten(0, 1) for name in ("k_proj", "v_proj"))
    weights = materialize.ContextWeights(k_proj, v_proj, call.weight("k_norm"))
    spans = [
        dflash2.Span(lane, c[at, :count], positions[at, :count])
        for at, (lane, count) in enumerate(zip(call.integers("lanes"), counts, strict=True))
    ]
    dflash2.write_rings(rings, spans, weights, call.number("theta"), call.number("eps"), call.numerics)
    moved = call.ids("frontiers") + torch.tensor(counts)
    return {"key": rings.keys, "value": rings.values, "frontiers_next": moved}


def _payload(call: Call) -> Answer:
    layers, kv_heads, head_dim, window = (call.integer(name) for name in ("layers", "kv_heads", "head_dim", "window"))
    return {"bytes": lane_bytes(layers, kv_heads, head_dim, window, call.numerics)}


def _top(call: Call) -> Answer:
    public = call.integer("public")
    scalars = (call.number("multiplier"), call.number("softcap"))
    rows, ids = call.weight("head")[:public], call.ids("global_ids")[:public]
    made = head.top(call.act("hidden"), rows, ids, *scalars, call.integer("top"))
    return {"candidates": made.ids, "unary": made.unary}


def _indexed_argmax(call: Call) -> Answer:
    return {"proposals": head.indexed_argmax(call.act("logits"), call.ids("global_ids"))}


def _project(call: Call) -> Answer:
    return {"g": selector.project(call.act("hidden"), call.weight("projection"), call.numerics)}


def _walk(call: Call) -> Answer:
    """A batch of one request."""
    codebooks = selector.Selector(torch.empty(0), call.weight("predecessor"), call.weight("successor"))
    path = selector.walk(
        head.Candidates(call.ids("candidates")[None], call.raw("unary")[None]),
        call.act("g")[None],
        codebooks,
        call.ids("anchor").view(1),
        call.raw("temperature").view(1),
        call.raw("u")[None],
        call.numerics,
    )
    return {"scores": path.scores[0], "proposals": path.tokens[0], "q": path.q[0]}


def _block_inputs(call: Call) -> Answer:
    settings = (call.integer(name) for name in ("anchor", "mask_id", "frontier", "drafts", "extent"))
    columns = rounds.dflash2_columns(call.numerics.profile, *settings)
    anchor, frontier, extent = (call.integer(name) for name in ("anchor", "frontier", "extent"))
    drafts = call.integer("drafts")
    verified = rounds.verify_columns(call.numerics.profile, anchor, [0] * extent, frontier, drafts)
    return columns._asdict() | {"target_live": verified.live}


def _proposal_keys(call: Call) -> Answer:
    keys = rounds.proposal_keys(call.integer("frontier"), call.integer("drafts"))
    return {"keys": np.array(keys, dtype=np.int64).reshape(-1, 3)}


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "conv.prepare": _prepare,
    "conv.finish": _finish,
    "draft2.qkv": _qkv,
    "draft2.mlp": _mlp,
    "context.materialize": _materialize,
    "ring.payload": _payload,
    "head.top": _top,
    "head.indexed_argmax": _indexed_argmax,
    "selector.project": _project,
    "selector.walk": _walk,
    "block.dflash2_inputs": _block_inputs,
    "rng.proposal_keys": _proposal_keys,
}
