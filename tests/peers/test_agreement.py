"""Reference, engine and the authors' package on planted FP32 pairs: the same tokens, counts and hidden rows.

The pairs have local windows shorter than the context and drafts that are wrong at planned slots, so that every
accepted count occurs. What they must say is known from the plan, before anything runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from dflash_reference import engine as reference
from dflash_reference.request import Settings
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from dflash_vectors import perturb
from dflash_vectors.peers import modules, scripted

from .conftest import Loaded

pytestmark = pytest.mark.peers

Load = Callable[..., Loaded]
NEW_TOKENS = 224
LEAST = 5
PAIRS = ("standard", "tied")
PROMPTS = {1: (0,), 4: (0, 1), 15: (0, 1, 2, 3)}
"""Which prompts of a pair reach every accepted count of a K at least LEAST times."""
PERTURBED_TOKENS = 104
"""Three periods of the sequence, after which every stage sees the same kinds of rows again."""
REPETITIONS = 4
"""Fewer than the bounds of vectors rest on, which makes these smaller: the furthest of fewer runs is no further."""


class Answer(NamedTuple):
    """New tokens, and the accepted count of each round."""

    tokens: list[int]
    accepted: list[int]


def by_reference(loaded: Loaded, prompt: list[int], drafts: int) -> Answer:
    pair = loaded.pair
    settings = Settings(drafts, NEW_TOKENS, (pair.words.decoy,), pair.public)
    done = reference.generate(*loaded.reference, prompt, settings, load_profile("zlab"))
    return Answer(list(done.tokens), done.accepted)


def by_engine(loaded: Loaded, prompt: list[int], drafts: int) -> Answer:
    done = loaded.engine(drafts).generate(prompt, NEW_TOKENS)
    return Answer(list(done.tokens), list(done.accepted))


def by_authors(loaded: Loaded, prompt: list[int], drafts: int) -> Answer:
    stops = [loaded.pair.words.decoy]
    run = scripted.generate(loaded.authors, loaded.transformers, prompt, NEW_TOKENS, stops, drafts)
    return Answer(run.tokens[len(prompt) :], [round_.accepted for round_ in run.rounds])


IMPLEMENTATIONS = {"reference": by_reference, "engine": by_engine, "authors": by_authors}


@pytest.mark.parametrize("preset", PAIRS)
@pytest.mark.parametrize("drafts", sorted(PROMPTS))
def test_tokens_and_accepted_counts_are_those_of_the_plan(preset: str, drafts: int, load: Load) -> None:
    loaded = load(preset)
    pair, counts = loaded.pair, Counter[int]()
    assert max(pair.options.draft_windows) < len(pair.prompts[0])
    for number in PROMPTS[drafts]:
        prompt = pair.prompts[number]
        planned = Answer(pair.continuation(prompt, NEW_TOKENS), pair.expected_accepted(prompt, drafts, NEW_TOKENS))
        for name, generate in IMPLEMENTATIONS.items():
            assert generate(loaded, prompt, drafts) == planned, f"{name} on prompt {number}"
        counts.update(planned.accepted)
    print(f"\n{preset}, K = {drafts}, accepted counts: " + ", ".join(f"{n}: {counts[n]}" for n in range(drafts + 1)))
    assert min(counts[count] for count in range(drafts + 1)) >= LEAST


@pytest.mark.parametrize("preset", PAIRS)
def test_tokens_are_those_of_plain_decoding_by_transformers(preset: str, load: Load) -> None:
    loaded = load(preset)
    for prompt in loaded.pair.prompts:
        assert loaded.plain(prompt, NEW_TOKENS) == loaded.pair.continuation(prompt, NEW_TOKENS)


@pytest.mark.parametrize("seed", range(3))
def test_small_sharded_pairs_of_any_seed_keep_their_plan(seed: int, load: Load) -> None:
    loaded = load("small", shards=3, seed=seed)
    prompt = loaded.pair.prompts[0]
    planned = Answer(loaded.pair.continuation(prompt, NEW_TOKENS), loaded.pair.expected_accepted(prompt, 4, NEW_TOKENS))
    for name, generate in IMPLEMENTATIONS.items():
        assert generate(loaded, prompt, 4) == planned, name


Stages = list[dict[str, Array]]
"""The stages of each round by name: features, c, layer.0 …, hidden."""


def reference_stages(loaded: Loaded, prompt: list[int], drafts: int, count: int) -> Stages:
    rounds: list[reference.Round] = []
    settings = Settings(drafts, count, (loaded.pair.words.decoy,), loaded.pair.public)
    reference.generate(*loaded.reference, prompt, settings, load_profile("zlab"), rounds.append)
    stages = []
    for round_ in rounds:
        assert round_.proposal is not None
        layers = {f"layer.{index}": rows for index, rows in enumerate(round_.proposal.layers)}
        stages.append({"features": round_.features, "c": round_.c, **layers, "hidden": round_.proposal.hidden})
    return stages


def engine_stages(loaded: Loaded, prompt: list[int], drafts: int, names: Iterable[str]) -> Stages:
    stages: Stages = []
    loaded.engine(drafts).generate(
        prompt, NEW_TOKENS,
        observer=lambda trace: stages.append({name: trace.stages[name].numpy() for name in names}),
    )  # fmt: skip
    return stages


def authors_stages(loaded: Loaded, prompt: list[int], drafts: int) -> Stages:
    """What passes through the modules of the package's draft, call by call; a call is a round."""
    model, features = loaded.authors, list[torch.Tensor]()
    hook = model.fc.register_forward_pre_hook(lambda _module, arguments: features.append(arguments[0]))
    layers = {f"layer.{index}": layer for index, layer in enumerate(model.layers)}
    with modules.capture(c=model.hidden_norm, hidden=model.norm, **layers) as seen:
        by_authors(loaded, prompt, drafts)
    hook.remove()
    stages: Stages = []
    for call, tapped in enumerate(features):
        rows = {name: modules.array(calls[call]) for name, calls in seen.items()}
        stages.append({**rows, "features": modules.array(tapped), "hidden": rows["hidden"][1:]})
    return stages


def furthest(left: Stages, right: Stages, name: str) -> float:
    """The largest distance of a stage over all rounds that both have."""
    return max(float(np.abs(a[name] - b[name]).max()) for a, b in zip(left, right, strict=False))


@pytest.mark.parametrize("preset", PAIRS)
def test_every_hidden_row_of_every_round_agrees_within_the_spread_of_fp32(preset: str, load: Load) -> None:
    """The bound of a stage is that of composites: a multiple of what moving every FP32 rounding point moves it by."""
    loaded, drafts = load(preset), 15
    prompt = loaded.pair.prompts[0]
    expected = reference_stages(loaded, prompt, drafts, NEW_TOKENS)
    names = list(expected[0])
    moved = dict.fromkeys(names, 0.0)
    for repetition in range(REPETITIONS):
        with perturb.perturbed(f"{preset}/{repetition}"):
            other = reference_stages(loaded, prompt, drafts, PERTURBED_TOKENS)
        moved = {name: max(moved[name], furthest(other[:-1], expected, name)) for name in names}
    found = {
        "engine": engine_stages(loaded, prompt, drafts, names), "authors": authors_stages(loaded, prompt, drafts)
    }  # fmt: skip
    for who, stages in found.items():
        assert len(stages) == len(expected)
        for name in names:
            distance, bound = furthest(stages, expected, name), perturb.MULTIPLE * moved[name]
            print(f"{preset} {who} {name}: {distance:.1e} of {bound:.1e}")
            assert all(a[name].shape == b[name].shape for a, b in zip(stages, expected, strict=True)), name
            assert distance <= bound, f"{who}: {name} differs by {distance}, bound {bound}"
