"""BF16: implementations that round at different points may part at a near tie, and nowhere else.

Every token of the pair has a twin whose logit is nearly its own, so that BF16 runs do part. Where two of them first
differ, the logits of their two tokens, in FP32 after the common text, may lie no further apart than BF16 can move them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from dflash_reference import engine as reference
from dflash_reference import target as target_model
from dflash_reference.request import Settings
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from dflash_vectors import perturb
from dflash_vectors.peers import scripted

from .conftest import Loaded

pytestmark = pytest.mark.peers

NEW_TOKENS, DRAFTS = 104, 15


def logits_after(loaded: Loaded, tokens: list[int], profile: Profile) -> Array:
    """The target's logits [T, public] of every row of a text, by the reference."""
    target = loaded.reference[0]
    rows = target_model.prefill(
        target, target_model.Cache(target.config), np.array(tokens), [len(tokens)], (), profile
    ).residuals[-1]
    head = target_model.head(target)
    return target_model.logits(rows, target.norm, head, target.config.eps, profile).logits[:, : loaded.pair.public]


def spread_of_bf16(loaded: Loaded, tokens: list[int]) -> float:
    """How far BF16 moves a logit: a multiple of the largest distance from FP32 that perturbed BF16 runs show."""
    exact = logits_after(loaded, tokens, load_profile("zlab"))
    furthest = 0.0
    for repetition in range(perturb.REPETITIONS):
        with perturb.perturbed(f"near ties/{repetition}"):
            moved = logits_after(loaded, tokens, load_profile("ninfer"))
        furthest = max(furthest, float(np.abs(moved - exact).max()))
    return perturb.MULTIPLE * furthest


def lead_over_strangers(loaded: Loaded, tokens: list[int], start: int) -> float:
    """How far the best logit of each row from `start` on leads those of all tokens but its twin, at the least."""
    rows = logits_after(loaded, tokens, load_profile("zlab"))[start:]
    kin = {**loaded.pair.words.twin, **{other: token for token, other in loaded.pair.words.twin.items()}}
    leads = []
    for row in rows:
        best = int(row.argmax())
        leads.append(row[best] - np.delete(row, [best, kin[best]]).max())
    return float(min(leads))


def answers(loaded: Loaded, prompt: list[int]) -> dict[str, list[int]]:
    """The new tokens of five BF16 implementations."""
    pair = loaded.pair
    settings = Settings(DRAFTS, NEW_TOKENS, (pair.words.decoy,), pair.public)
    run = scripted.generate(loaded.authors, loaded.transformers, prompt, NEW_TOKENS, [pair.words.decoy], DRAFTS)
    return {
        "authors": run.tokens[len(prompt) :],
        "transformers": loaded.plain(prompt, NEW_TOKENS),
        "engine": list(loaded.engine(DRAFTS).generate(prompt, NEW_TOKENS).tokens),
        "engine as ninfer": list(loaded.engine(DRAFTS, "ninfer").generate(prompt, NEW_TOKENS).tokens),
        "reference as ninfer": [
            int(token)
            for token in reference.generate(*loaded.reference, prompt, settings, load_profile("ninfer")).tokens
        ],
    }


def test_bf16_answers_part_only_at_near_ties(load: Callable[..., Loaded]) -> None:
    loaded = load("standard", twins=True, dtype="BF16", gaps=((1, 16, 2, 15),))
    prompt = loaded.pair.prompts[0]
    given = answers(loaded, prompt)
    text = prompt + given["reference as ninfer"][:-1]
    bound = 2 * spread_of_bf16(loaded, text)
    assert bound < lead_over_strangers(loaded, text, len(prompt) - 1), "the bound would let a wrong token pass"
    gaps = []
    for (left, a), (right, b) in combinations(given.items(), 2):
        place = next((index for index in range(NEW_TOKENS) if a[index] != b[index]), None)
        if place is None:
            print(f"{left} and {right}: equal")
            continue
        row = logits_after(loaded, prompt + a[:place], load_profile("zlab"))[-1]
        gaps.append(abs(float(row[a[place]] - row[b[place]])))
        print(f"{left} and {right}: part at token {place}, logit gap {gaps[-1]:.4f}, bound {bound:.4f}")
        assert gaps[-1] <= bound, f"{left} and {right} at token {place}"
    assert gaps, "no two answers part, so this test has tested nothing"
