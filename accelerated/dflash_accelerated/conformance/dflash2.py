"""What DFlash2 adds: CONV, SEL and RING ops, and its own ops of other chapters."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dflash_accelerated import rounds
from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.conformance.layers import layer_of, turn_of
from dflash_accelerated.conformance.primitives import key_table
from dflash_accelerated.layers import ConvWeights
from dflash_accelerated.ops import attention, conv, head, materialize, mlp, qkv, rope, selector
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.rings import lane_bytes

CPU = torch.device("cpu")


def _slots(rows: int, call: Call) -> torch.Tensor:
    width = call.integer("block_rows")
    return attention.Spans([0] * (rows // width), [0] * (rows // width), [width] * (rows // width), CPU).places


def _prepare(call: Call) -> Answer:
    x = call.act("x")
    weights = ConvWeights(call.weight("base"), call.product("projection"))
    slots = _slots(len(x), call)
    return conv.prepare(x, call.weight("norm"), weights, slots, call.number("eps"), call.numerics)._asdict()


def _finish(call: Call) -> Answer:
    residual = call.act("residual")
    weights = (call.act("branch"), call.product("weight"), call.weight("base"), call.act("finish_delta"))
    return {"residual_next": conv.finish(*weights, residual, _slots(len(residual), call), call.numerics)}


def _qkv(call: Call) -> Answer:
    layer = layer_of(call)
    made = qkv.project_prepared(call.act("prepared"), layer, turn_of(call), call.number("eps"), call.numerics)
    return made._asdict()


def _mlp(call: Call) -> Answer:
    return {"product": mlp.swiglu(call.act("prepared"), call.product("gate_proj", "up_proj"), call.numerics)}


def _materialize(call: Call) -> Answer:
    """Columns past a lane's count are left out here as the engine leaves them out: it has only rows that count."""
    counts, frontiers = call.integers("counts"), call.integers("frontiers")
    rows = [own[:count] for own, count in zip(call.act("c"), counts, strict=True)]
    positions = [own[:count] for own, count in zip(call.ids("positions"), counts, strict=True)]
    key, value = call.act("ring_key").transpose(2, 3), call.context_value("ring_value").transpose(2, 3)
    store = attention.Store(key.contiguous(), value.contiguous(), key.shape[3])
    norms = call.weight("k_norm")
    weights = torch.cat([call.weight(f"context_{name}_proj").flatten(0, 1) for name in "kv"])
    raw = materialize.project(torch.cat(rows), Product([weights], call.numerics), *norms.shape)
    turn = rope.tables(torch.cat(positions), call.number("theta"), norms.shape[1], call.numerics)
    spans = attention.Spans(call.integers("lanes"), frontiers, counts, CPU)
    staged = call.numerics.profile.axes["dflash2_keys"] == "staged"
    materialize.store(*raw, norms, turn, call.number("eps"), staged, store, spans, call.numerics)
    moved = torch.tensor(frontiers) + torch.tensor(counts)
    return {"key": store.keys.transpose(2, 3), "value": store.values.transpose(2, 3), "frontiers_next": moved}


def _payload(call: Call) -> Answer:
    layers, kv_heads, head_dim, window = (call.integer(name) for name in ("layers", "kv_heads", "head_dim", "window"))
    return {"bytes": lane_bytes(layers, kv_heads, head_dim, window, call.numerics)}


def _top(call: Call) -> Answer:
    public = call.integer("public")
    scalars = (call.number("multiplier"), call.number("softcap"))
    ids = call.ids("global_ids")[:public]
    made = head.top(call.act("hidden"), call.product("head"), ids, *scalars, call.integer("top"), call.numerics)
    return {"candidates": made.ids, "unary": made.unary}


def _indexed_argmax(call: Call) -> Answer:
    return {"proposals": head.indexed_argmax(call.act("logits"), call.ids("global_ids"), call.numerics)}


def _project(call: Call) -> Answer:
    return {"g": selector.project(call.act("hidden"), call.product("projection"), call.numerics)}


def _walk(call: Call) -> Answer:
    """A batch of one request."""
    none = Product([torch.empty(0, 0)], call.numerics)
    codebooks = selector.Selector(none, call.weight("predecessor"), call.weight("successor"))
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
    return {"ids": columns.ids, "positions": columns.positions, "live": columns.live, "target_live": verified.live}


def _proposal_keys(call: Call) -> Answer:
    return {"keys": key_table(rounds.proposal_keys([call.integer("frontier")], call.integer("drafts")))}


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
