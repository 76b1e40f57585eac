"""CTX, DRAFT and HEAD ops, and the parts of a target: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.layers import LayerWeights, head_norms
from dflash_accelerated.ops import attention, context_kv, head, materialize, mlp, qkv, rms_norm, rope
from dflash_accelerated.ops.linear import Product

NONE = torch.empty(0)


def _feature(call: Call) -> Answer:
    weights = (call.product("fc"), call.weight("hidden_norm"))
    return context_kv.feature(call.act("features"), *weights, call.number("eps"), call.numerics)._asdict()


def _key(call: Call) -> Answer:
    """The keys of one layer, of those that are made for all at once."""
    norm = call.weight("k_norm")
    raw = call.product("k_proj")(call.act("c"))
    turn = rope.tables(call.ids("positions"), call.number("theta"), len(norm), call.numerics)
    heads = raw.view(len(raw), 1, -1, len(norm))
    made = materialize.keys(heads, norm[None], turn, call.number("eps"), True, call.numerics)
    return {name: rows[:, 0] for name, rows in made._asdict().items()}


def _value(call: Call) -> Answer:
    raw = call.product("v_proj")(call.act("c"))
    heads = raw.view(len(raw), call.integer("kv_heads"), -1)
    return {"raw": call.numerics.activation(heads), "value": materialize.values(heads, call.numerics)}


def _embed(call: Call) -> Answer:
    return {"x": head.embed(call.ids("ids"), call.act("embedding"))}


def heads_of(call: Call) -> tuple[Product, torch.Tensor]:
    """The joined projection of queries, keys and values, and the norms of the heads that turn."""
    qkv_proj, norms = call.product("q_proj", "k_proj", "v_proj"), (call.weight("q_norm"), call.weight("k_norm"))
    queries, heads = (len(call.array("q_proj")) // len(norms[0]), qkv_proj.outputs // len(norms[0]))
    return qkv_proj, head_norms(*norms, queries, heads)


def layer_of(call: Call, input_norm: torch.Tensor = NONE) -> LayerWeights:
    """A layer of which only what stands before its attention is given."""
    none = Product([torch.empty(0, 0)], call.numerics)
    qkv_proj, norms = heads_of(call)
    return LayerWeights(input_norm, qkv_proj, norms, none, NONE, none, none)


def turn_of(call: Call) -> rope.Tables:
    return rope.tables(call.ids("positions"), call.number("theta"), len(call.array("q_norm")), call.numerics)


def _qkv(call: Call) -> Answer:
    layer = layer_of(call, call.weight("input_norm"))
    return qkv.project(call.act("x"), layer, turn_of(call), call.number("eps"), call.numerics)._asdict()


def _attention(call: Call) -> Answer:
    """Dead rows are left out here as the engine leaves them out; what is returned for them is zero.

    The context is stored from position 0 on: attention sees how far apart rows are, not where they are.
    """
    length, live = call.integer("context_length"), call.integer("live")
    store = _stored(call.act("context_key")[:length], call.context_value("context_value")[:length], live)
    spans = attention.Spans([0], [length], [live], torch.device("cpu"))
    queries, window, causal = call.act("q"), call.integer("window"), bool(call.integer("causal"))
    q, k, v = (part[:live] for part in (queries, call.act("block_key"), call.act("block_value")))
    attended = attention.attend(q, k, v, store, 0, spans, window, causal, False, call.numerics)
    dead = attended.new_zeros(queries.shape[0] - live, attended.shape[1])
    return {"attended": torch.cat((attended, dead))}


def _target_attention(call: Call) -> Answer:
    length, queries = call.integer("length"), call.act("q")
    start = length - len(queries)
    key, value = call.act("key"), call.context_value("value")
    store = _stored(key[:start], value[:start], len(queries))
    spans = attention.Spans([0], [start], [len(queries)], torch.device("cpu"))
    k, v, window = key[start:length], value[start:length], call.integer("window")
    return {"attended": attention.attend(queries, k, v, store, 0, spans, window, True, True, call.numerics)}


def _stored(key: torch.Tensor, value: torch.Tensor, more: int) -> attention.Store:
    """Keys and values [C, KV, D] of one layer of one sequence, with room for `more` rows."""
    keys, values = (torch.nn.functional.pad(part.transpose(0, 1), (0, 0, 0, more))[None, None] for part in (key, value))
    return attention.Store(keys, values, len(key) + more)


def _output(call: Call) -> Answer:
    o_proj = call.product("o_proj")
    return {"y": mlp.attention_output(call.act("attended"), o_proj, call.act("x"), call.numerics)}


def _mlp(call: Call) -> Answer:
    none = Product([torch.empty(0, 0)], call.numerics)
    products = (call.product("gate_proj", "up_proj"), call.product("down_proj"))
    layer = LayerWeights(NONE, none, NONE, none, call.weight("post_norm"), *products)
    return mlp.mlp(call.act("y"), layer, call.number("eps"), call.numerics)._asdict()


def _final(call: Call) -> Answer:
    x = call.act("x")
    spans = attention.Spans([0], [0], [len(x)], torch.device("cpu"))
    return {"hidden": head.final_rows(x, spans, call.weight("norm"), call.number("eps"), call.numerics)}


def _logits(call: Call) -> Answer:
    return {"logits": head.logits(call.act("hidden"), call.product("head"), call.numerics)}


def _target_logits(call: Call) -> Answer:
    hidden = rms_norm.rms_norm(call.act("x"), call.weight("norm"), call.number("eps"), call.numerics)
    return {"hidden": hidden, "logits": head.logits(hidden, call.product("head"), call.numerics)}


def _argmax(call: Call) -> Answer:
    logits = call.act("logits")
    return {"proposals": head.best(logits, call.public(logits), call.numerics).id}


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "context.feature": _feature,
    "context.key": _key,
    "context.value": _value,
    "draft.embed": _embed,
    "draft.qkv": _qkv,
    "draft.attention": _attention,
    "draft.output": _output,
    "draft.mlp": _mlp,
    "draft.final": _final,
    "head.logits": _logits,
    "head.argmax": _argmax,
    "target.attention": _target_attention,
    "target.logits": _target_logits,
}
