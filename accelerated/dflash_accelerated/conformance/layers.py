"""CTX, DRAFT and HEAD ops, and the parts of a target: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.models import dflash, qwen3
from dflash_accelerated.ops import attention, context_kv, head, mlp, qkv, rope


def _feature(call: Call) -> Answer:
    weights = (call.weight("fc"), call.weight("hidden_norm"))
    return context_kv.feature(call.act("features"), *weights, call.number("eps"), call.numerics)._asdict()


def _key(call: Call) -> Answer:
    norm = call.weight("k_norm")
    turn = rope.tables(call.ids("positions"), call.number("theta"), norm.shape[0], call.numerics)
    made = context_kv.keys(call.act("c"), call.weight("k_proj"), norm, turn, call.number("eps"), call.numerics)
    return made._asdict()


def _value(call: Call) -> Answer:
    kv_heads = call.integer("kv_heads")
    return context_kv.values(call.act("c"), call.weight("v_proj"), kv_heads, call.numerics)._asdict()


def _embed(call: Call) -> Answer:
    return {"x": head.embed(call.ids("ids"), call.act("embedding"))}


def layer_of(call: Call, *names: str) -> LayerWeights:
    """A layer of which only the fields `names` are given."""
    weights = dict.fromkeys(LayerWeights._fields, torch.empty(0))
    return LayerWeights(**(weights | {name: call.weight(name) for name in names}))


def _qkv(call: Call) -> Answer:
    layer = layer_of(call, "input_norm", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm")
    turn = rope.tables(call.ids("positions"), call.number("theta"), layer.q_norm.shape[0], call.numerics)
    return qkv.project(call.act("x"), layer, turn, call.number("eps"), call.numerics)._asdict()


def _attention(call: Call) -> Answer:
    """Dead rows are left out here as the engine leaves them out; what is returned for them is zero."""
    length, live = call.integer("context_length"), call.integer("live")
    context = rows_of(call.act("context_key")[:length], call.context_value("context_value")[:length])
    block = rows_of(call.act("block_key")[:live], call.act("block_value")[:live])
    visible = dflash.block_visibility(
        call.ids("context_positions")[:length],
        call.ids("positions")[:live],
        call.integer("window"),
        bool(call.integer("causal")),
    )
    queries = call.act("q")
    attended = attention.attend(queries[:live], [context, block], visible, call.numerics)
    dead = attended.new_zeros(queries.shape[0] - live, attended.shape[1])
    return {"attended": torch.cat((attended, dead))}


def _target_attention(call: Call) -> Answer:
    length = call.integer("length")
    rows = rows_of(call.act("key")[:length], call.context_value("value")[:length])
    window = call.integer("window")
    return {"attended": qwen3.attend_causally(call.act("q"), rows, call.ids("positions"), 0, window, call.numerics)}


def rows_of(key: torch.Tensor, value: torch.Tensor) -> attention.Rows:
    """Keys and values [C, KV, D] as attention reads them."""
    return attention.Rows(key.transpose(0, 1), value.transpose(0, 1))


def _output(call: Call) -> Answer:
    weights = call.weight("o_proj")
    return {"y": mlp.attention_output(call.act("attended"), weights, call.act("x"), call.numerics)}


def _mlp(call: Call) -> Answer:
    layer = layer_of(call, "post_norm", "gate_proj", "up_proj", "down_proj")
    return mlp.mlp(call.act("y"), layer, call.number("eps"), call.numerics)._asdict()


def _final(call: Call) -> Answer:
    return {"hidden": head.final_rows(call.act("x"), call.weight("norm"), call.number("eps"), call.numerics)}


def _logits(call: Call) -> Answer:
    return {"logits": head.logits(call.act("hidden"), call.weight("head"), call.numerics)}


def _target_logits(call: Call) -> Answer:
    weights = (call.weight("norm"), call.weight("head"))
    return qwen3.final_logits(call.act("x"), *weights, call.number("eps"), call.numerics)._asdict()


def _argmax(call: Call) -> Answer:
    logits = call.act("logits")
    return {"proposals": head.argmax(logits, call.public(logits))}


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
