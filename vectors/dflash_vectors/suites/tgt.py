"""The target: causal attention over its cache, its head, and whole prefills."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite

NAN = float("nan")

SEEDS: dict[str, dict[str, int]] = {
    "ninfer": {"whole": 2},
    "zlab": {},
}
"""Found by search: with these every token of a prefill leads by more than a correct port may be off. Others are 0."""


def _attention(
    key: str, profile: Profile, positions: list[int], rows: int, *, heads: int = 2, kv: int = 2, size: int = 4,
    window: int = 0, scale: float = 0.0, unwritten: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """A cache of `rows` rows and `unwritten` NaN ones; queries of magnitude `scale`, zero for plain visibility."""
    act, ctx_k, ctx_v = (profile.dtypes[name] for name in ("ACT", "CTX_K", "CTX_V"))
    shape = (rows + unwritten, kv, size)
    cached = {
        "key": inputs.telling(f"{key}/key", shape, ctx_k),
        "value": inputs.telling(f"{key}/value", shape, ctx_v),
    }
    for values in cached.values():
        values[rows:] = NAN
    own = inputs.telling(f"{key}/q", (len(positions), heads, size), "F32")
    return {
        "q": inputs.represent(scale * own, act),
        **cached,
        "positions": np.array(positions),
        "length": rows,
        "window": window,
    }


@suite("target.attention")
def attention(profile: Profile) -> Iterator[Case]:
    """Rows at the cache's end and within it, with and without a window."""
    sizes: dict[str, Any] = {"heads": tiny.HEADS, "kv": tiny.KV_HEADS, "size": tiny.HEAD_DIM, "scale": 1.0}
    ahead = "a verify row sees the proposals after it"
    yield Case(
        "itself-and-no-later", ("TGT-001",), _attention("tgt/itself", profile, [2, 3, 4], 5),
        catches=ahead, effect="output",
    )  # fmt: skip
    yield Case(
        "last-row-sees-itself", ("TGT-001",), _attention("tgt/last", profile, [6], 7),
        catches="the newest row is not yet in the cache when it is attended to",
        effect="output",
    )  # fmt: skip
    yield Case(
        "first-row", ("TGT-001",), _attention("tgt/first", profile, [0], 1),
        catches="a row without predecessors attends to nothing",
        effect="output",
    )  # fmt: skip
    yield Case(
        "past-the-length", ("TGT-001",), _attention("tgt/length", profile, [3, 4], 5, unwritten=3),
        catches="rows of the cache that were never written are read",
        effect="output",
    )  # fmt: skip
    for slug, window in (("sliding", 4), ("sliding-of-one", 1)):
        yield Case(
            slug, ("TGT-002",), _attention(f"tgt/{slug}", profile, [8], 9, window=window),
            catches="the window is S + 1 or S - 1 keys wide",
            effect="output",
        )  # fmt: skip
    yield Case(
        "sliding-verify", ("TGT-002",), _attention("tgt/verify", profile, [9, 10, 11, 12], 13, window=5),
        catches="the window of several verify rows ends where the first row's or the last row's does",
        effect="output",
    )  # fmt: skip
    yield Case(
        "whole-full-layer", ("TGT-001",), _attention("tgt/full", profile, [12, 13, 14, 15, 16], 17, **sizes),
        catches=ahead, effect="output",
    )  # fmt: skip
    yield Case(
        "whole-sliding-layer", ("TGT-002",), _attention("tgt/local", profile, [14, 15, 16], 17, window=7, **sizes),
        catches="a sliding layer of the target attends to everything",
        effect="output",
    )  # fmt: skip


@suite("target.logits")
def logits(profile: Profile) -> Iterator[Case]:
    """Rows of another scale than their norm, and a norm with a large eps."""
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    for slug, rows, scale, eps in (("far-from-norm-one", 3, 8.0, 1e-6), ("eps-within-root", 2, 0.5, 0.5)):
        yield Case(
            slug, ("TGT-004", "DRAFT-002"),
            {
                "x": inputs.telling(f"tgt/{slug}/x", (rows, tiny.HIDDEN), act) * scale,
                "norm": tiny.bold_norm(f"tgt/{slug}/norm", tiny.HIDDEN, weight),
                "head": inputs.weights(f"tgt/{slug}/head", (tiny.VOCABULARY, tiny.HIDDEN), weight),
                "eps": inputs.fp32(eps),
            },
            catches="the head reads rows that the final norm has not seen",
            effect="output", blame={"hidden": "DRAFT-002"},
        )  # fmt: skip


def _prefill(key: str, profile: Profile, *, chunks: list[int], taps: list[int], **model: Any) -> dict[str, Any]:
    key = f"tgt/{key}/{SEEDS[profile.name].get(key, 0)}"
    target = tiny.target(key, profile, **model)
    return {
        "config": inputs.text(target.config),
        **{f"target.{name}": value for name, value in target.tensors.items()},
        "ids": inputs.tokens(f"{key}/ids", sum(chunks), tiny.PUBLIC),
        "chunks": np.array(chunks),
        "taps": np.array(taps),
        "public": tiny.PUBLIC,
    }


@suite("target.forward")
def forward(profile: Profile) -> Iterator[Case]:
    """Whole prefills. Only one case taps the last block, which some systems show after the final norm alone."""
    layer = {"layer.*": "TGT-006"}
    yield Case(
        "whole-model", ("TGT-006", "TGT-004"),
        _prefill("whole", profile, chunks=[5], taps=[0], windows=(0, 0)),
        catches="the target's queries and keys are not normed, or turned over part of the head",
        effect="output", blame=layer | {"logits": "TGT-004", "tokens": "TGT-004"},
    )  # fmt: skip
    yield Case(
        "chunks", ("TGT-003", "TAP-004", "TGT-004"),
        _prefill("chunks", profile, chunks=[2, 1, 4], taps=[1, 0], windows=(3, 0, 0)),
        catches="positions start again with each chunk, or taps are kept of the last chunk alone",
        effect="output", blame={"layer.*": "TGT-003", "features": "TAP-004", "logits": "TGT-004"},
    )  # fmt: skip
    yield Case(
        "chunks-of-one", ("TGT-003", "TAP-004"),
        _prefill("ones", profile, chunks=[1, 1, 1, 1, 1], taps=[1, 0], windows=(0, 2, 0)),
        catches="a chunk of one token is taken for a decode step, whose taps nobody keeps",
        effect="acceptance", blame={"features": "TAP-004"},
    )  # fmt: skip
    yield Case(
        "last-tap", ("TAP-003", "TGT-006"),
        _prefill("last-tap", profile, chunks=[6], taps=[1, 0], windows=(0, 4)),
        catches="the tap of the last block is taken after the final norm, or not at all",
        effect="acceptance", blame=layer,
    )  # fmt: skip
    yield Case(
        "tied-embedding", ("TGT-005", "TGT-006"),
        _prefill("tied", profile, chunks=[4], taps=[0], windows=(0, 0), tied=True),
        catches="a tied target reads a head that its folder does not have",
        effect="output", blame=layer,
    )  # fmt: skip
