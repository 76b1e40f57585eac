"""Attention of a draft block: who is seen, by which head, with which weight, and what must never be read.

Queries of zero weigh every visible key alike, so that a case about visibility shows nothing but visibility; as many
query heads as KV heads, or a single live row, keep the other rules out in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite

NAN = float("nan")
GARBAGE = -1
"""A position that no live row has."""
HUGE = 2.0**100
HUGE_VALUE = 60000.0
"""Near the top of FP16, which the context's values have in one profile."""


def _attention(
    key: str, profile: Profile, *, context: Any, rows: Any, heads: int = 2, kv: int = 2, size: int = 4,
    window: int = 0, causal: int = 0, scale: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Context rows and block rows at the positions given; queries of magnitude `scale`, zero for plain visibility."""
    act, ctx_k, ctx_v = (profile.dtypes[name] for name in ("ACT", "CTX_K", "CTX_V"))
    c, r = len(context), len(rows)
    return {
        "q": inputs.represent(scale * inputs.telling(f"{key}/q", (r, heads, size), "F32"), act),
        "context_key": inputs.telling(f"{key}/ck", (c, kv, size), ctx_k),
        "context_value": inputs.telling(f"{key}/cv", (c, kv, size), ctx_v),
        "block_key": inputs.telling(f"{key}/bk", (r, kv, size), act),
        "block_value": inputs.telling(f"{key}/bv", (r, kv, size), act),
        "context_positions": np.array(context),
        "context_length": c,
        "positions": np.array(rows),
        "live": r,
        "window": window,
        "causal": causal,
    }


def _unwritten(given: dict[str, Any], written: int) -> dict[str, Any]:
    """`given` with NaN in every context row from `written` on."""
    for name in ("context_key", "context_value"):
        given[name][written:] = NAN
    given["context_positions"][written:] = GARBAGE
    return given | {"context_length": written}


def _dead(given: dict[str, Any], live: int) -> dict[str, Any]:
    """`given` with NaN in every block row from `live` on."""
    for name in ("q", "block_key", "block_value"):
        given[name][live:] = NAN
    given["positions"][live:] = GARBAGE
    return given | {"live": live}


def _hidden_but_live(key: str, profile: Profile) -> dict[str, Any]:
    """Huge keys and values that no row sees, and a large value that the first row sees and the second does not."""
    given = _attention(
        key, profile, context=range(4084, 4093), rows=[4093, 4094], window=4, scale=2.0, heads=4, kv=4, size=6
    )
    given["context_value"][6] *= 1024.0
    given["context_key"][:5] = HUGE * tiny.signs(f"{key}/signs", (5, 4, 6))
    given["context_value"][:5] = HUGE_VALUE
    return given


def _steep(key: str, profile: Profile) -> dict[str, Any]:
    """Scores around 280, and one of 300 whose value is zero: the other weights, some e^-20, make the whole output.

    A score that is off by one part in a thousand moves such a weight by a third; 1/sqrt(28) lies in the middle
    between two BF16 values.
    """
    size = 28
    given = _attention(key, profile, context=range(9), rows=[9, 10], kv=2, size=size)
    steps = inputs.lattice(f"{key}/steps", (11, 2, size), 0.03125, 0.0625)
    keys = 6.625 - 0.03125 * np.arange(11)[:, None, None] + steps
    keys[3] = 7.0
    given["q"] = np.full((2, 2, size), 8.0)
    given["q"][1] = 7.5
    given["context_key"], given["block_key"] = keys[:9], keys[9:]
    given["context_value"][3] = 0.0
    return given


def _just_past_a_midpoint(profile: Profile) -> dict[str, Any]:
    """Four equal weights of 1/4 whose mean lies 2^-12 above the middle of two BF16 values."""
    given = _attention("attention/midpoint", profile, context=range(3), rows=[3], heads=2, kv=2, size=4)
    given["context_value"] = np.ones((3, 2, 4))
    given["context_value"][1] += 2.0**-6 + 2.0**-10
    given["block_value"] = np.ones((1, 2, 4))
    return given


@suite("draft.attention")
def weights(profile: Profile) -> Iterator[Case]:
    """What a softmax may not do with scores and weights."""
    yield Case(
        "steep-scores", ("DRAFT-008",), _steep("attention/steep", profile),
        catches="scores, or the factor 1 / sqrt(D), are rounded to half precision before the softmax",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "weights-of-one", ("DRAFT-008",), _just_past_a_midpoint(profile),
        catches="weights sum to less than 1, because of a sink or an epsilon in the denominator",
        effect="acceptance", exact=("attended",) if profile.name == "ninfer" else (),
    )  # fmt: skip


@suite("draft.attention")
def attention(profile: Profile) -> Iterator[Case]:
    """Visibility, heads and weights, one at a time."""
    bfloat = profile.name == "ninfer"
    yield Case(
        "all-visible", ("MASK-001",),
        _attention("attention/all", profile, context=range(5), rows=range(5, 8)),
        catches="rows of a full layer do not see the masks after them",
        effect="acceptance",
    )  # fmt: skip
    if bfloat:
        yield Case(
            "dead-rows", ("DRAFT-013",),
            _dead(_attention("attention/dead", profile, context=range(3), rows=range(3, 7)), 1),
            catches="rows past the live count are read, or their output is left unwritten",
            effect="output",
        )  # fmt: skip
    yield Case(
        "edge-of-window", ("MASK-002",),
        _attention("attention/edge", profile, context=range(4080, 4091), rows=[4091], window=4),
        catches="a local layer sees distance S, or does not see S - 1",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "groups", ("DRAFT-007",),
        _attention("attention/groups", profile, context=range(4), rows=[4], heads=6, kv=2),
        catches="query head h reads KV head h modulo the KV heads",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "groups-of-two", ("DRAFT-007",),
        _attention("attention/pairs", profile, context=range(3), rows=[3], heads=6, kv=3, size=2),
        catches="groups are laid out across the KV heads",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "hidden-but-live", ("DRAFT-008",), _hidden_but_live("attention/hidden", profile),
        catches="a hidden key is given a large negative score instead of weight 0, or its value is multiplied by 0",
        effect="output",
    )  # fmt: skip
    yield Case(
        "large-scores", ("DRAFT-008",),
        _attention("attention/large", profile, context=range(6), rows=[6], kv=2, size=6, scale=48.0),
        catches="the softmax overflows, because the largest score is not subtracted",
        effect="output",
    )  # fmt: skip
    yield Case(
        "scale", ("DRAFT-008",),
        _attention("attention/scale", profile, context=range(8), rows=[8], size=10, scale=1.0),
        catches="scores are divided by D, by the square root of the hidden size, or not at all",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "unwritten-context", ("MASK-005",),
        _unwritten(_attention("attention/unwritten", profile, context=range(7), rows=[4]), 4),
        catches="context rows that were never written are read",
        effect="output",
    )  # fmt: skip
    yield from _whole_blocks(profile)


def _whole_blocks(profile: Profile) -> Iterator[Case]:
    """Blocks of five rows over a context longer than the window, far from position 0."""
    context, rows = range(262100, 262117), range(262117, 262122)
    sizes: dict[str, Any] = {"heads": tiny.HEADS, "kv": tiny.KV_HEADS, "size": tiny.HEAD_DIM, "scale": 1.0}
    yield Case(
        "whole-full-layer", ("MASK-001", "DRAFT-008"),
        _attention("attention/full", profile, context=range(17), rows=range(17, 22), **sizes),
        catches="a window or a causal triangle is applied to a full layer",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "whole-local-layer", ("MASK-002", "MASK-003", "MASK-006"),
        _attention("attention/local", profile, context=context, rows=rows, window=7, **sizes),
        catches="the window is counted from the block's start",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "whole-narrow-window", ("MASK-003", "MASK-002"),
        _attention("attention/narrow", profile, context=context, rows=rows, window=3, **sizes),
        catches="rows of the block always see one another, however narrow the window is",
        effect="acceptance",
    )  # fmt: skip
    if profile.name == "ninfer":
        tail = _attention("attention/tail", profile, context=range(9), rows=range(6, 12), window=5, **sizes)
        yield Case(
            "whole-tail-block", ("DRAFT-013", "MASK-005"), _dead(_unwritten(tail, 6), 3),
            catches="a tail block attends to its dead masks or to context slots that are not written",
            effect="acceptance",
        )  # fmt: skip
    else:
        yield Case(
            "whole-causal-layer", ("MASK-004", "MASK-002"),
            _attention("attention/causal", profile, context=context, rows=rows, window=7, causal=1, **sizes),
            catches="a causal local layer sees the masks after the row",
            effect="acceptance",
        )  # fmt: skip
