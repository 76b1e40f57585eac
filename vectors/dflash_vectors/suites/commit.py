"""Transactions: one commit, and whole requests of three rounds and more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors import inputs, planted, tiny
from dflash_vectors.suite import Case, suite

BLAME = {
    "rows": "COMMIT-001",
    "next_anchor": "COMMIT-001",
    "next_frontier": "COMMIT-001",
    "target_rows_kept": "COMMIT-002",
}


def _round(anchor: int, licensed: tuple[int, ...], kept: int, frontier: int, extent: int) -> dict[str, object]:
    """A commit after a verify that wrote extent + 1 rows of the target's K/V."""
    return {
        "anchor": anchor,
        "licensed": np.array(licensed, dtype=np.int64),
        "kept": kept,
        "frontier": frontier,
        "target_rows": frontier + extent + 1,
    }


@suite("commit.round")
def commit_round(profile: Profile) -> Iterator[Case]:
    """Rounds that reject everything, something and nothing, and rounds that a stop cut short."""
    licensed = (301, 303, 305, 307, 309)
    rows = "the committed rows are the licensed tokens, without the anchor, so the anchor is processed twice or never"
    yield Case(
        "accept-all", ("COMMIT-001",), _round(299, licensed, 5, 41, 4), catches=rows, effect="output", blame=BLAME
    )  # fmt: skip
    yield Case(
        "reject-all", ("COMMIT-001",), _round(299, (301,), 1, 41, 4), catches=rows, effect="output", blame=BLAME
    )  # fmt: skip
    yield Case(
        "no-proposals", ("COMMIT-001",), _round(17, (18,), 1, 1, 0),
        catches="a round without proposals does not move the frontier", effect="liveness", blame=BLAME,
    )  # fmt: skip
    yield Case(
        "cut-by-a-stop", ("COMMIT-001",), _round(299, licensed, 2, 262100, 4),
        catches="the frontier moves over tokens that were dropped, or the anchor is the last licensed token",
        effect="output", blame=BLAME,
    )  # fmt: skip
    nothing = dict.fromkeys(BLAME, "COMMIT-003")
    for slug, count, frontier, extent in (("nothing-kept", 5, 41, 4), ("nothing-kept-at-once", 1, 1, 0)):
        yield Case(
            slug, ("COMMIT-003",), _round(299, licensed[:count], 0, frontier, extent),
            catches="a cancelled round commits its anchor, or leaves rows of its verify pass in the target's K/V",
            effect="output", blame=nothing,
        )  # fmt: skip
    cut = "rows of rejected proposals stay in the target's K/V"
    for slug, tokens, kept, extent in (
        ("cut-back-after-rejection", (11, 13), 2, 7), ("cut-back-after-rejecting-all", (11,), 1, 15),
        ("cut-back-after-a-stop", (11, 13, 17, 19), 3, 3), ("nothing-to-cut", (11, 13, 17, 19), 4, 3),
    ):  # fmt: skip
        yield Case(
            slug, ("COMMIT-002",), _round(7, tokens, kept, 96, extent), catches=cut, effect="output", blame=BLAME
        )


LONG = {"gaps": ((1, 5, 3, 4),), "draft_windows": (15,), "hidden": 28, "code": 24}
"""A cycle of 13 tokens. With four drafts the rounds accept 0, 4, 2, 3, 0, ...; the draft looks 14 rows back."""
TIED = {**LONG, "tied": True}
"""A tied head; the target's last layer finds the next token in its own K/V, 12 rows back."""
NEAR = {"gaps": ((5,),), "draft_windows": (7,), "hidden": 18, "code": 14, "heads": 2, "head_dim": 8}
"""Every round of four drafts accepts all. The draft looks 6 rows back, among the rows of the last commit."""
SECOND = {"backend": "dflash2"}
"""A DFlash2 draft; the rounds accept as those of LONG do."""
LEAN = {"target_windows": (0, 0), "taps": (0,), "intermediate": 12}
"""Two target layers and one tap, enough for what these requests test."""
DRAFTS = 4
DECOY = -1
"""Stands for the token that the draft proposes where it goes wrong, and that the target never says."""


@cache
def pair_of(name: str, profile: str) -> tuple[planted.Planted, Mapping[str, object]]:
    """A planted pair in the profile's dtype and config schema, and the inputs that hold it."""
    named: dict[str, dict[str, Any]] = {"LONG": LONG, "TIED": TIED, "NEAR": NEAR, "SMALL": {}, "SECOND": SECOND}
    options = named[name]
    options = {**(LEAN if options else {}), **options, "dtype": "BF16" if profile == "ninfer" else "F32"}
    built = planted.pair("small", **options)
    config = planted.component_config(built.options) if profile == "ninfer" else built.draft_config
    tensors = {f"target.{tensor}": value for tensor, value in built.target.items()}
    tensors |= {f"draft.{tensor}": value for tensor, value in built.draft.items()}
    return built, {"draft_config": inputs.text(config), **tensors}


def request(
    name: str, profile: Profile, max_new: int, stop_ids: tuple[int, ...] = (), drafts: int = DRAFTS,
    temperature: float = 0.0, seed: int = 0, capacity: int = 4096, prompt_rows: int | None = None,
) -> dict[str, object]:  # fmt: skip
    """`stop_ids` are places in the expected continuation, or DECOY. `prompt_rows` keeps the prompt's end alone."""
    built, model = pair_of(name, profile.name)
    prompt = built.prompts[0]
    said = built.continuation(prompt, max_new)
    stops = [built.words.decoy if place == DECOY else said[place] for place in stop_ids]
    return {
        **model,
        "target_config": inputs.text({**built.target_config, "max_position_embeddings": capacity}),
        "prompt": np.array(prompt[-prompt_rows:] if prompt_rows else prompt),
        "drafts": drafts,
        "max_new": max_new,
        "stop_ids": np.array(stops, dtype=np.int64),
        "public": built.public,
        "temperature": temperature,
        "seed": np.uint64(seed),
    }


STRANGERS = {"ninfer": 92, "zlab": 0}
"""Found by search: every decision leads by more than a correct port may be off, and mask rows sway the proposals."""


def _strangers(profile: Profile) -> dict[str, object]:
    """A request on random models. A planted draft finds rows by a code that mask rows lack, and is blind to these."""
    key, schema = f"engine/block-rows/{STRANGERS[profile.name]}", profile.axes["config_schema"]
    target = tiny.target(f"{key}/target", profile, windows=(0, 0))
    draft = tiny.draft(f"{key}/draft", profile, windows=(0,), taps=(1,))
    depth = {"num_target_layers": 2} if schema == "published" else {}
    return {
        "target_config": inputs.text(target.config),
        "draft_config": inputs.text(draft.config | depth),
        **{f"target.{name}": value for name, value in target.tensors.items()},
        **{f"draft.{name}": value for name, value in draft.tensors.items()},
        "prompt": inputs.tokens(key, 5, tiny.PUBLIC),
        "drafts": 3,
        "max_new": 5,
        "stop_ids": np.zeros(0, dtype=np.int64),
        "public": tiny.PUBLIC,
        "temperature": 0.0,
        "seed": np.uint64(0),
    }


@suite("engine.generate")
def states(profile: Profile) -> Iterator[Case]:
    """Greedy requests of three rounds and more, each on the models that make one kind of stale state visible."""
    yield Case(
        "context-caught-up", ("CTX-010",), request("NEAR", profile, 17),
        catches="the rows of the last commit reach the draft's context one round late",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "block-rows-forgotten", ("DRAFT-014",), _strangers(profile),
        catches="keys and values of the block's rows stay in the draft's context",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "rejected-rows-forgotten", ("CTX-009",), request("LONG", profile, 17),
        catches="context rows of rejected proposals stay visible",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "target-rows-cut-back", ("COMMIT-002",), request("TIED", profile, 17),
        catches="rows of rejected proposals stay in the target's K/V",
        effect="output",
    )  # fmt: skip
    yield Case(
        "three-layers-two-taps", ("COMMIT-001", "COMMIT-002", "CTX-009"), request("SMALL", profile, 17),
        catches="a state of target or draft is wrong after a round that accepts nothing, K - 1 or everything",
        effect="output",
    )  # fmt: skip
    for drafts in (1, 9):
        yield Case(
            f"width-{drafts}", ("COMMIT-001",), request("LONG", profile, 14, drafts=drafts),
            catches="the tokens depend on the draft count",
            effect="output",
        )  # fmt: skip
    yield Case(
        "prompt-of-two", ("COMMIT-001",), request("LONG", profile, 4, prompt_rows=2),
        catches="a prompt shorter than the block is padded, or crashes",
        effect="crash",
    )  # fmt: skip


@suite("engine.generate")
def ends(profile: Profile) -> Iterator[Case]:
    """Greedy requests that a stop or the budget ends, before, inside and after a block."""
    yield Case(
        "first-token-stops", ("STOP-004",), request("LONG", profile, 9, stop_ids=(0,)),
        catches="a first token that is a stop is followed by a block",
        effect="output",
    )  # fmt: skip
    yield Case(
        "rejected-stop", ("STOP-002",), request("LONG", profile, 3, stop_ids=(DECOY,)),
        catches="a proposed stop that the target rejects ends the request",
        effect="output",
    )  # fmt: skip
    yield Case(
        "accepted-stop", ("STOP-001",), request("LONG", profile, 9, stop_ids=(3,)),
        catches="text goes on after a stop inside the block, or the stop is lost",
        effect="output",
    )  # fmt: skip
    yield Case(
        "stop-as-the-bonus", ("STOP-001",), request("LONG", profile, 9, stop_ids=(6, 8)),
        catches="a stop in the slot of the bonus is not seen",
        effect="output",
    )  # fmt: skip
    yield Case(
        "budget-inside-a-block", ("STOP-003",), request("LONG", profile, 5),
        catches="the last block is emitted past the budget",
        effect="output",
    )  # fmt: skip
    yield Case(
        "budget-of-one", ("STOP-003",), request("LONG", profile, 1),
        catches="a budget that the first token uses up is followed by a block",
        effect="output",
    )  # fmt: skip


@suite("engine.generate", profiles=("ninfer",))
def cached(profile: Profile) -> Iterator[Case]:
    """A cache that ends before the budget."""
    yield Case(
        "cache-ends", ("BLK-004",), request("LONG", profile, 11, capacity=31 + 4),
        catches="the request goes on past the cache, or ends before the cache is full",
        effect="crash",
    )  # fmt: skip


SAMPLED = ((2.0, 7), (2.5, 337), (2.5, 436))
"""Temperatures and seeds whose every draw is far from an edge; by the last two the text leaves the cycle."""


@suite("engine.generate", profiles=("ninfer",))
def sampled(profile: Profile) -> Iterator[Case]:
    """Requests above temperature 0, whose uniforms are keyed by seed, position and purpose."""
    for temperature, seed in SAMPLED:
        yield Case(
            f"sampled-{seed}", ("RNG-004", "RNG-005", "RNG-006", "LAW-003", "LAW-004", "LAW-007"),
            request("LONG", profile, 10, temperature=temperature, seed=seed),
            catches="a draw of a round uses another key, or sampled rounds accept by equality",
            effect="output",
        )  # fmt: skip


FIRST = ((2.5, 1600), (2.5, 3736))
"""Temperatures and seeds whose first draw takes another token than the argmax, seed 0, and the keys beside it do."""


@suite("engine.generate", profiles=("ninfer",))
def first_token(profile: Profile) -> Iterator[Case]:
    """Requests of one token, which the prefill's draw decides."""
    for temperature, seed in FIRST:
        yield Case(
            f"first-token-drawn-{seed}", ("RNG-006",),
            request("LONG", profile, 1, temperature=temperature, seed=seed),
            catches="the token after the prompt is the argmax, or is drawn before the request's seed is set",
            effect="output",
        )  # fmt: skip
