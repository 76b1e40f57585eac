"""COMMIT and STOP ops of whole batches and texts, and STATE ops but the script."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dflash_accelerated import images, stops
from dflash_accelerated.conformance import scripts
from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.ops import commits, state_slots

REASONS = (None, "stop_string", "stop", "length", "capacity")
"""Reasons 0 to 4 of stop.scan."""


def _ready(call: Call) -> Answer:
    rows = (call.ids("active"), call.ids("frontiers"), call.ids("remaining"))
    counts, positions = commits.ready(*rows, call.integer("capacity"), call.integer("widest"))
    return {"counts": counts, "positions": positions}


def _resolve(call: Call) -> Answer:
    batch = commits.Batch(*(call.ids(name) for name in commits.Batch._fields))
    made = commits.resolve(batch, call.integer("capacity"), call.integer("public"), bool(call.integer("consumed")))
    return made._asdict()


def _effects(call: Call) -> Answer:
    rows = (call.ids("counts"), call.ids("kept"), call.ids("ends"))
    return {"effects": commits.effects(*rows, bool(call.integer("own_law")), bool(call.integer("failed")))}


def _hidden(call: Call) -> Answer:
    return {"hidden_next": commits.hidden(call.act("hidden"), call.act("previous"), call.ids("kept"))}


def _features(call: Call) -> Answer:
    rows = (call.ids("kept"), call.ids("frontiers"))
    made, positions = commits.features(call.act("captured"), call.integer("width"), *rows)
    return {"features": made, "positions": positions, "lengths": call.ids("kept")}


def _replay_round(call: Call) -> Answer:
    numbers = (call.integer("replayed"), bool(call.integer("fast")), call.integer("remaining"))
    given = (call.integers("block"), call.integers("target"), *numbers, call.integers("stop_ids"))
    accepted, tokens, anchor = commits.replay_round(*given)
    frontier = call.integer("frontier") + len(tokens)
    return {
        "accepted": accepted,
        "tokens": tokens,
        "next_anchor": anchor,
        "next_frontier": frontier,
        "state_rows": frontier,
    }


def _scan(call: Call) -> Answer:
    pieces = stops.pieces_of(call.text("texts"), call.integers("lengths"), "texts")
    strings = stops.pieces_of(call.text("strings"), call.integers("string_lengths"), "strings")
    watched = (strings, call.integers("stop_ids"), bool(call.integer("show_stop")))
    left = (call.integer("output_left"), call.integer("context_left"))
    ending = stops.scan(call.integers("licensed"), pieces, call.text("before"), *watched, *left)
    return {
        "kept": ending.kept,
        "terminal": int(ending.reason is not None),
        "reason": REASONS.index(ending.reason),
        "matched": ending.matched,
        "text_end": ending.text_end,
    }


def _written(call: Call) -> Answer:
    """A value is no mask: which id that is does not matter."""
    counts = (call.integer("prompt"), call.integer("written"))
    tokens, terminal = stops.written(call.integers("buffer"), *counts, call.integers("stop_ids"))
    return {"tokens": np.array(tokens, np.int64), "terminal": int(terminal)}


def _checkpoint(call: Call) -> Answer:
    rows = (
        call.integer("execution"),
        call.integer("target_rows"),
        call.integer("context_rows"),
        call.integer("uncommitted"),
    )
    images.check_settled(*rows, bool(call.integer("tail")), call.integer("fork"))
    return {"frontier": call.integer("execution"), "backend_frontier": call.integer("context_rows")}


def _restore(call: Call) -> Answer:
    prompt = call.integers("prompt")
    covered = (call.integer("target_rows"), call.integer("draft_rows"))
    start = images.left_to_feed(prompt, call.integers("identity"), *covered)
    return {"ids": np.array(prompt[start:], np.int64), "positions": np.arange(start, len(prompt))}


def _copy(call: Call) -> Answer:
    names = ("rings", "recurrent", "hidden")
    numbers = (call.integer("source"), call.integer("destination"), call.integer("kind"), call.integer("segment"))
    made = state_slots.copy([call.act("rings"), call.raw("recurrent"), call.act("hidden")], *numbers)
    return {f"{name}_next": part for name, part in zip(names, made, strict=True)}


def _chain(call: Call) -> Answer:
    lists = (call.integers("thick"), call.integers("starts"), call.integers("ends"), call.integers("last_tokens"))
    made = state_slots.chain(*lists, call.act("snapshots"), call.integer("capacity"), call.integer("window"))
    return {
        "rows": made.rows,
        "position": len(made.rows),
        "recurrent": made.recurrent,
        "last_token": made.last_token,
        "resync": list(made.resync),
    }


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "commit.ready": _ready,
    "commit.resolve": _resolve,
    "commit.effects": _effects,
    "commit.hidden": _hidden,
    "commit.features": _features,
    "commit.replay_round": _replay_round,
    "stop.scan": _scan,
    "stop.written": _written,
    "state.checkpoint": _checkpoint,
    "state.restore": _restore,
    "state.copy": _copy,
    "state.chain": _chain,
    "state.script": scripts.script,
}
