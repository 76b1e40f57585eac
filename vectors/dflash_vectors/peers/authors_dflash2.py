"""Ops that DFlash2 adds, answered by the authors' `DFlash2DraftModel`, its convolution and its selector."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import dflash.model as package
import numpy as np
import torch
from dflash_spec.errors import UnsupportedError
from dflash_spec.tensors import Array
from torch import Tensor, nn
from transformers import Qwen3Config

from dflash_vectors.peers import scripted
from dflash_vectors.peers.authors_modules import attending, attention_module, decoder_layer
from dflash_vectors.peers.modules import (
    Given,
    array,
    batch,
    capture,
    fill,
    integer,
    qwen3_config,
    tensor,
    text,
    unrotated,
)
from dflash_vectors.peers.scripted import Reply, ScriptedTarget

Answer = dict[str, Any]
ARCHITECTURE = "DFlash2DraftModel"
UNGIVEN = "the package draws with torch.multinomial, which takes no given uniforms"


def published(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors by their names in a checkpoint, under the names of the package's module, by its own mapping."""
    seen: dict[str, str] = {}

    def keep(_cls: Any, *_: Any, key_mapping: Mapping[str, str]) -> None:
        seen.update(key_mapping)

    with mock.patch.object(package.DFlashDraftModel, "from_pretrained", classmethod(keep)):
        package.DFlash2DraftModel.from_pretrained()
    return {seen.get(name, name): values for name, values in weights.items()}


def model_of(config: Array, weights: Mapping[str, Array]) -> Any:
    """The package's draft of a config file, of the class that the file names, filled with published tensors."""
    read = json.loads(text(config))
    second = read.get("architectures") == [ARCHITECTURE]
    model = (package.DFlash2DraftModel if second else package.DFlashDraftModel)(Qwen3Config.from_dict(read))
    fill(model, published(weights) if second else weights)
    return model


def small_model(*, rank: int = 1, top: int = 1, members: Mapping[str, Any] | None = None, **sizes: Any) -> Any:
    """A DFlash2 draft of the given sizes whose weights are zeros; `members` are further ones of dflash_config."""
    nested = {
        "mask_token_id": 0, "target_layer_ids": [0], "conv_kernel_size": 1, "conv_group_size": 1,
        "selector_rank": rank, "selector_top_k": top, **(members or {}),
    }  # fmt: skip
    model = package.DFlash2DraftModel(qwen3_config(num_target_layers=8, dflash_config=nested, **sizes))
    for values in model.parameters():
        nn.init.zeros_(values)
    model.eval()
    return model


def _blocks(values: Array, block_rows: Array) -> Tensor:
    """[R, ...] -> [blocks, block_rows, ...]: what the op flattens is a batch to the package."""
    rows = tensor(values)
    return rows.view(-1, integer(block_rows), *rows.shape[1:])


def _flat(values: Tensor) -> Array:
    return np.asarray(values.flatten(0, 1).numpy())


def _convolved_layer(base: Array, group: Array, sizes: Mapping[str, Any], weights: Mapping[str, Array]) -> Any:
    _, taps, hidden = base.shape
    layer = decoder_layer(qwen3_config(hidden=hidden, **sizes), weights)
    layer.attention_conv = package.GroupedDynamicCausalConv(hidden, taps, integer(group))
    fill(layer.attention_conv, {"base_kernel": base}, whole=False)
    return layer


class _Idle(nn.Module):
    """Stands in for a branch: gives its rows back."""

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor]:
        return (hidden_states,)


def conv_prepare(
    x: Array, norm: Array, base: Array, projection: Array, group: Array, block_rows: Array, eps: Array
) -> Answer:
    """The first half of the package's layer, seen where its branch begins and where its convolution is resumed."""
    rows = _blocks(x, block_rows)
    layer = _convolved_layer(base, group, {"eps": float(eps)}, {"input_layernorm": norm})
    fill(layer.attention_conv, {"kernel_projection.weight": projection}, whole=False)
    layer.self_attn = _Idle()
    conv = layer.attention_conv
    with capture(prepared=layer.self_attn) as seen, mock.patch.object(conv, "finish", wraps=conv.finish) as finish:
        layer(hidden_states=rows)
    return {"prepared": _flat(seen["prepared"][0]), "finish_delta": _flat(finish.call_args.args[1])}


def conv_finish(
    branch: Array, weight: Array, base: Array, finish_delta: Array, residual: Array, group: Array, block_rows: Array
) -> Answer:
    """The second half of the package's branch: its output projection, its convolution and its residual addition."""
    rows, width = _blocks(residual, block_rows), branch.shape[1]
    layer = _convolved_layer(base, group, {"head_dim": width}, {"self_attn.o_proj": weight})
    layer.post_attention_layernorm = nn.Identity()
    delta = _blocks(finish_delta, block_rows)
    with (
        attending(lambda *_: _blocks(branch, block_rows)),
        mock.patch.object(layer.attention_conv, "prepare", lambda given: (given, delta)),
        capture(y=layer.post_attention_layernorm) as seen,
    ):
        layer(
            hidden_states=rows, target_hidden=torch.zeros(len(rows), 0, rows.shape[2]),
            position_embeddings=unrotated(rows.shape[1], width),
        )  # fmt: skip
    return {"residual_next": _flat(seen["y"][0])}


def qkv(
    prepared: Array, q_proj: Array, k_proj: Array, v_proj: Array, q_norm: Array, k_norm: Array,
    positions: Array, theta: Array, eps: Array,
) -> Answer:  # fmt: skip
    """The package's attention module, up to the kernel that it calls."""
    dim, rows = len(q_norm), len(prepared)
    config = qwen3_config(
        hidden=prepared.shape[1], heads=len(q_proj) // dim, kv_heads=len(k_proj) // dim, head_dim=dim,
        theta=float(theta), eps=float(eps),
    )  # fmt: skip
    module = attention_module(config, q_proj=q_proj, k_proj=k_proj, v_proj=v_proj, q_norm=q_norm, k_norm=k_norm)
    heads: dict[str, Tensor] = {}

    def keep(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads.update(q=q, k=k, v=v)
        return torch.zeros(1, rows, q.shape[1], dim)

    with attending(keep), capture(q=module.q_proj, k=module.k_proj) as seen:
        module(
            hidden_states=batch(prepared), target_hidden=torch.zeros(1, 0, prepared.shape[1]), attention_mask=None,
            position_embeddings=package.Qwen3RotaryEmbedding(config)(torch.zeros(1), batch(positions)),
        )  # fmt: skip
    return {
        "stage.q_raw": array(seen["q"][0]).reshape(rows, -1, dim),
        "stage.k_raw": array(seen["k"][1]).reshape(rows, -1, dim),
        **{name: array(values.transpose(1, 2)) for name, values in heads.items()},
    }


def mlp(prepared: Array, gate_proj: Array, up_proj: Array) -> Answer:
    """The MLP of the package's layer, seen where it projects down."""
    layer = decoder_layer(
        qwen3_config(hidden=prepared.shape[1], intermediate=len(gate_proj)),
        {"mlp.gate_proj": gate_proj, "mlp.up_proj": up_proj},
    )
    products: list[Tensor] = []
    layer.mlp.down_proj.register_forward_pre_hook(lambda _module, arguments: products.append(arguments[0]))
    layer.mlp(batch(prepared))
    return {"product": array(products[0])}


@contextmanager
def ranking() -> Iterator[list[tuple[Tensor, Tensor]]]:
    """What the package's own top-k returns while the block runs, call by call: scores and ids, in its order."""
    seen: list[tuple[Tensor, Tensor]] = []
    rank = torch.topk

    def watched(*arguments: Any, **named: Any) -> Any:
        seen.append(rank(*arguments, **named))
        return seen[-1]

    with mock.patch.object(torch, "topk", watched):
        yield seen


def best_first(ranked: tuple[Tensor, Tensor]) -> tuple[Array, Array]:
    """Ids and scores [P, C] by falling score. The package asks for an unsorted top-k, so any order is right by it.

    Equal scores stay in its own order.
    """
    scores, ids = (array(values) for values in ranked)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)


def head_top(
    hidden: Array, head: Array, global_ids: Array, public: Array, multiplier: Array, softcap: Array, top: Array
) -> Answer:
    """The candidates of `propose`. It has no count of public rows to look at, and no indexed head."""
    del public
    if global_ids.tolist() != list(range(len(head))):
        raise UnsupportedError("the package proposes from the target's whole head")
    scalars = {"output_multiplier": float(multiplier), "final_logit_softcapping": float(softcap)}
    model = small_model(
        top=integer(top), hidden=hidden.shape[1], vocabulary=len(head), layers=0, members=scalars
    )  # fmt: skip
    output = nn.Linear(head.shape[1], len(head), bias=False)
    fill(output, {"weight": head})
    with ranking() as seen:
        model.propose(batch(hidden), torch.zeros(1, dtype=torch.long), output, 0.0)
    ids, scores = best_first(seen[0])
    return {"candidates": ids, "unary": scores}


def _selector(hidden: int, rank: int, top: int, rows: int) -> Any:
    return small_model(
        rank=rank, top=top, hidden=hidden, vocabulary=rows, layers=0
    ).candidate_selector  # fmt: skip


def selector_project(hidden: Array, projection: Array) -> Answer:
    """The hidden row of `select`, walking over a table of one token."""
    selector = _selector(hidden.shape[1], len(projection), 1, 1)
    fill(selector, {"hidden_projection.weight": projection}, whole=False)
    with capture(g=selector.hidden_projection) as seen:
        selector.select(batch(hidden), torch.zeros(1, len(hidden), 1), torch.zeros(1, dtype=torch.long), 0.0)
    return {"g": array(seen["g"][0])}


def walked(
    candidates: Array, unary: Array, g: Array, predecessor: Array, successor: Array, anchor: Array, temperature: float,
    chosen: Array | None = None,
) -> Answer:  # fmt: skip
    """`select` on candidates and hidden rows that are given: its scores, its path, and its law if it has one.

    Where it would draw, the ranks `chosen` [P] are handed to it instead: the path is then given, and the laws are its.
    """
    selector = _selector(1, g.shape[1], candidates.shape[1], len(predecessor))
    fill(selector, {"predecessor_codebook.weight": predecessor, "successor_codebook.weight": successor}, whole=False)
    selector.hidden_projection = Given(g)
    ranked, scores = (batch(unary), batch(candidates)), list[Tensor]()
    pick, soften = torch.argmax, package._sampling_probs
    given = [] if chosen is None else list(tensor(chosen)[:, None])

    def watched(values: Tensor, **named: Any) -> Any:
        scores.append(values)
        return pick(values, **named)

    def softened(values: Tensor, temperature: float) -> Any:
        scores.append(values[:, 0])
        return soften(values, temperature)

    with (
        mock.patch.object(torch, "topk", return_value=ranked),
        mock.patch.object(torch, "argmax", watched),
        mock.patch.object(package, "_sampling_probs", softened),
        mock.patch.object(package, "_sample_probs", side_effect=given),
    ):
        rows = torch.zeros(1, len(g), 1)
        path, _, q = selector.select(rows, rows, torch.tensor([integer(anchor)]), temperature)
    return {
        "stage.scores": array(torch.stack(scores, dim=1)),
        "proposals": array(path),
        "q": certain(candidates, array(path)) if q is None else array(q),
    }


def certain(candidates: Array, path: Array) -> Array:
    """The law [P, C] of a path that was not drawn. The package keeps none where it takes the largest score."""
    return np.asarray(candidates == path[:, np.newaxis], dtype=np.float32)


def selector_walk(
    candidates: Array, unary: Array, g: Array, predecessor: Array, successor: Array, anchor: Array,
    temperature: Array, u: Array,
) -> Answer:  # fmt: skip
    """The greedy walk."""
    del u
    if float(temperature) > 0:
        raise UnsupportedError(UNGIVEN)
    return walked(candidates, unary, g, predecessor, successor, anchor, 0.0)


def block(
    config: Array, target_config: Array, embedding: Array, head: Array, features: Array, anchor: Array, drafts: Array,
    extent: Array, public: Array, temperature: Array, u: Array, **weights: Array,
) -> Answer:  # fmt: skip
    """The whole greedy draft in the loop's first round, on a target that hands it features, embedding and head."""
    del target_config, public, u
    if float(temperature) > 0:
        raise UnsupportedError(UNGIVEN)
    model = model_of(config, {name.removeprefix("draft."): values for name, values in weights.items()})
    target = ScriptedTarget(
        len(embedding), [Reply([integer(anchor)], tapped(model, features))], tensor(embedding), tensor(head)
    )
    layers = {f"layer.{index}": layer for index, layer in enumerate(model.layers)}
    hiddens: list[Tensor] = []
    target.lm_head.register_forward_pre_hook(lambda _module, arguments: hiddens.append(arguments[0]))
    with capture(c=model.hidden_norm, **layers) as seen, ranking() as ranked:
        scripted.generate(model, target, [0] * len(features), integer(extent) + 1, drafts=integer(drafts))
    candidates, _ = best_first(ranked[0])
    proposals = target.calls[1].ids[1:].numpy()
    return {
        "stage.hidden": array(hiddens[0]),
        "candidates": candidates,
        "proposals": proposals,
        "q": certain(candidates, proposals),
        **{f"stage.{name}": array(values[0]) for name, values in seen.items()},
    }


def tapped(model: Any, features: Array) -> list[Tensor | None]:
    """Residual boundaries of a target whose taps give `features` [T, n·H]."""
    boundaries: list[Tensor | None] = [None] * (max(model.target_layer_ids) + 2)
    for id_, rows in zip(model.target_layer_ids, tensor(features).chunk(len(model.target_layer_ids), -1), strict=True):
        boundaries[id_ + 1] = rows
    return boundaries


class _Growing(nn.Module):
    """Stands in for all layers of a draft: gives its rows back, and writes a cache as long as a layer would."""

    def forward(self, hidden_states: Tensor, past_key_value: Any, position_ids: Tensor, **_: Any) -> Tensor:
        scripted.grow(past_key_value, position_ids.shape[1])
        return hidden_states


def block_inputs(anchor: Array, mask_id: Array, frontier: Array, drafts: Array, extent: Array) -> Answer:
    """What draft and target are handed in the first round of a budget that holds `extent` proposals."""
    vocabulary = max(integer(anchor), integer(mask_id)) + 1
    model = small_model(hidden=1, vocabulary=vocabulary, members={"mask_token_id": integer(mask_id)})
    model.layers = nn.ModuleList([_Growing()])
    calls: list[dict[str, Tensor]] = []
    model.register_forward_pre_hook(lambda _module, _given, named: calls.append(named), with_kwargs=True)
    prompt = torch.zeros(integer(frontier), dtype=torch.long)
    target = ScriptedTarget(
        vocabulary, [Reply([integer(anchor)], [None, torch.zeros(len(prompt), 1)])],
        head=torch.zeros(vocabulary, 1),
    )  # fmt: skip
    scripted.generate(model, target, prompt, integer(extent) + 1, drafts=integer(drafts))
    if not calls:
        raise UnsupportedError("the package calls no draft where nothing can be proposed")
    ids = calls[0]["noise_embedding"][0, :, 0].long()
    return {
        "ids": ids.numpy(),
        "positions": calls[0]["position_ids"][0, -len(ids) :].numpy(),
        "live": len(ids),
        "target_live": len(target.calls[1].ids),
    }


OPS: dict[str, Callable[..., Answer]] = {
    "conv.prepare": conv_prepare,
    "conv.finish": conv_finish,
    "draft2.qkv": qkv,
    "draft2.mlp": mlp,
    "head.top": head_top,
    "selector.project": selector_project,
    "selector.walk": selector_walk,
    "draft2.block": block,
    "block.dflash2_inputs": block_inputs,
}
