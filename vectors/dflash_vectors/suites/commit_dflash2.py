"""Whole requests with a DFlash2 draft: greedy in both profiles, and sampled where draws are keyed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite
from dflash_vectors.suites.commit import request

STRANGERS = {"ninfer": 26, "zlab": 1}
"""Found by search: every decision leads by more than a correct port may be off, and an earlier round's last row would
sway the proposals of the next if it were read."""


def _strangers(profile: Profile) -> dict[str, object]:
    """A request on random models: a planted draft finds rows by their codes, and is blind to the row before a block."""
    key, published = f"engine/history/{STRANGERS[profile.name]}", profile.axes["config_schema"] == "published"
    target = tiny.target(f"{key}/target", profile, windows=(0, 0))
    draft = tiny.draft2(f"{key}/draft", profile, windows=(9,), taps=(1,), top=3, causal=False if published else None)
    return {
        "target_config": inputs.text(target.config),
        "draft_config": inputs.text(draft.config | ({"num_target_layers": 2} if published else {})),
        **{f"target.{name}": value for name, value in target.tensors.items()},
        **{f"draft.{name}": value for name, value in draft.tensors.items()},
        "prompt": inputs.tokens(key, 5, tiny.PUBLIC),
        "drafts": 3,
        "max_new": 4,
        "stop_ids": np.zeros(0, dtype=np.int64),
        "public": tiny.PUBLIC,
        "temperature": 0.0,
        "seed": np.uint64(0),
    }


@suite("engine.generate")
def greedy(profile: Profile) -> Iterator[Case]:
    """Rounds of four drafts that accept 0, 4, 2 and 3, and tails."""
    yield Case(
        "dflash2-no-history", ("CONV-004", "SEL-002", "DRAFT-014"), _strangers(profile),
        catches="the convolution remembers the last row of the round before",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "dflash2-rounds", ("SEL-002", "CTX-009", "COMMIT-001", "COMMIT-002"), request("SECOND", profile, 17),
        catches="a state of target or draft is wrong after a round that accepts nothing, K - 1 or everything",
        effect="acceptance",
    )  # fmt: skip
    whole = profile.name == "ninfer"
    yield Case(
        "dflash2-tail", ("BLK-008" if whole else "BLK-009", "BLK-003", "STOP-003"),
        request("SECOND", profile, 5, drafts=7),
        catches="a tail verifies proposals that it may not emit, or proposes from a block of another width",
        effect="output",
    )  # fmt: skip
    yield Case(
        "dflash2-one-draft", ("SEL-002", "COMMIT-001"),
        request("SECOND", profile, 6, drafts=1),
        catches="the walk of one step, from the anchor alone, is not conditioned on it",
        effect="acceptance",
    )  # fmt: skip


TEMPERATURE = 2.0
"""High enough that the walk often takes what a greedy one would not."""
WALKED, CORRECTED, LONG_ROUND = 126, 603, 637
"""Seeds by which every draw is far from an edge. The first two show every fault of walk or law that was tried; by the
last, a round accepts K - 1."""


@suite("engine.generate", profiles=("ninfer",))
def sampled(profile: Profile) -> Iterator[Case]:
    """Requests above temperature 0: the walk draws, and its law is corrected."""
    law = "rounds are verified against another law than the one that drew"
    for seed, clauses, catches in (
        (WALKED, ("SEL-004", "SEL-005", "SEL-008", "RNG-006"), "the walk is greedy, or draws with another key"),
        (CORRECTED, ("LAW-009", "LAW-011", "LAW-007", "RNG-004", "RNG-005"), law),
        (LONG_ROUND, ("LAW-011", "LAW-009", "SEL-005", "RNG-004", "RNG-005"), law),
    ):
        yield Case(
            f"dflash2-sampled-{seed}", clauses,
            request("SECOND", profile, 10, temperature=TEMPERATURE, seed=seed),
            catches=catches, effect="output",
        )  # fmt: skip
