"""Every op by name, and one way to run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from dflash_spec.config.operations import OPERATIONS as CONFIG_OPERATIONS
from dflash_spec.errors import TensorError, UnsupportedError
from dflash_spec.registry import Op, Profile, TensorSpec, load_ops
from dflash_spec.tensors import FLOATS, Array

from dflash_reference import (
    asynchronous,
    block,
    chain,
    commit,
    context,
    conv,
    draft,
    draft2,
    feature_ring,
    head,
    law,
    layer,
    mask,
    num,
    page,
    penalties,
    processing,
    replay,
    resolve,
    ring,
    ring_rows,
    rng,
    script,
    selector,
    serving,
    shard,
    slots,
    state,
    stop,
    tap,
)
from dflash_reference import target as target_model

PLACES: dict[str, tuple[ModuleType, str]] = {
    "num.round_bf16": (num, "round_bf16"),
    "num.round_fp16": (num, "round_fp16"),
    "num.round_fp32": (num, "round_fp32"),
    "num.contract": (num, "contract_rows"),
    "rng.uniform": (rng, "uniform"),
    "rng.round_keys": (rng, "round_keys"),
    "rng.plain_keys": (rng, "plain_keys"),
    "tap.concat": (tap, "concat"),
    "context.feature": (context, "feature"),
    "context.key": (context, "key"),
    "context.value": (context, "value"),
    "context.pending": (commit, "pending"),
    "block.extent": (block, "extent"),
    "block.inputs": (block, "inputs"),
    "block.verify_inputs": (block, "verify_inputs"),
    "mask.draft": (mask, "draft"),
    "draft.embed": (draft, "embed"),
    "draft.qkv": (layer, "qkv"),
    "draft.attention": (draft, "attention"),
    "draft.output": (layer, "output"),
    "draft.mlp": (layer, "mlp"),
    "draft.final": (draft, "final"),
    "draft.block": (draft, "block"),
    "head.logits": (head, "logits"),
    "head.argmax": (head, "argmax"),
    "proc.distribution": (processing, "distribution"),
    "proc.greedy": (processing, "greedy"),
    "proc.draw": (processing, "draw"),
    "law.greedy": (law, "greedy"),
    "law.one_hot": (law, "one_hot"),
    "stop.preview": (stop, "preview"),
    "stop.scan": (stop, "scan"),
    "stop.written": (stop, "written"),
    "commit.round": (commit, "commit"),
    "commit.ready": (resolve, "ready"),
    "commit.resolve": (resolve, "resolve"),
    "commit.effects": (resolve, "effects"),
    "commit.hidden": (commit, "hidden"),
    "commit.features": (commit, "features"),
    "commit.replay_round": (replay, "replay_round"),
    "state.checkpoint": (state, "checkpoint"),
    "state.restore": (state, "restore"),
    "state.copy": (slots, "copy"),
    "state.chain": (chain, "chain"),
    "state.script": (script, "script"),
    "target.attention": (target_model, "attention"),
    "target.logits": (target_model, "logits"),
    "target.forward": (target_model, "forward"),
    "engine.generate": (serving, "generate"),
    "conv.prepare": (conv, "prepare"),
    "conv.finish": (conv, "finish"),
    "context.materialize": (ring, "materialize"),
    "ring.payload": (ring, "payload"),
    "head.top": (head, "top"),
    "head.indexed_argmax": (head, "indexed_argmax"),
    "selector.project": (selector, "project"),
    "selector.walk": (selector, "walk"),
    "law.sparse": (law, "sparse"),
    "draft2.qkv": (draft2, "qkv"),
    "draft2.mlp": (draft2, "mlp"),
    "draft2.block": (draft2, "block"),
    "block.dflash2_inputs": (block, "dflash2_inputs"),
    "rng.proposal_keys": (rng, "proposal_keys"),
    "rng.batch_uniforms": (rng, "batch_uniforms"),
    "proc.adjust": (penalties, "adjust"),
    "proc.overlay": (penalties, "overlay"),
    "proc.count": (penalties, "count"),
    "proc.choose": (processing, "choose"),
    "proc.filter": (processing, "filtered"),
    "proc.propose": (processing, "propose"),
    "law.match": (law, "match"),
    "engine.sample": (serving, "sample"),
    "ring.slots": (ring_rows, "slots"),
    "ring.live": (ring_rows, "live"),
    "ring.append": (ring_rows, "append"),
    "ring.gather": (ring_rows, "gather"),
    "ring.rounds": (ring_rows, "rounds"),
    "ring.capacity": (ring_rows, "capacity"),
    "feature.append": (feature_ring, "append"),
    "feature.live": (feature_ring, "live"),
    "feature.window": (feature_ring, "window"),
    "feature.positions": (feature_ring, "positions"),
    "feature.sync": (feature_ring, "sync"),
    "page.slots": (page, "slots"),
    "page.pools": (page, "pools"),
    "page.slots_clamped": (page, "slots_clamped"),
    "page.writes": (page, "writes"),
    "page.scatter": (page, "scatter"),
    "page.lookahead": (page, "lookahead"),
    "async.valid": (asynchronous, "valid"),
    "async.remap": (asynchronous, "remap"),
    "async.rows": (asynchronous, "rows"),
    "async.positions": (asynchronous, "positions"),
    "async.lengths": (asynchronous, "lengths"),
    "async.bonus": (asynchronous, "bonus"),
    "async.block": (asynchronous, "block"),
    "async.outputs": (asynchronous, "outputs"),
    "async.prepare": (asynchronous, "prepare"),
    "shard.context_kv": (shard, "context_kv"),
    "shard.head": (shard, "head"),
    "shard.attention": (shard, "attention"),
    "shard.output": (shard, "output"),
}
"""Where each op's function stands. It is looked up at every call, so that a patched module is obeyed."""


def _late(module: ModuleType, name: str) -> Callable[..., Any]:
    return lambda **arguments: getattr(module, name)(**arguments)


OPERATIONS: dict[str, Callable[..., Any]] = CONFIG_OPERATIONS | {op: _late(*place) for op, place in PLACES.items()}
"""Op name -> function, which takes the op's inputs and `profile` by keyword and returns its stages and outputs."""


def run(op: str, inputs: Mapping[str, Any], profile: Profile) -> dict[str, Array]:
    """The stages, then the outputs, of one op, in the order of its declaration.

    Inputs are arrays or scalars, represented in their declared dtypes; those of a starred name come under their full
    names. Floats come back as float64, represented in the declared dtype. Raises UnsupportedError for an unknown op,
    TensorError for inputs that do not fit its declaration, and whatever the op raises.
    """
    if op not in OPERATIONS:
        raise UnsupportedError(f"op {op!r}, expected one of {', '.join(OPERATIONS)}")
    result = OPERATIONS[op](**arguments(load_ops()[op], inputs), profile=profile)
    named: dict[str, Array] = {}
    for field, value in result._asdict().items():
        parts = {f"{field}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {field: value}
        named |= {name: np.asarray(part) for name, part in parts.items()}
    return named


def arguments(op: Op, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of an op's function. Raises TensorError for a missing, unknown or misshapen input."""
    starred = [spec.name[:-2] for spec in op.inputs if spec.name.endswith(".*")]
    given: dict[str, Any] = {name: {} for name in starred}
    sizes: dict[str, tuple[int, str]] = {}
    for name, values in inputs.items():
        spec = op.find("inputs", name)
        if spec is None:
            raise TensorError(f"{op.name}: input {name!r}, expected only {', '.join(s.name for s in op.inputs)}")
        tensor = _converted(f"{op.name}: {name}", spec, values, sizes)
        group, _, rest = name.partition(".")
        if group in starred:
            given[group][rest] = tensor
        else:
            given[name] = tensor
    for spec in op.inputs:
        if not spec.name.endswith(".*") and spec.name not in given:
            raise TensorError(f"{op.name}: no input {spec.name!r}, expected one of {spec.dtype}")
    return given


def _converted(where: str, spec: TensorSpec, values: Any, sizes: dict[str, tuple[int, str]]) -> Any:
    """`values` as float64 or integers, a Python number where 0-d; `sizes` holds the symbols of the op's shapes."""
    array = np.asarray(values)
    _check_shape(where, spec, array.shape, sizes)
    floating = spec.dtype in (*FLOATS, "ACT", "WEIGHT", "CTX_K", "CTX_V", "LOGIT")
    if array.dtype.kind not in ("fiub" if floating else "iub"):
        raise TensorError(f"{where}: values of type {array.dtype}, expected {spec.dtype}")
    if spec.shape == ():
        return float(array) if floating else int(array)
    return array.astype(np.float64 if floating else np.uint64 if spec.dtype == "U64" else np.int64)


def _check_shape(where: str, spec: TensorSpec, shape: tuple[int, ...], sizes: dict[str, tuple[int, str]]) -> None:
    if spec.shape is None:
        return
    if len(shape) != len(spec.shape):
        raise TensorError(f"{where}: shape {list(shape)}, expected [{', '.join(spec.shape)}]")
    for axis, (symbol, size) in enumerate(zip(spec.shape, shape, strict=True)):
        expected, origin = (int(symbol), "the op") if symbol.isdigit() else sizes.setdefault(symbol, (size, where))
        if size != expected:
            raise TensorError(f"{where}: {size} on axis {axis}, expected {symbol} = {expected} as in {origin}")
