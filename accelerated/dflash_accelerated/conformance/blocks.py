"""BLK, MASK, TAP and COMMIT ops: integers and rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dflash_accelerated import rounds, stops
from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.ops import attention
from dflash_accelerated.ops.decoder import concat_taps


def _extent(call: Call) -> Answer:
    arguments = (call.integer(name) for name in ("drafts", "remaining", "capacity", "frontier"))
    return {"extent": rounds.extent(call.numerics.profile, *arguments)}


def _block_inputs(call: Call) -> Answer:
    names = ("anchor", "mask_id", "frontier", "drafts", "extent")
    columns = rounds.block_columns(*(call.integer(name) for name in names))
    return {"ids": columns.ids, "positions": columns.positions, "live": columns.live}


def _verify_inputs(call: Call) -> Answer:
    proposals = call.integers("proposals")
    live = proposals[: call.integer("extent")]
    anchor, frontier = call.integer("anchor"), call.integer("frontier")
    columns = rounds.verify_columns(call.numerics.profile, anchor, live, frontier, len(proposals))
    return {"ids": columns.ids, "positions": columns.positions}


def _mask(call: Call) -> Answer:
    rows, length = call.ids("context_positions"), call.integer("context_length")
    positions, window, causal = call.ids("positions"), call.integer("window"), bool(call.integer("causal"))
    seen = attention.visibility(positions, torch.cat((rows[:length], positions)), window, causal)
    unread = torch.zeros(len(positions), len(rows) - length, dtype=torch.bool)
    return {"visible": torch.cat((seen[:, :length], unread, seen[:, length:]), dim=1).to(torch.uint8)}


def _concat(call: Call) -> Answer:
    boundaries = call.act("residuals")
    blocks = dict(enumerate(boundaries[1:]))
    return {"features": concat_taps(blocks, call.integers("ids"), boundaries[0])}


def _pending(call: Call) -> Answer:
    made = rounds.pending(call.integer("frontier"), call.integer("committed"))
    return {
        "features": call.act("captured")[: made.rows],
        "positions": np.array(made.positions, np.int32),
        "context_frontier": made.frontier,
    }


def _preview(call: Call) -> Answer:
    """The end of a round whose tokens have no text."""
    remaining = call.integer("remaining")
    licensed = call.integers("licensed")[: max(0, remaining)]
    left = (remaining, remaining)
    ending = stops.scan(licensed, [b""] * len(licensed), b"", (), call.integers("stop_ids"), False, *left)
    return {"kept": ending.kept, "terminal": int(ending.reason is not None)}


def _commit(call: Call) -> Answer:
    anchor, kept, frontier = (call.integer(name) for name in ("anchor", "kept", "frontier"))
    made = rounds.commit(anchor, call.integers("licensed"), kept, frontier)
    rows = {"rows": np.array(made.rows, np.int32), "next_anchor": made.anchor, "next_frontier": made.frontier}
    return rows | {"target_rows_kept": made.frontier}


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "block.extent": _extent,
    "block.inputs": _block_inputs,
    "block.verify_inputs": _verify_inputs,
    "mask.draft": _mask,
    "tap.concat": _concat,
    "context.pending": _pending,
    "stop.preview": _preview,
    "commit.round": _commit,
}
