"""Heads and vocabulary split over ranks: the context's keys and values, proposals, attention, the residual row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite

NEURON = ("vllm-neuron",)
HIDDEN, LAYERS, KV, DIM = 8, 3, 4, 4
RAW = {"raw": "ASYNC-015", "normed": "ASYNC-017"}


def _context(key: str, ranks: int, rank: int, kv: int = KV, layers: int = LAYERS, rows: int = 3) -> dict[str, Any]:
    """Values on a lattice, and keys of zero: only what belongs to whom can show."""
    shape = (layers, kv * DIM, HIDDEN)
    return {
        "c": inputs.lattice(f"shard/{key}/c", (rows, HIDDEN), 0.5, 1.0),
        "k_proj": np.zeros(shape),
        "v_proj": inputs.lattice(f"shard/{key}/v", shape, 0.5, 1.0),
        "k_norm": np.full((layers, DIM), 1.5),
        "positions": np.arange(5, 5 + rows),
        "theta": 100.0,
        "eps": 1.0,
        "ranks": ranks,
        "rank": rank,
    }


def _keys(key: str, ranks: int, rank: int) -> dict[str, Any]:
    """Ordinary projections, and norms that differ from layer to layer; positions are not consecutive."""
    given = _context(key, ranks, rank)
    shape = given["k_proj"].shape
    norms = [tiny.bold_norm(f"shard/{key}/norm/{layer}", DIM, "F32") for layer in range(LAYERS)]
    return given | {
        "c": inputs.telling(f"shard/{key}/c", given["c"].shape, "F32"),
        "k_proj": inputs.weights(f"shard/{key}/k", shape, "F32"),
        "v_proj": inputs.weights(f"shard/{key}/v", shape, "F32"),
        "k_norm": np.stack(norms), "positions": np.array([4, 19, 11]), "theta": 10000.0, "eps": inputs.fp32(1e-6),
    }  # fmt: skip


@suite("shard.context_kv", profiles=NEURON)
def context_kv(profile: Profile) -> Iterator[Case]:
    """One product for all layers, and which of its columns are whose."""
    for slug, ranks, rank in (("one-rank", 1, 0), ("second-of-two-ranks", 2, 1)):
        given = _context(slug, ranks, rank)
        given["k_proj"] = inputs.lattice(f"shard/{slug}/k", given["k_proj"].shape, 0.5, 1.0)
        yield Case(
            f"layers-apart-on-{slug}", ("ASYNC-015",), given,
            catches="a layer reads the columns of its neighbour, or keys and values are exchanged",
            effect="acceptance", exact=("raw", "value"), blame={**RAW, "key": "ASYNC-017", "value": "ASYNC-015"},
        )  # fmt: skip
    for slug, ranks, rank, kv in (
        ("first-of-two-ranks", 2, 0, 4),
        ("last-of-four-ranks", 4, 3, 4),
        ("middle-of-three-ranks", 3, 1, 6),
    ):
        yield Case(
            slug, ("ASYNC-016",), _context(slug, ranks, rank, kv),
            catches="a rank holds every so many heads, or the heads of another rank",
            effect="output", exact=("raw", "normed", "key", "value"),
        )  # fmt: skip
    yield Case(
        "heads-that-cannot-be-split", ("ASYNC-016",), _context("uneven", 2, 0, 3),
        catches="a head is cut in two, or left out",
        effect="crash",
    )  # fmt: skip
    for slug, ranks, rank in (("keys-on-one-rank", 1, 0), ("keys-on-the-second-of-two", 2, 1)):
        yield Case(
            slug, ("ASYNC-017",), _keys(slug, ranks, rank),
            catches="all layers' keys are normed by the first layer's weights, turned before the norm, or not at all",
            effect="acceptance", blame={"raw": "ASYNC-015"},
        )  # fmt: skip


def _logits(rows: list[list[float]]) -> Any:
    return np.array(rows)


@suite("shard.head", profiles=NEURON)
def head(profile: Profile) -> Iterator[Case]:
    """Vocabularies over one, two and three ranks: winners everywhere, ties within and across ranks, padding."""
    rising = np.arange(11.0)
    spread = np.stack([np.roll(rising, shift) for shift in (0, 3, 7)])
    for slug, ranks in (("one-rank", 1), ("two-ranks", 2), ("three-ranks", 3)):
        yield Case(
            f"winner-on-each-of-{slug}", ("ASYNC-018",), {"logits": spread, "ranks": ranks},
            catches="the row within a rank is returned as a token id",
            effect="acceptance", blame={"best": "ASYNC-019"},
        )  # fmt: skip
    tied = _logits([[1, 5, 2, 5, 0, 5, 5, 1, 4], [3, 0, 1, 2, 3, 0, 2, 1, 3], [-0.0, -1, -2, -1, 0.0, -3, -1, 0.0, -2]])
    for slug, ranks in (("two-ranks", 2), ("three-ranks", 3)):
        yield Case(
            f"ties-over-{slug}", ("ASYNC-018",), {"logits": tied, "ranks": ranks},
            catches="among equal logits the last rank wins, or the lowest row within any rank",
            effect="acceptance", tags=("tie",),
        )  # fmt: skip
    negative = -1.0 - np.stack([np.roll(rising, shift) for shift in (2, 5, 9)])
    for slug, ranks in (("two-ranks", 2), ("three-ranks", 3)):
        yield Case(
            f"all-negative-over-{slug}", ("ASYNC-019",), {"logits": negative, "ranks": ranks},
            catches="a padding row of the last rank, whose logit is zero, wins",
            effect="crash",
        )  # fmt: skip
    buried = np.full((2, 10), -np.inf)
    buried[0, 9], buried[1, 4] = -7.0, -3.0
    yield Case(
        "minus-infinity-everywhere-else", ("ASYNC-019",), {"logits": buried, "ranks": 3},
        catches="rows past the vocabulary tie with minus infinity and win by their place",
        effect="crash", blame={"best_ids": "ASYNC-018"},
    )  # fmt: skip


def _attention(key: str, ranks: int, heads: int, kv: int, window: int = 0) -> dict[str, Any]:
    rows, context = 3, 5
    return {
        "q": inputs.telling(f"shard/{key}/q", (rows, heads, DIM), "F32"),
        "context_key": inputs.telling(f"shard/{key}/ck", (context, kv, DIM), "F32"),
        "context_value": inputs.telling(f"shard/{key}/cv", (context, kv, DIM), "F32"),
        "block_key": inputs.telling(f"shard/{key}/bk", (rows, kv, DIM), "F32"),
        "block_value": inputs.telling(f"shard/{key}/bv", (rows, kv, DIM), "F32"),
        "context_positions": np.arange(context),
        "positions": np.arange(context, context + rows),
        "window": window,
        "causal": 0,
        "ranks": ranks,
    }


@suite("shard.attention", profiles=NEURON)
def attention(profile: Profile) -> Iterator[Case]:
    """Groups of query heads over one, two and three ranks."""
    for slug, ranks, heads, kv, window in (
        ("one-rank", 1, 4, 2, 0),
        ("two-ranks", 2, 8, 4, 0),
        ("three-ranks", 3, 6, 3, 0),
        ("two-ranks-with-a-window", 2, 4, 2, 3),
    ):
        yield Case(
            slug, ("ASYNC-020",), _attention(slug, ranks, heads, kv, window),
            catches="query heads are dealt out without their KV heads, or ranks are put together in another order",
            effect="acceptance",
        )  # fmt: skip
    yield Case(
        "heads-that-cannot-be-split", ("ASYNC-016",), _attention("uneven", 2, 6, 3),
        catches="a head is cut in two, or left out",
        effect="crash",
    )  # fmt: skip


@suite("shard.output", profiles=NEURON)
def output(profile: Profile) -> Iterator[Case]:
    """Parts of one, two and three ranks, on a lattice."""
    for slug, ranks in (("one-rank", 1), ("two-ranks", 2), ("three-ranks", 3)):
        columns = 12
        given = {
            "attended": inputs.lattice(f"shard/{slug}/attended", (2, columns), 0.5, 2.0),
            "o_proj": inputs.lattice(f"shard/{slug}/o", (5, columns), 0.5, 1.0),
            "x": 16.0 + inputs.lattice(f"shard/{slug}/x", (2, 5), 0.25, 4.0),
            "ranks": ranks,
        }
        yield Case(
            slug, ("ASYNC-021",), given,
            catches="each rank adds the residual, or a row is captured before the ranks' parts are added",
            effect="acceptance", exact=("y",),
        )  # fmt: skip
