"""Context rings: what the materialiser writes where, what it must not read or touch, and what a ring weighs.

In the cases of slots and counts the key projection is zero, so that written keys are zero and no rounding, norm or
rotation can show; values lie on a lattice. Every slot holds a canary before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite

HIDDEN, LAYERS, KV, DIM, RINGS = 8, 2, 2, 4, 3
NINFER = ("ninfer",)
EXACT = ("key", "value")
GARBAGE_POSITION = -1


def _given(
    key: str, counts: Sequence[int], frontiers: Sequence[int], lanes: Sequence[int], capacity: int = 5,
    columns: int = 0, layers: int = LAYERS, dim: int = DIM,
) -> dict[str, Any]:  # fmt: skip
    """Rows of every lane, and garbage in the columns past its count; both roles of every projection differ."""
    width = max([*counts, columns])
    live = np.arange(width) < np.array(counts)[:, None]
    rows = inputs.lattice(f"ring/{key}/c", (len(counts), width, HIDDEN), 0.5, 1.0)
    places = np.array(frontiers)[:, None] + np.arange(width)
    shape = (layers, KV * dim, HIDDEN)
    values = [inputs.lattice(f"ring/{key}/{role}", shape, 0.5, 1.0) for role in ("context", "query")]
    ring = (RINGS, layers, capacity, KV, dim)
    return {
        "c": np.where(live[..., None], rows, np.nan),
        "positions": np.where(live, places, GARBAGE_POSITION),
        "counts": np.array(counts),
        "lanes": np.array(lanes),
        "context_k_proj": np.zeros(shape),
        "context_v_proj": values[0],
        "query_k_proj": np.zeros(shape),
        "query_v_proj": values[1],
        "k_norm": np.full((layers, dim), 1.5),
        "theta": 100.0,
        "eps": 1.0,
        "ring_key": _canaries(f"ring/{key}/key", ring),
        "ring_value": _canaries(f"ring/{key}/value", ring),
        "frontiers": np.array(frontiers),
    }


def _canaries(key: str, shape: tuple[int, ...]) -> Array:
    """Numbers from 32 to 64 that BF16 and FP16 hold, another one in every element of a slot."""
    return 32.0 + 0.25 * (inputs.hashes(key, shape) % np.uint64(128)).astype(np.float64)


def _exact(slug: str, clause: str, given: dict[str, Any], catches: str, effect: str = "acceptance") -> Case:
    return Case(
        slug, (clause,), given, catches=catches, effect=effect, exact=EXACT,
        blame={"frontiers_next": "CTX-014"} if clause == "CTX-014" else {},
    )  # fmt: skip


@suite("context.materialize", profiles=NINFER)
def footprint(profile: Profile) -> Iterator[Case]:
    """What is read and written: counts, lanes, slots."""
    garbage = "columns past the count are read, or written into live slots"
    yield _exact("columns-past-the-count", "CTX-012", _given("ragged", [2, 4, 1], [3, 1, 7], [0, 1, 2]), garbage)
    yield _exact("one-of-many-columns", "CTX-012", _given("narrow", [1], [6], [1], columns=7), garbage)
    idle = _given("idle", [0, 3, 0], [2, 4, 9], [7, 2, -1])
    yield _exact(
        "count-of-zero", "CTX-012", idle, "a row without columns writes one, or needs a ring of its own", "output"
    )  # fmt: skip
    none = _given("nothing", [0, 0], [5, 5], [0, 0], columns=2)
    yield _exact("nothing-to-write", "CTX-012", none, "a round that commits nothing clears a slot")
    wrapped = "the slot is not the position modulo the ring's length, or the ring wraps a row early or late"
    for slug, count, frontier in (
        ("before-the-wrap", 2, 3), ("at-the-wrap", 2, 5), ("after-the-wrap", 2, 6), ("over-the-wrap", 3, 4),
        ("second-wrap", 3, 9),
    ):  # fmt: skip
        yield _exact(slug, "CTX-013", _given(slug, [count], [frontier], [1]), wrapped)
    yield _exact("wrap-far-out", "CTX-013", _given("far", [4], [262141], [0], capacity=7), wrapped)
    yield _exact(
        "lanes-permuted", "CTX-013", _given("lanes", [2, 2], [3, 8], [2, 0]),
        "rows go to the ring of their place in the batch, or other rings are cleared", "output",
    )  # fmt: skip


@suite("context.materialize", profiles=NINFER)
def chunks(profile: Profile) -> Iterator[Case]:
    """Chunks about as long as the ring, and longer."""
    for slug, count, frontier, capacity in (
        ("as-long-as-the-ring", 5, 0, 5), ("one-row-longer-than-the-ring", 6, 0, 5),
        ("twice-the-ring-and-one", 9, 0, 4), ("longer-than-the-ring-later", 7, 11, 4),
    ):  # fmt: skip
        yield _exact(
            slug, "CTX-014", _given(slug, [count], [frontier], [2], capacity),
            "of a long chunk the first rows are kept, older rows overwrite newer ones, or the frontier stops short",
        )  # fmt: skip


@suite("context.materialize", profiles=NINFER)
def weights(profile: Profile) -> Iterator[Case]:
    """Which weights project a context row: the context role's, of each layer."""
    roles = _given("roles", [3], [0], [0], dim=2)
    yield _exact("context-role", "CTX-015", roles, "context rows are projected by the query role's weights")
    layers = _given("layers", [2, 2], [0, 2], [1, 2], layers=3, dim=6)
    yield _exact(
        "layers-apart", "CTX-004", layers, "the layers share one projection, or read slices of each other's"
    )  # fmt: skip
    yield Case(
        "key-roles", ("CTX-015", "CTX-011"), _signs("key-roles", [3], [0], [0]),
        catches="context keys are projected by the query role's weights",
        effect="acceptance",
    )  # fmt: skip


def _signs(
    key: str, counts: Sequence[int], frontiers: Sequence[int], lanes: Sequence[int], **size: int
) -> dict[str, Any]:
    """Raw heads of one magnitude and keyed signs."""
    given = _given(key, counts, frontiers, lanes, **size)
    rows = tiny.signs(f"ring/{key}/signs", given["c"].shape)
    given["c"] = np.where(np.isnan(given["c"]), np.nan, rows)
    for role in ("context", "query"):
        heads = [tiny.picking(f"ring/{key}/{role}/{layer}", len(w), HIDDEN, [0.5] * KV)
                 for layer, w in enumerate(given[f"{role}_k_proj"])]  # fmt: skip
        given[f"{role}_k_proj"] = np.stack(heads)
    return given


@suite("context.materialize", profiles=NINFER)
def keys(profile: Profile) -> Iterator[Case]:
    """Keys: rounded once, at the end, and turned by their token's absolute position."""
    yield Case(
        "raw-key-not-rounded", ("CTX-011",), _fine_keys(),
        catches="the raw key is rounded to BF16 before the head norm, as DFlash's is",
        effect="acceptance", exact=EXACT,
    )  # fmt: skip
    yield Case(
        "normed-key-not-rounded", ("CTX-011",), _cancelling(),
        catches="the normed key is rounded to BF16 before it is rotated, as DFlash's is",
        effect="acceptance", exact=("value",),
    )  # fmt: skip
    for slug, frontier, capacity in (("turned-by-position", 9, 4), ("turned-far-out", 262139, 5)):
        yield Case(
            slug, ("CTX-006", "CTX-011"), _signs(slug, [3], [frontier], [1], capacity=capacity),
            catches="keys are turned by their slot, or by their place in the chunk",
            effect="acceptance", exact=("value",), blame={"value": "CTX-013"},
        )  # fmt: skip
    yield Case(
        "values-rounded-twice", ("CTX-007",), _rounded_twice(),
        catches="values are rounded to FP16 directly: 65519 stays finite, and ties of BF16 fall elsewhere",
        effect="acceptance", exact=EXACT,
    )  # fmt: skip
    yield Case(
        "ordinary", ("CTX-011", "CTX-013", "CTX-012"), _ordinary(profile),
        catches="a head, a layer, a lane or a slot is taken for another",
        effect="acceptance",
    )  # fmt: skip


def _fine_keys() -> dict[str, Any]:
    """Raw heads (1 + 2^-8, 1) at position 0: their mean square and eps make 4, and the norm 255/128 tells.

    (1 + 2^-8) / 2 · 255/128 is just below 1 and rounds to 1; a raw key that was rounded to 1 ends at 255/256.
    """
    given = _given("fine", [1, 1], [0, 0], [2, 0], dim=2)
    given["c"][:] = tiny.signs("ring/fine/c", (2, 1, 1))
    projection = given["context_k_proj"]
    projection[..., 0] = tiny.signs("ring/fine/k", projection.shape[:2])
    projection[:, ::2, 1] = projection[:, ::2, 0] * 2.0**-8
    return given | {"k_norm": np.full((LAYERS, 2), 255 / 128), "eps": 3.0 - 2.0**-8 - 2.0**-17}


def _cancelling() -> dict[str, Any]:
    """Pairs of nearly equal channels at position 183, where cosine and sine are nearly equal: little is left of them.

    What a rounding before the rotation does to the channels is then large against the key.
    """
    given = _signs("cancelling", [1, 1], [183, 183], [0, 2], dim=6)
    given["c"] = np.ones_like(given["c"])
    for role in ("context", "query"):
        projection = np.abs(given[f"{role}_k_proj"])
        given[f"{role}_k_proj"] = projection
    step = np.arange(3)
    half = 1.0 + (2 * step + 1) * 2.0**-7
    given["k_norm"] = np.stack([np.concatenate([half + layer * 2.0**-5, half + layer * 2.0**-5 + 2.0**-7])
                                for layer in range(LAYERS)])  # fmt: skip
    return given | {"theta": 1.0, "eps": inputs.fp32(0.0173)}


def _rounded_twice() -> dict[str, Any]:
    """Products that BF16 and then FP16 take elsewhere than FP16 alone: 65519, ties of BF16, small magnitudes."""
    pairs = [(65280.0, 239.0), (-65280.0, -239.0), (32768.0, 129.0), (1024.0, 5.0), (1.0, 2.0**-8), (1.0, 2.0**-10),
             (3.0, 2.0**-7), (2.0**-12, 3 * 2.0**-21)]  # fmt: skip
    given = _given("twice", [2], [0], [1])
    given["c"] = np.zeros_like(given["c"])
    given["c"][0, :, :2] = [[1.0, 1.0], [-1.0, -1.0]]
    given["context_v_proj"] = np.zeros_like(given["context_v_proj"])
    given["context_v_proj"][0, :, :2] = pairs
    given["context_v_proj"][1, :, :2] = pairs[::-1]
    return given


def _ordinary(profile: Profile) -> dict[str, Any]:
    """Three lanes of which one is idle, a chunk over the wrap, garbage, and values of ordinary size."""
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    given = _given("ordinary", [4, 0, 2], [8, 31, 254], [2, 1, 0], capacity=10, dim=6)
    rows = inputs.telling("ring/ordinary/c", given["c"].shape, act)
    given["c"] = np.where(np.isnan(given["c"]), np.nan, rows)
    for name in ("context_k_proj", "context_v_proj", "query_k_proj", "query_v_proj"):
        given[name] = inputs.weights(f"ring/ordinary/{name}", given[name].shape, weight)
    norms = [tiny.bold_norm(f"ring/ordinary/norm/{layer}", 6, weight) for layer in range(LAYERS)]
    return given | {"k_norm": np.stack(norms), "theta": 10000.0, "eps": inputs.fp32(1e-6)}


@suite("ring.payload", profiles=NINFER)
def payload(profile: Profile) -> Iterator[Case]:
    """The official draft at several draft counts, another one, and one past 2^31 bytes."""
    official = {"layers": 5, "kv_heads": 8, "head_dim": 128, "window": 2048}
    for slug, sizes, drafts in (
        ("official-7-drafts", official, 7), ("official-15-drafts", official, 15), ("official-one-draft", official, 1),
        ("small", {"layers": 3, "kv_heads": 2, "head_dim": 6, "window": 7}, 4),
        ("past-2-31", {"layers": 64, "kv_heads": 32, "head_dim": 256, "window": 4096}, 15),
    ):  # fmt: skip
        yield Case(
            slug, ("RING-001",), {**sizes, "drafts": drafts},
            catches="the ring grows with the draft count, counts one of keys and values, or four bytes a number",
            effect="crash",
        )  # fmt: skip
