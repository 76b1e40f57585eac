"""PAGE and ASYNC ops: pages, asynchronous steps, and drafts that are split over ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.ops import attention, pages, rope, shards, steps


def _slots(call: Call) -> Answer:
    """Rotary positions have no say in it."""
    return {"slots": pages.slots(call.ids("table"), call.ids("positions"))}


def _pools(call: Call) -> Answer:
    sizes = (call.integer("pages"), call.integer("kv_heads"), call.integer("head_dim"))
    layers, size = pages.pool_bytes(call.integers("windows"), *sizes)
    return {"exists": int(bool(layers)), "layers": np.array(layers, np.int64), "bytes": size}


def _clamped(call: Call) -> Answer:
    rows = (call.ids("table"), call.ids("requests"), call.ids("positions"))
    return {"slots": pages.clamped_slots(*rows, call.integer("block_size"))}


def _writes(call: Call) -> Answer:
    rows = (call.ids("table"), call.ids("requests"), call.ids("positions"), call.ids("limits"))
    return {"slots": pages.writes(*rows, call.integer("block_size"), call.integer("max_length"))}


def _scatter(call: Call) -> Answer:
    made = pages.scatter(call.act("pool"), call.act("packed"), call.integer("column"), call.ids("slots"))
    return {"pool_next": made}


def _lookahead(call: Call) -> Answer:
    counts = (call.ids("lengths"), call.ids("computed"), call.ids("held"))
    owned, added = pages.lookahead(*counts, call.integer("drafts"), call.integer("block_size"))
    return {"pages": owned, "added": added}


def _valid(call: Call) -> Answer:
    return {"valid": steps.valid(call.ids("sampled"), call.integer("vocabulary"))}


def _remap(call: Call) -> Answer:
    rows = (call.ids("previous_ids"), call.ids("previous_sampled"), call.ids("previous_drafts"), call.ids("ids"))
    return {"rejected": steps.remap(*rows, call.integer("vocabulary"))}


def _rows(call: Call) -> Answer:
    return {"requests": steps.rows(call.ids("last_token_indices"), call.integer("rows"))}


def _positions(call: Call) -> Answer:
    return {"corrected": steps.corrected(*(call.ids("positions"), call.ids("requests"), call.ids("rejected")))}


def _lengths(call: Call) -> Answer:
    rows = (call.ids("lengths"), call.ids("sampled"), call.ids("current_drafts"))
    return {"verified": steps.lengths(*rows, call.integer("drafts"), call.integer("vocabulary"))}


def _bonus(call: Call) -> Answer:
    return {"bonus": steps.bonus(call.ids("sampled"), call.integer("vocabulary"))}


def _block(call: Call) -> Answer:
    rows = (call.ids("bonus"), call.ids("lengths"))
    return steps.block(*rows, call.integer("drafts"), call.integer("mask_id"))._asdict()


def _outputs(call: Call) -> Answer:
    prefixed, alone = steps.outputs(call.ids("bonus"), call.ids("proposals"))
    return {"prefixed": prefixed, "drafts_only": alone}


def _prepare(call: Call) -> Answer:
    """Corrections for the previous step first, lengths from these, slots from both last. Clause: ASYNC-014."""
    drafts, vocabulary = call.integer("drafts"), call.integer("vocabulary")
    table, sampled, last = call.ids("table"), call.ids("sampled"), call.ids("last_token_indices")
    requests = steps.rows(last, len(call.ids("positions")))
    rejected = _remap(call)["rejected"]
    at = steps.corrected(call.ids("positions"), requests, rejected)
    verified = steps.lengths(at[last] + 1, sampled, call.ids("current_drafts"), drafts, vocabulary)
    limits = (call.integer("block_size"), call.integer("max_length"))
    bonus = steps.bonus(sampled, vocabulary)
    block = steps.block(bonus, verified, drafts, call.integer("mask_id"))
    owners = torch.arange(len(bonus)).repeat_interleave(drafts + 1)
    return {
        "requests": requests,
        "rejected": rejected,
        "verified": verified,
        "bonus": bonus,
        "context_slots": pages.writes(table, requests, at, verified, *limits),
        "block_ids": block.ids,
        "block_positions": block.positions,
        "slots": pages.writes(table, owners, block.positions, verified + drafts + 1, *limits),
        "keep_index": block.keep_index,
    }


def _context_kv(call: Call) -> Answer:
    norm = call.weight("k_norm")
    turn = rope.tables(call.ids("positions"), call.number("theta"), norm.shape[1], call.numerics)
    weights = (call.weight("k_proj"), call.weight("v_proj"), norm, turn, call.number("eps"))
    ranks = (call.integer("ranks"), call.integer("rank"))
    return shards.context_kv(call.act("c"), *weights, *ranks, call.numerics)._asdict()


def _head(call: Call) -> Answer:
    return shards.head(call.act("logits"), call.integer("ranks"))._asdict()


def _attention(call: Call) -> Answer:
    parts = [
        attention.Rows(key.transpose(0, 1), value.transpose(0, 1))
        for key, value in (
            (call.act("context_key"), call.context_value("context_value")),
            (call.act("block_key"), call.act("block_value")),
        )
    ]
    window, causal = call.integer("window"), bool(call.integer("causal"))
    positions = call.ids("positions")
    visible = attention.visibility(positions, torch.cat((call.ids("context_positions"), positions)), window, causal)
    return {"attended": shards.attend(call.act("q"), parts, visible, call.integer("ranks"), call.numerics)}


def _output(call: Call) -> Answer:
    weights = (call.weight("o_proj"), call.act("x"), call.integer("ranks"))
    return {"y": shards.output(call.act("attended"), *weights, call.numerics)}


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "page.slots": _slots,
    "page.pools": _pools,
    "page.slots_clamped": _clamped,
    "page.writes": _writes,
    "page.scatter": _scatter,
    "page.lookahead": _lookahead,
    "async.valid": _valid,
    "async.remap": _remap,
    "async.rows": _rows,
    "async.positions": _positions,
    "async.lengths": _lengths,
    "async.bonus": _bonus,
    "async.block": _block,
    "async.outputs": _outputs,
    "async.prepare": _prepare,
    "shard.context_kv": _context_kv,
    "shard.head": _head,
    "shard.attention": _attention,
    "shard.output": _output,
}
