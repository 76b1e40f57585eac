"""Reference, engine and the authors' package on planted FP32 DFlash2 pairs: tokens, counts, and how each was chosen.

The pairs' unary scores alone propose other tokens than the plan's, so that a wrong walk shows in the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import dflash.model as package
import numpy as np
import pytest
import torch
from dflash_reference import engine as reference
from dflash_reference import selector
from dflash_reference.draft2 import Proposal
from dflash_reference.request import Settings
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from dflash_vectors import perturb
from dflash_vectors.peers import authors_dflash2, modules

from .conftest import Loaded
from .test_agreement import (
    IMPLEMENTATIONS,
    LEAST,
    NEW_TOKENS,
    PAIRS,
    PERTURBED_TOKENS,
    PROMPTS,
    REPETITIONS,
    Answer,
    Load,
    by_authors,
)

pytestmark = pytest.mark.peers

TEMPERATURE = 1.0
"""At which the laws along the greedy path are compared; a greedy walk's own law is certain."""

Walks = list[dict[str, Array]]
"""Of each round: candidates, path, unary and scores [P, C], and the law q [P, C] at TEMPERATURE along the path."""


@pytest.mark.parametrize("preset", PAIRS)
@pytest.mark.parametrize("drafts", sorted(PROMPTS))
def test_dflash2_tokens_and_accepted_counts_are_those_of_the_plan(preset: str, drafts: int, load: Load) -> None:
    loaded = load(preset, backend="dflash2")
    pair, counts = loaded.pair, Counter[int]()
    for number in PROMPTS[drafts]:
        prompt = pair.prompts[number]
        planned = Answer(pair.continuation(prompt, NEW_TOKENS), pair.expected_accepted(prompt, drafts, NEW_TOKENS))
        for name, generate in IMPLEMENTATIONS.items():
            assert generate(loaded, prompt, drafts) == planned, f"{name} on prompt {number}"
        counts.update(planned.accepted)
    print(f"\n{preset}, K = {drafts}, accepted counts: " + ", ".join(f"{n}: {counts[n]}" for n in range(drafts + 1)))
    assert min(counts[count] for count in range(drafts + 1)) >= LEAST


def softened(scores: Array) -> Array:
    return np.stack([selector.softened(row, TEMPERATURE) for row in scores])


def reference_walks(loaded: Loaded, prompt: list[int], drafts: int, count: int = NEW_TOKENS) -> Walks:
    """The whole table is public here, since the package has no count of public rows."""
    rounds: list[reference.Round] = []
    settings = Settings(drafts, count, (loaded.pair.words.decoy,), loaded.pair.options.vocabulary)
    reference.generate(*loaded.reference, prompt, settings, load_profile("zlab"), rounds.append)
    walks = []
    for round_ in rounds:
        done = round_.proposal
        assert isinstance(done, Proposal)
        np.testing.assert_array_equal(done.q, authors_dflash2.certain(done.candidates, done.proposals))
        walks.append(
            {
                "candidates": done.candidates, "path": done.proposals, "unary": done.unary, "scores": done.scores,
                "q": softened(done.scores),
            }
        )  # fmt: skip
    return walks


def engine_walks(loaded: Loaded, prompt: list[int], drafts: int) -> Walks:
    walks: Walks = []

    def keep(trace: Any) -> None:
        held = {name: trace.stages[name].numpy() for name in ("candidates", "unary", "scores", "q")}
        path = held["candidates"][held.pop("q").astype(bool)]
        walks.append({**held, "path": path, "q": softened(held["scores"])})

    loaded.engine(drafts, public=loaded.pair.options.vocabulary).generate(prompt, NEW_TOKENS, observer=keep)
    return walks


@contextmanager
def walking(model: Any, walks: Walks) -> Iterator[None]:
    """Note each walk of the package's selector; it walks the same path once more at TEMPERATURE, for its laws."""
    select = model.candidate_selector.select
    scores: list[torch.Tensor] = []

    def watched(hidden: Any, logits: Any, anchor: Any, temperature: float) -> Any:
        with authors_dflash2.ranking() as ranked:
            path, candidates, _ = done = select(hidden, logits, anchor, temperature)
        ranks = (candidates == path[..., None]).int().argmax(-1)
        scores.clear()
        with (
            mock.patch.object(package, "_sampling_probs", side_effect=soften),
            mock.patch.object(package, "_sample_probs", side_effect=list(ranks.T)),
            mock.patch.object(torch, "topk", return_value=ranked[0]),
        ):
            again, _, q = select(hidden, logits, anchor, TEMPERATURE)
        assert torch.equal(again, path)
        order = torch.argsort(ranked[0][0], dim=-1, descending=True, stable=True)
        held = {"candidates": candidates, "unary": ranked[0][0], "scores": torch.stack(scores, 1), "q": q}
        walks.append({name: modules.array(values.gather(-1, order)) for name, values in held.items()})
        walks[-1]["path"] = modules.array(path)
        return done

    law = package._sampling_probs

    def soften(values: torch.Tensor, temperature: float) -> Any:
        scores.append(values[:, 0])
        return law(values, temperature)

    with mock.patch.object(model.candidate_selector, "select", watched):
        yield


def authors_walks(loaded: Loaded, prompt: list[int], drafts: int) -> Walks:
    walks: Walks = []
    with walking(loaded.authors, walks):
        by_authors(loaded, prompt, drafts)
    return walks


BY: dict[str, Callable[[Loaded, list[int], int], Walks]] = {"engine": engine_walks, "authors": authors_walks}


def furthest(left: Walks, right: Walks, name: str) -> float:
    """The largest distance of a stage over all rounds that both have with the same rows."""
    pairs = [(a[name], b[name]) for a, b in zip(left, right, strict=False) if a[name].shape == b[name].shape]
    return max(float(np.abs(a - b).max()) for a, b in pairs)


@pytest.mark.parametrize("preset", PAIRS)
@pytest.mark.parametrize("drafts", sorted(PROMPTS))
def test_candidates_and_paths_agree_at_every_round_and_scores_and_laws_within_the_spread_of_fp32(
    preset: str, drafts: int, load: Load
) -> None:
    """The bound of a stage is that of composites: a multiple of what moving every FP32 rounding point moves it by."""
    loaded = load(preset, backend="dflash2")
    prompt = loaded.pair.prompts[0]
    expected = reference_walks(loaded, prompt, drafts)
    moved = dict.fromkeys(("unary", "scores", "q"), 0.0)
    for repetition in range(REPETITIONS):
        with perturb.perturbed(f"{preset}/{drafts}/{repetition}"):
            other = reference_walks(loaded, prompt, drafts, PERTURBED_TOKENS)
        moved = {name: max(moved[name], furthest(other, expected, name)) for name in moved}
    assert any((walk["path"] != walk["candidates"][:, 0]).any() for walk in expected), (
        "the unary argmax walks this path"
    )
    for who, walks_of in BY.items():
        walks = walks_of(loaded, prompt, drafts)
        for name in ("candidates", "path"):
            for found, right in zip(walks, expected, strict=True):
                np.testing.assert_array_equal(found[name], right[name], err_msg=f"{who}: {name}")
        for name in moved:
            distance, bound = furthest(walks, expected, name), perturb.MULTIPLE * moved[name]
            print(f"{preset}, K = {drafts}, {who}, {name}: {distance:.1e} of {bound:.1e}")
            assert distance <= bound, f"{who}: {name} differs by {distance}, bound {bound}"
