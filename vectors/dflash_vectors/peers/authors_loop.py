"""Ops that the authors' `dflash_generate` answers: its own loop, on scripted models or on whole ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import dflash.model as package
import numpy as np
import torch
from dflash_spec.errors import UnsupportedError
from dflash_spec.tensors import Array
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_vectors.peers import scripted
from dflash_vectors.peers.authors_dflash2 import model_of, tapped
from dflash_vectors.peers.modules import array, batch, capture, fill, integer, qwen3_config, tensor, text
from dflash_vectors.peers.scripted import Reply, ScriptedDraft, ScriptedTarget, proposing

Answer = dict[str, Any]
LONG = 1 << 16
"""A budget that no scripted run reaches."""


def _prompt(length: Array) -> Tensor:
    return torch.zeros(integer(length), dtype=torch.long)


NEVER_CANCELS = "the package cancels no round: each keeps a token at least"


def context_pending(captured: Array, frontier: Array, committed: Array) -> Answer:
    """One round keeps `committed` tokens; the next shows which features the draft is handed, and where they lie."""
    rows, kept = len(captured), integer(committed)
    if kept == 0:
        raise UnsupportedError(NEVER_CANCELS)
    told = [2] * (kept - 1) + [3] * (rows - kept + 1)
    draft = ScriptedDraft(0, rows, proposing([2] * (rows - 1), 4))
    prompt = _prompt(frontier)
    before = torch.zeros(len(prompt), captured.shape[1])
    replies = [Reply([1], [None, before]), Reply(told, [None, tensor(captured)])]
    scripted.generate(draft, ScriptedTarget(4, replies), prompt, LONG)
    if len(draft.calls) < 2:
        raise UnsupportedError("the package captures no features in rounds without proposals")
    features, positions = draft.features[1], draft.calls[1].positions
    count = len(features)
    return {
        "features": features.numpy(),
        "positions": positions[:count].numpy(),
        "context_frontier": int(positions[count]),
    }


def block_extent(drafts: Array, remaining: Array, capacity: Array, frontier: Array) -> Answer:
    """The first round's verify width. The package has no capacity to pass on."""
    draft = ScriptedDraft(0, integer(drafts) + 1, proposing([1] * integer(drafts), 2))
    target = ScriptedTarget(2, [Reply([1])])
    scripted.generate(draft, target, _prompt(frontier), integer(remaining) + 1)
    return {"extent": len(target.calls[1].ids) - 1}


def block_inputs(anchor: Array, mask_id: Array, frontier: Array, drafts: Array, extent: Array) -> Answer:
    """What the draft is handed in the first round of a budget that holds `extent` proposals; all of it is live."""
    vocabulary = max(integer(anchor), integer(mask_id)) + 1
    draft = ScriptedDraft(integer(mask_id), integer(drafts) + 1, proposing([0] * integer(drafts), vocabulary))
    target = ScriptedTarget(vocabulary, [Reply([integer(anchor)])])
    scripted.generate(draft, target, _prompt(frontier), integer(extent) + 1)
    if not draft.calls:
        raise UnsupportedError("the package calls no draft where nothing can be proposed")
    ids = draft.calls[0].ids
    return {"ids": ids.numpy(), "positions": draft.calls[0].positions[-len(ids) :].numpy(), "live": len(ids)}


def block_verify_inputs(anchor: Array, proposals: Array, frontier: Array, extent: Array) -> Answer:
    """What the target is handed in the first round of a budget that holds `extent` proposals."""
    vocabulary = max(integer(anchor), int(proposals.max())) + 1
    draft = ScriptedDraft(0, len(proposals) + 1, proposing(proposals.tolist(), vocabulary))
    target = ScriptedTarget(vocabulary, [Reply([integer(anchor)])])
    scripted.generate(draft, target, _prompt(frontier), integer(extent) + 1)
    if len(target.calls) < 2:
        raise UnsupportedError("the package verifies nothing where nothing remains of the budget")
    return {"ids": target.calls[1].ids.numpy(), "positions": target.calls[1].positions.numpy()}


class _Layers(nn.Module):
    """Stands in for all layers of a draft: gives the residual rows that the vector has."""

    def __init__(self, rows: Array) -> None:
        super().__init__()
        self._rows = batch(rows)

    def forward(self, past_key_value: Any, position_ids: Tensor, **_: Any) -> Tensor:
        scripted.grow(past_key_value, position_ids.shape[1])
        return self._rows


def draft_final(x: Array, norm: Array, eps: Array) -> Answer:
    """The loop's own slice of what the model's forward returns, seen where it reaches the head."""
    rows, hidden = x.shape
    config = qwen3_config(
        hidden=hidden, eps=float(eps), num_target_layers=8, dflash_config={"mask_token_id": 0, "target_layer_ids": [0]}
    )
    model = package.DFlashDraftModel(config)
    fill(model, {"norm.weight": norm}, whole=False)
    model.layers = nn.ModuleList([_Layers(x)])
    target = ScriptedTarget(2, [Reply([1], [None, torch.zeros(1, hidden)])], torch.zeros(2, hidden))
    with capture(hidden=target.lm_head) as seen:
        scripted.generate(model, target, [0], LONG, drafts=rows - 1)
    return {"hidden": array(seen["hidden"][0])}


def draft_block(
    config: Array, target_config: Array, embedding: Array, head: Array, features: Array,
    anchor: Array, drafts: Array, extent: Array, public: Array, **weights: Array,
) -> Answer:  # fmt: skip
    """The whole draft in the loop's first round, on a target that hands it features, embedding and head."""
    del target_config, public
    model = model_of(config, {name.removeprefix("draft."): values for name, values in weights.items()})
    reply = Reply([integer(anchor)], tapped(model, features))
    target = ScriptedTarget(len(embedding), [reply], tensor(embedding), tensor(head))
    layers = {f"layer.{index}": layer for index, layer in enumerate(model.layers)}
    hiddens: list[Tensor] = []
    target.lm_head.register_forward_pre_hook(lambda _module, arguments: hiddens.append(arguments[0]))
    with capture(c=model.hidden_norm, **layers) as seen:
        scripted.generate(model, target, [0] * len(features), integer(extent) + 1, drafts=integer(drafts))
    return {
        "stage.hidden": array(hiddens[0]),
        "proposals": target.calls[1].ids[1:].numpy(),
        **{f"stage.{name}": array(values[0]) for name, values in seen.items()},
    }


def head_argmax(logits: Array, public: Array) -> Answer:
    """The proposals that the loop verifies. It has no count of public rows to look at."""
    rows, vocabulary = logits.shape
    draft = ScriptedDraft(0, rows + 1, lambda _: tensor(logits))
    target = ScriptedTarget(vocabulary, [Reply([0])])
    scripted.generate(draft, target, [0], LONG)
    return {"proposals": target.calls[1].ids[1:].numpy()}


def law_greedy(proposals: Array, target: Array) -> Answer:
    """One round of the loop. Slots of the answer past its tokens are 0."""
    vocabulary = int(max(proposals.max(initial=0), target.max())) + 1
    draft = ScriptedDraft(0, len(proposals) + 1, proposing(proposals.tolist(), vocabulary))
    model = ScriptedTarget(vocabulary, [Reply([0]), Reply(target.tolist())])
    run = scripted.generate(draft, model, [0], LONG)
    licensed = np.zeros(len(target), dtype=np.int64)
    tokens = run.tokens[2:]
    licensed[: len(tokens)] = tokens
    return {"licensed": licensed, "accepted": run.rounds[0].accepted}


def stop_preview(licensed: Array, stop_ids: Array, remaining: Array) -> Answer:
    """One round that accepts every proposal, so that what it licenses is given."""
    stops = stop_ids.tolist()
    anchor = max([*licensed.tolist(), *stops]) + 1
    run = _round(anchor, licensed.tolist(), len(licensed) - 1, 1, stops, integer(remaining))
    return {"kept": run.rounds[0].produced, "terminal": int(run.ended)}


def commit_round(anchor: Array, licensed: Array, kept: Array, frontier: Array, target_rows: Array) -> Answer:
    """One round that wrote `target_rows`; where less is kept than licensed, a stop id cuts it."""
    tokens, count, start = licensed.tolist(), integer(kept), integer(frontier)
    if count == 0:
        raise UnsupportedError(NEVER_CANCELS)
    stops = [tokens[count - 1]] if count < len(tokens) else []
    run = _round(integer(anchor), tokens, integer(target_rows) - start - 1, start, stops, LONG)
    return {
        "rows": np.array(run.tokens[start : start + run.rounds[0].produced]),
        "next_anchor": run.tokens[-1],
        "next_frontier": len(run.tokens) - 1,
        "target_rows_kept": run.cached,
    }


def _round(
    anchor: int, licensed: list[int], drafts: int, frontier: int, stop_ids: list[int], remaining: int
) -> scripted.Run:
    """One round with `drafts` proposals, of which those in `licensed` but its last are right and the next wrong."""
    vocabulary = max([anchor, *licensed, *stop_ids]) + 2
    wrong = [vocabulary - 1] * (drafts + 1 - len(licensed))
    draft = ScriptedDraft(0, drafts + 1, proposing(licensed[:-1] + wrong, vocabulary))
    target = ScriptedTarget(vocabulary, [Reply([anchor]), Reply(licensed + [anchor] * len(wrong))])
    return scripted.generate(draft, target, _prompt(np.array(frontier)), remaining + 1, stop_ids)


def engine_generate(
    target_config: Array, draft_config: Array, prompt: Array, drafts: Array, max_new: Array, stop_ids: Array,
    public: Array, temperature: Array, seed: Array, **weights: Array,
) -> Answer:  # fmt: skip
    """The package's loop on its own draft and transformers' target."""
    if float(temperature) > 0:
        raise UnsupportedError("the package draws with torch.multinomial, which takes no given uniforms")
    target = Qwen3ForCausalLM(Qwen3Config.from_dict(json.loads(text(target_config))))
    fill(target, _named("target.", weights), whole=not target.config.tie_word_embeddings)
    model = model_of(draft_config, _named("draft.", weights))
    run = scripted.generate(model, target, prompt.tolist(), integer(max_new), stop_ids.tolist(), drafts=integer(drafts))
    proposals = np.full((len(run.rounds), integer(drafts)), -1)
    for row, round_ in zip(proposals, run.rounds, strict=True):
        row[: len(round_.proposals)] = round_.proposals
    return {
        "stage.proposals": proposals,
        "tokens": np.array(run.tokens[len(prompt) :]),
        "accepted": np.array([round_.accepted for round_ in run.rounds], dtype=np.int64),
    }


def _named(prefix: str, weights: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): values for name, values in weights.items() if name.startswith(prefix)}


OPS: dict[str, Callable[..., Answer]] = {
    "context.pending": context_pending,
    "block.extent": block_extent,
    "block.inputs": block_inputs,
    "block.verify_inputs": block_verify_inputs,
    "draft.final": draft_final,
    "draft.block": draft_block,
    "head.argmax": head_argmax,
    "law.greedy": law_greedy,
    "stop.preview": stop_preview,
    "commit.round": commit_round,
    "engine.generate": engine_generate,
}
