"""Ops that functions and modules of the authors' package answer one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import dflash.model as package
import numpy as np
import torch
from dflash_spec.errors import UnsupportedError
from dflash_spec.tensors import Array
from torch import Tensor, nn

from dflash_vectors.peers.modules import Given, array, batch, capture, fill, integer, qwen3_config, tensor, unrotated
from dflash_vectors.peers.scripted import ScriptedTarget

Answer = dict[str, Any]


def tap_concat(residuals: Array, ids: Array) -> Answer:
    return {"features": array(package.extract_context_feature(list(tensor(residuals)[:, None]), ids.tolist()))}


def context_feature(features: Array, fc: Array, hidden_norm: Array, eps: Array) -> Answer:
    hidden = len(fc)
    config = qwen3_config(
        hidden=hidden, eps=float(eps), layers=0, num_target_layers=8,
        dflash_config={"mask_token_id": 0, "target_layer_ids": list(range(fc.shape[1] // hidden))},
    )  # fmt: skip
    model = package.DFlashDraftModel(config)
    fill(model, {"fc.weight": fc, "hidden_norm.weight": hidden_norm}, whole=False)
    with capture(projected=model.fc, c=model.hidden_norm) as seen:
        model(
            position_ids=torch.arange(len(features) + 1)[None], target_hidden=batch(features),
            noise_embedding=torch.zeros(1, 1, hidden),
        )  # fmt: skip
    return {"stage.projected": array(seen["projected"][0]), "c": array(seen["c"][0])}


def attention_module(config: Any, **weights: Array) -> Any:
    """The package's attention with the weights given by module name, the others as they are made."""
    made = package.Qwen3DFlashAttention(config, 0)
    fill(made, {f"{name}.weight": values for name, values in weights.items()}, whole=False)
    return made


def _context_rows(attention: Any, config: Any, c: Array, table: tuple[Tensor, Tensor]) -> Any:
    """Feed context rows and one block row of zeros through an attention module: the cache layer that it wrote.

    `table` has the cosines and sines of all these rows.
    """
    cache = package._make_cache(config)
    attention(
        hidden_states=torch.zeros(1, 1, c.shape[1]), target_hidden=batch(c), attention_mask=None,
        position_embeddings=table, past_key_values=cache,
    )  # fmt: skip
    return cache.layers[0]


def context_key(c: Array, k_proj: Array, k_norm: Array, positions: Array, theta: Array, eps: Array) -> Answer:
    heads, dim = len(k_proj) // len(k_norm), len(k_norm)
    config = qwen3_config(
        hidden=c.shape[1], heads=heads, kv_heads=heads, head_dim=dim, theta=float(theta), eps=float(eps)
    )
    attention = attention_module(config, k_proj=k_proj, k_norm=k_norm)
    with capture(raw=attention.k_proj, normed=attention.k_norm) as seen:
        places = torch.cat([tensor(positions), tensor(positions[-1:])])[None]
        written = _context_rows(attention, config, c, package.Qwen3RotaryEmbedding(config)(torch.zeros(1), places))
    rows = len(c)
    return {
        "stage.raw": array(seen["raw"][0]).reshape(rows, heads, dim),
        "stage.normed": array(seen["normed"][0])[:rows],
        "key": array(written.keys.transpose(1, 2))[:rows],
    }


def context_value(c: Array, v_proj: Array, kv_heads: Array) -> Answer:
    """Values are not rotated, so the head dim may be odd, which only the config refuses."""
    heads = integer(kv_heads)
    config = qwen3_config(hidden=c.shape[1], heads=heads, kv_heads=heads)
    config.head_dim = len(v_proj) // heads
    attention = attention_module(config, v_proj=v_proj)
    with capture(raw=attention.v_proj) as seen:
        written = _context_rows(attention, config, c, unrotated(len(c) + 1, config.head_dim))
    return {
        "stage.raw": array(seen["raw"][0]).reshape(len(c), heads, -1),
        "value": array(written.values.transpose(1, 2))[: len(c)],
    }


def mask_draft(
    context_positions: Array, context_length: Array, positions: Array, window: Array, causal: Array
) -> Answer:
    """The package's mask over what its cache would hold: the populated rows, then the block."""
    populated, rows = integer(context_length), len(positions)
    unwritten = len(context_positions) - populated
    seen = package._attention_mask(
        torch.zeros(1, 1, rows, 1), torch.zeros(1, 1, populated + rows, 1),
        is_causal=bool(causal), sliding_window=integer(window) or None,
    )[0, 0].numpy()  # fmt: skip
    return {"visible": np.insert(seen, [populated] * unwritten, 0, axis=1).astype(np.uint8)}


def draft_embed(embedding: Array, ids: Array) -> Answer:
    target = ScriptedTarget(len(embedding), [], tensor(embedding))
    return {"x": array(package._raw_input_embeddings(target, batch(ids)))}


def decoder_layer(config: Any, weights: Mapping[str, Array]) -> Any:
    """The package's layer with the weights given by module name, the others as they are made."""
    made = package.Qwen3DFlashDecoderLayer(config, 0)
    fill(made, {f"{name}.weight": values for name, values in weights.items()}, whole=False)
    return made


def attending(answer: Callable[..., Tensor]) -> Any:
    """Put `answer(q, k, v)` in the place of the attention kernel that the package looks up."""

    def kernel(_module: Any, q: Tensor, k: Tensor, v: Tensor, _mask: Any, **_: Any) -> tuple[Tensor, None]:
        return answer(q, k, v), None

    return mock.patch.object(package, "ALL_ATTENTION_FUNCTIONS", {"sdpa": kernel})


def draft_qkv(
    x: Array, input_norm: Array, q_proj: Array, k_proj: Array, v_proj: Array, q_norm: Array, k_norm: Array,
    positions: Array, theta: Array, eps: Array,
) -> Answer:  # fmt: skip
    dim, rows = len(q_norm), len(x)
    config = qwen3_config(
        hidden=x.shape[1], heads=len(q_proj) // dim, kv_heads=len(k_proj) // dim, head_dim=dim, theta=float(theta),
        eps=float(eps),
    )  # fmt: skip
    layer = decoder_layer(
        config,
        {
            "input_layernorm": input_norm, "self_attn.q_proj": q_proj, "self_attn.k_proj": k_proj,
            "self_attn.v_proj": v_proj, "self_attn.q_norm": q_norm, "self_attn.k_norm": k_norm,
        },
    )  # fmt: skip
    part = layer.self_attn
    heads: dict[str, Tensor] = {}

    def keep(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads.update(q=q, k=k, v=v)
        return torch.zeros(1, rows, q.shape[1], dim)

    with (
        attending(keep),
        capture(n=layer.input_layernorm, q=part.q_proj, k=part.k_proj, q_normed=part.q_norm, k_normed=part.k_norm) as s,
    ):
        layer(
            hidden_states=batch(x), target_hidden=torch.zeros(1, 0, x.shape[1]),
            position_embeddings=package.Qwen3RotaryEmbedding(config)(torch.zeros(1), batch(positions)),
        )  # fmt: skip
    return {
        "stage.n": array(s["n"][0]),
        "stage.q_raw": array(s["q"][0]).reshape(rows, -1, dim),
        "stage.k_raw": array(s["k"][1]).reshape(rows, -1, dim),
        "stage.q_normed": array(s["q_normed"][0]),
        "stage.k_normed": array(s["k_normed"][0]),
        **{name: array(values.transpose(1, 2)) for name, values in heads.items()},
    }


def draft_attention(
    q: Array, context_key: Array, context_value: Array, block_key: Array, block_value: Array,
    context_positions: Array, context_length: Array, positions: Array, live: Array, window: Array, causal: Array,
) -> Answer:  # fmt: skip
    """The package's attention module over a cache that holds the context; the block's heads are given."""
    populated, rows, (_, heads, dim) = integer(context_length), integer(live), q.shape
    places = [*context_positions[:populated].tolist(), *positions[:rows].tolist()]
    if places != list(range(places[0], places[0] + len(places))):
        raise UnsupportedError("the package's cache has no gaps: it counts distance in rows")
    kv_heads = block_key.shape[1]
    config = qwen3_config(heads=heads, kv_heads=kv_heads, head_dim=dim, window=integer(window), is_causal=bool(causal))
    attention = package.Qwen3DFlashAttention(config, 0)
    attention.q_proj, attention.k_proj, attention.v_proj = Given(q), Given(block_key), Given(block_value)
    attention.q_norm = attention.k_norm = attention.o_proj = nn.Identity()
    cache = package._make_cache(config)
    if populated:
        cache.update(
            batch(context_key[:populated]).transpose(1, 2), batch(context_value[:populated]).transpose(1, 2), 0
        )
        cache.crop(0)
    attended = np.zeros((len(q), heads * dim), dtype=np.float32)
    attended[:rows] = array(
        attention(
            hidden_states=torch.zeros(1, rows, 2), target_hidden=torch.zeros(1, 0, 2), attention_mask=None,
            position_embeddings=unrotated(rows, dim), past_key_values=cache,
        )[0]
    )  # fmt: skip
    return {"attended": attended}


def draft_output(attended: Array, o_proj: Array, x: Array) -> Answer:
    config = qwen3_config(hidden=x.shape[1], head_dim=attended.shape[1])
    layer = decoder_layer(config, {"self_attn.o_proj": o_proj})
    layer.post_attention_layernorm = nn.Identity()
    with attending(lambda *_: batch(attended)), capture(y=layer.post_attention_layernorm) as seen:
        layer(
            hidden_states=batch(x), target_hidden=torch.zeros(1, 0, x.shape[1]),
            position_embeddings=unrotated(len(x), attended.shape[1]),
        )  # fmt: skip
    return {"y": array(seen["y"][0])}


def draft_mlp(y: Array, post_norm: Array, gate_proj: Array, up_proj: Array, down_proj: Array, eps: Array) -> Answer:
    hidden = y.shape[1]
    config = qwen3_config(hidden=hidden, intermediate=len(gate_proj), eps=float(eps))
    layer = decoder_layer(
        config,
        {
            "post_attention_layernorm": post_norm, "mlp.gate_proj": gate_proj, "mlp.up_proj": up_proj,
            "mlp.down_proj": down_proj, "self_attn.o_proj": np.zeros((hidden, 2)),
        },
    )  # fmt: skip
    products: list[Tensor] = []
    layer.mlp.down_proj.register_forward_pre_hook(lambda _module, arguments: products.append(arguments[0]))
    with attending(lambda q, *_: torch.zeros(1, q.shape[2], 2)), capture(m=layer.post_attention_layernorm) as seen:
        out = layer(
            hidden_states=batch(y), target_hidden=torch.zeros(1, 0, hidden), position_embeddings=unrotated(len(y), 2)
        )
    return {"stage.m": array(seen["m"][0]), "stage.product": array(products[0]), "x_next": array(out)}


def head_logits(hidden: Array, head: Array) -> Answer:
    config = qwen3_config(num_target_layers=8, dflash_config={"mask_token_id": 0, "target_layer_ids": [0]})
    output = nn.Linear(head.shape[1], len(head), bias=False)
    fill(output, {"weight": head})
    return {"logits": array(package.DFlashDraftModel(config).compute_logits(batch(hidden), output))}


def proc_distribution(logits: Array, temperature: Array, public: Array) -> Answer:
    """The probabilities of every id in ascending order: what `torch.multinomial` draws from."""
    rows, vocabulary = logits.shape
    p = package._sampling_probs(tensor(logits), float(temperature)).numpy()
    return {"support": np.tile(np.arange(vocabulary), (rows, 1)), "p": p}


def proc_greedy(logits: Array, public: Array) -> Answer:
    return {"tokens": package.sample(tensor(logits), 0.0).numpy()}


OPS: dict[str, Callable[..., Answer]] = {
    "tap.concat": tap_concat,
    "context.feature": context_feature,
    "context.key": context_key,
    "context.value": context_value,
    "mask.draft": mask_draft,
    "draft.embed": draft_embed,
    "draft.qkv": draft_qkv,
    "draft.attention": draft_attention,
    "draft.output": draft_output,
    "draft.mlp": draft_mlp,
    "head.logits": head_logits,
    "proc.distribution": proc_distribution,
    "proc.greedy": proc_greedy,
}
