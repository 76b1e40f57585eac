"""The composites: a whole draft forward, a whole prefill, a whole request."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import torch
from dflash_spec.config import read_draft_config, read_target_config

from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.engine import Engine
from dflash_accelerated.loading import load_draft
from dflash_accelerated.models.dflash import DFlashDraft
from dflash_accelerated.models.qwen3 import Qwen3Target, Qwen3Vocabulary
from dflash_accelerated.ops import head
from dflash_accelerated.ops.acceptance import SparseLaw
from dflash_accelerated.protocols import Block, ContextRows, Proposal, Segment, TargetStep
from dflash_accelerated.requests import StageLog
from dflash_accelerated.settings import Sampling

CPU = torch.device("cpu")


def _draft(call: Call, config: str, target_config: str) -> DFlashDraft:
    target = read_target_config(call.text(target_config))
    read = read_draft_config(call.text(config), call.numerics.profile, target)
    return load_draft(read, call.tree("draft."), call.numerics, CPU)


def _target(call: Call, config: str) -> Qwen3Target:
    read = read_target_config(call.text(config))
    return Qwen3Target(read, call.tree("target."), call.integer("public"), call.numerics, CPU)


def _block(call: Call) -> Answer:
    stages, proposal = _proposed(call)
    return stages | {"proposals": proposal.tokens}


def _second_block(call: Call) -> Answer:
    stages, proposal = _proposed(call, sampling=Sampling(call.number("temperature")), uniforms=call.raw("u"))
    law = cast(SparseLaw, proposal.law)
    return stages | {"candidates": law.ids, "proposals": proposal.tokens, "q": law.q}


def _proposed(call: Call, **drawing: Any) -> tuple[Answer, Proposal]:
    """The stages that the op declares, and the proposal."""
    draft = _draft(call, "config", "target_config")
    vocabulary = Qwen3Vocabulary(call.raw("embedding"), call.raw("head"), call.integer("public"), call.numerics)
    log = StageLog()
    features = call.act("features")
    state = draft.open(len(features))
    draft.append([ContextRows(state, features, log.record)])
    block = Block(state, call.integer("anchor"), call.integer("drafts"), call.integer("extent"), log.record, **drawing)
    (proposal,) = draft.propose([block], vocabulary)
    shown = {name: rows for name, rows in log.take().items() if name in ("c", "hidden") or name.startswith("layer.")}
    return shown, proposal


def _forward(call: Call) -> Answer:
    target = _target(call, "config")
    ids, taps, layers = call.ids("ids"), call.integers("taps"), list(range(target.config.layers))
    state = target.open(len(ids))
    steps: list[TargetStep] = []
    for begin, end in pairwise(accumulate(call.integers("chunks"), initial=0)):
        steps += target.forward([Segment(state, ids[begin:end])], [*taps, *layers], "all")
    logits = torch.cat([step.logits for step in steps if step.logits is not None])
    slices = torch.split(torch.cat([step.features for step in steps]), target.config.hidden_size, dim=1)
    features = torch.cat(slices[: len(taps)], dim=1)
    tokens = head.best(logits, call.integer("public"), call.numerics).id
    answer = {"features": features, "logits": logits, "tokens": tokens}
    return answer | {f"layer.{layer}": rows for layer, rows in zip(layers, slices[len(taps) :], strict=True)}


def _generate(call: Call) -> Answer:
    return _request(call)


def _sample(call: Call) -> Answer:
    numbers = {name: call.number(name) for name in ("top_p", "min_p")}
    penalties = {f"{name}_penalty": call.number(name) for name in ("presence", "frequency")}
    allowed = [int(id_) for id_ in np.flatnonzero(call.array("allowed")[: call.integer("public")])]
    return _request(call, top_k=call.integer("top_k"), allowed_tokens=allowed, **numbers, **penalties)


def _request(call: Call, **options: Any) -> Answer:
    target, draft = _target(call, "target_config"), _draft(call, "draft_config", "target_config")
    engine = Engine(
        target,
        draft,
        call.numerics,
        draft_tokens=call.integer("drafts"),
        max_context=min(target.config.max_positions, draft.config.max_positions),
    )
    made = engine.generate(
        call.integers("prompt"),
        call.integer("max_new"),
        temperature=call.number("temperature"),
        seed=call.integer("seed"),
        stop_ids=call.integers("stop_ids"),
        **options,
    )
    proposals = np.full((len(made.accepted), engine.draft_tokens), -1, dtype=np.int64)
    for row, tokens in zip(proposals, made.proposals, strict=True):
        row[: len(tokens)] = tokens
    return {"proposals": proposals, "tokens": list(made.tokens), "accepted": np.array(made.accepted, dtype=np.int64)}


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "draft.block": _block,
    "draft2.block": _second_block,
    "target.forward": _forward,
    "engine.generate": _generate,
    "engine.sample": _sample,
}
