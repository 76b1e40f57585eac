"""One whole draft forward, through the published config and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite

CLAUSES = ("DRAFT-010", "CTX-001", "DRAFT-009", "DRAFT-011", "HEAD-002")
"""A layer returns the sum of its MLP branch: what nothing more special explains is blamed on that."""
SEEDS: dict[str, dict[str, int]] = {
    "ninfer": {"single": 5, "mixed": 12, "large-eps": 3, "padding": 3},
    "zlab": {"mixed": 1},
}
"""Found by search: with these every proposal leads by more than a correct port may be off. Others are 0."""

BLAME = {"c": "CTX-001", "layer.*": "DRAFT-010", "hidden": "DRAFT-011", "proposals": "HEAD-002"}


def _block(
    key: str,
    profile: Profile,
    *,
    context: int,
    drafts: int,
    extent: int,
    taps: tuple[int, ...] = (2, 0, 3),
    eps: float = 1e-5,
    **model: Any,
) -> dict[str, Any]:
    act = profile.dtypes["ACT"]
    key = f"block/{key}/{SEEDS[profile.name].get(key, 0)}"
    target = tiny.target(f"{key}/target", profile, windows=(0,) * 4)
    draft = tiny.draft(key, profile, taps=taps, **model)
    draft.config["rms_norm_eps"] = eps
    depth = {"num_target_layers": 4} if profile.axes["config_schema"] == "published" else {}
    return {
        "config": inputs.text(draft.config | depth),
        "target_config": inputs.text(target.config),
        **{f"draft.{name}": value for name, value in draft.tensors.items()},
        "embedding": target.tensors["model.embed_tokens.weight"],
        "head": target.tensors["lm_head.weight"],
        "features": inputs.telling(f"{key}/features", (context, len(taps) * tiny.HIDDEN), act),
        "anchor": 11,
        "drafts": drafts,
        "extent": extent,
        "public": tiny.PUBLIC,
    }


def _loud_padding(given: dict[str, Any], profile: Profile) -> dict[str, Any]:
    """`given` with head rows past the public ones that come in opposite pairs: one of each wins every argmax."""
    loud = inputs.represent(32.0 * tiny.signs("block/padding", (2, tiny.HIDDEN)), profile.dtypes["WEIGHT"])
    head = given["head"].copy()
    head[tiny.PUBLIC :] = np.concatenate([loud, -loud])
    return {**given, "head": head}


@suite("draft.block")
def special(profile: Profile) -> Iterator[Case]:
    """An eps as large as the mean squares, and padding rows of the head that would win."""
    yield Case(
        "large-eps", ("DRAFT-002", "CTX-002", *CLAUSES),
        _block("large-eps", profile, context=6, drafts=3, extent=3, windows=(4, 0), eps=0.3),
        catches="the norms of a draft add a fixed eps instead of the config's",
        effect="acceptance", blame={**BLAME, "c": "CTX-002", "layer.*": "DRAFT-002"},
    )  # fmt: skip
    yield Case(
        "padding-would-win", ("HEAD-002", *CLAUSES[:-1]),
        _loud_padding(_block("padding", profile, context=5, drafts=3, extent=3, windows=(0,)), profile),
        catches="the proposals are taken from every row of the head",
        effect="acceptance", blame=BLAME,
    )  # fmt: skip


@suite("draft.block")
def block(profile: Profile) -> Iterator[Case]:
    """Local and full layers mixed, windows shorter than the context, a tail, and causality as the file has it."""
    yield Case(
        "context-rows-not-normed", ("CTX-004", "CTX-001"),
        _block("single", profile, context=5, drafts=2, extent=2, windows=(0,), taps=(1,)),
        catches="a layer norms the context row with its own input norm before it projects it",
        effect="acceptance", blame={"c": "CTX-001"},
    )  # fmt: skip
    yield Case(
        "local-and-full-by-stage", CLAUSES, _block("mixed", profile, context=13, drafts=4, extent=4, windows=(5, 0)),
        catches="the layers share one mask, or context keys are projected by another layer's weights",
        effect="acceptance", blame=BLAME,
    )  # fmt: skip
    yield Case(
        "tail-by-stage", CLAUSES, _block("tail", profile, context=9, drafts=5, extent=2, windows=(0, 4)),
        catches="a tail proposes from a whole block",
        effect="acceptance", blame=BLAME,
    )  # fmt: skip
    if profile.name == "zlab":
        yield Case(
            "says-not-causal-by-stage", CLAUSES,
            _block("symmetric", profile, context=7, drafts=4, extent=4, windows=(6, 0), causal=False),
            catches="a local layer is causal although the file says that it is not",
            effect="acceptance", blame=BLAME,
        )  # fmt: skip
        yield Case(
            "says-causal-by-stage", CLAUSES,
            _block("causal", profile, context=7, drafts=4, extent=4, windows=(6, 0), causal=True),
            catches="a full layer sees both ways although the file says that all are causal",
            effect="acceptance", blame=BLAME,
        )  # fmt: skip
