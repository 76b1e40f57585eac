"""RING ops: the engine's own rings with one lane and one layer, and Luce's feature ring."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.ops import feature_ring, materialize, ring
from dflash_accelerated.ops.attention import Spans, Store
from dflash_accelerated.rings import Rings

LANE = LAYER = 0


def _rings(call: Call) -> Rings:
    """Keys and values alike hold the op's rows [S, X], as one head."""
    held = call.act("ring")[None, None, None]
    return Rings(Store(held.clone(), held.clone(), held.shape[3]))


def _write(rings: Rings, rows: Tensor, frontier: int) -> None:
    spans = Spans([LANE], [frontier], [len(rows)], rows.device)
    materialize.write(rings.store, spans, rows[:, None, None], rows[:, None, None])


def _read(rings: Rings, frontier: int) -> tuple[Tensor, Tensor]:
    """The live rows [R, X] in the order of positions, which the engine reads in the order of slots."""
    (key, _), positions = rings.read(LANE, LAYER, frontier)
    order = positions.argsort()
    return key[0, order], positions[order]


def _slots(call: Call) -> Answer:
    return {"slots": ring.checked_slots(call.ids("positions"), call.integer("capacity"))}


def _live(call: Call) -> Answer:
    first, length = ring.live(call.integer("frontier"), call.integer("capacity"))
    return {"first": first, "length": length}


def _append(call: Call) -> Answer:
    rings, rows, frontier = _rings(call), call.act("rows"), call.integer("frontier")
    ring.check_follows(call.integer("start"), frontier)
    _write(rings, rows, frontier)
    return {"ring_next": rings.store.keys[LANE, LAYER, 0], "frontier_next": frontier + len(rows)}


def _gather(call: Call) -> Answer:
    rows, positions = _read(_rings(call), call.integer("frontier"))
    return {"rows": rows, "positions": positions}


def _rounds(call: Call) -> Answer:
    rings, frontier = _rings(call), call.integer("frontier")
    windows = []
    for rows in torch.split(call.act("rows"), call.integers("counts")):
        _write(rings, rows, frontier)
        frontier += len(rows)
        windows.append(_read(rings, frontier)[0])
    return {"counted": [len(rows) for rows in windows], "windows": torch.cat(windows)}


def _capacity(call: Call) -> Answer:
    return {"capacity": ring.capacity(call.integer("window"), call.integer("width"), call.numerics.profile)}


def _flat(call: Call) -> Tensor:
    return call.raw("ring").to(torch.bfloat16)


def _feature_append(call: Call) -> Answer:
    after = feature_ring.append(_flat(call), call.raw("rows"), call.integer("start"), call.integer("capacity"))
    return {"ring_next": after}


def _feature_live(call: Call) -> Answer:
    first, length = feature_ring.live(*(call.integer("frontier"), call.integer("written"), call.integer("capacity")))
    return {"first": first, "length": length}


def _feature_window(call: Call) -> Answer:
    numbers = (call.integer("capacity"), call.integer("frontier"), call.integer("written"), call.integer("window"))
    features, first = feature_ring.window(_flat(call), *numbers)
    return {"features": features, "first": first}


def _feature_positions(call: Call) -> Answer:
    context, block = feature_ring.positions(*(call.integer("frontier"), call.integer("window"), call.integer("width")))
    return {"context": context, "block": block, "queries": block}


def _feature_sync(call: Call) -> Answer:
    source = (_flat(call), call.integer("capacity"), call.integer("written"))
    span = (call.integer("mirror_capacity"), call.integer("start"), call.integer("count"))
    return {"mirror_next": feature_ring.sync(*source, call.raw("mirror"), *span)}


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "ring.slots": _slots,
    "ring.live": _live,
    "ring.append": _append,
    "ring.gather": _gather,
    "ring.rounds": _rounds,
    "ring.capacity": _capacity,
    "feature.append": _feature_append,
    "feature.live": _feature_live,
    "feature.window": _feature_window,
    "feature.positions": _feature_positions,
    "feature.sync": _feature_sync,
}
