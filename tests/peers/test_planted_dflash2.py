"""A planted DFlash2 draft in the authors' package: whole, and right only by its selector and its convolutions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from dflash.model import CandidateSelector, DFlash2DraftModel
from dflash_vectors.peers import scripted

from .conftest import Loaded

pytestmark = pytest.mark.peers

Load = Callable[..., Loaded]
NEW_TOKENS = 48


def accepted(loaded: Loaded, draft: Any, prompt: list[int]) -> list[int]:
    """Accepted counts of the package's greedy rounds, whose tokens must be the plan's whatever the draft says."""
    run = scripted.generate(draft, loaded.transformers, prompt, NEW_TOKENS)
    assert run.tokens[len(prompt) :] == loaded.pair.continuation(prompt, NEW_TOKENS)
    return [round_.accepted for round_ in run.rounds]


@pytest.mark.parametrize("preset", ["standard", "tied", "small"])
def test_the_authors_loader_takes_a_written_folder_whole(preset: str, load: Load) -> None:
    loaded = load(preset, backend="dflash2")
    draft, told = DFlash2DraftModel.from_pretrained(loaded.folder / "draft", output_loading_info=True)
    assert not any(told.values()), told
    for name in ("predecessor_codebook", "successor_codebook"):
        held = getattr(draft.candidate_selector, name).weight.detach().double().numpy()
        assert (held == loaded.pair.draft[f"candidate_selector.{name}"]).all()


@pytest.mark.parametrize("preset", ["standard", "tied"])
def test_the_walk_parts_from_the_unary_argmax_for_better_and_for_worse(preset: str, load: Load) -> None:
    loaded = load(preset, backend="dflash2")
    pair, parted = loaded.pair, Counter[str]()
    true = CandidateSelector.select

    def watched(self: Any, hidden: Any, logits: Any, anchor: Any, temperature: float) -> Any:
        path, *rest = true(self, hidden, logits, anchor, temperature)
        before = int(anchor)
        for unary, chosen in zip(logits[0].argmax(-1).tolist(), path[0].tolist(), strict=True):
            right = pair.expected_next(before)
            parted["rescued"] += unary != right == chosen
            parted["misled"] += chosen != right == unary
            if chosen != right:
                break
            before = chosen
        return path, *rest

    with mock.patch.object(CandidateSelector, "select", watched):
        for prompt in pair.prompts:
            accepted(loaded, loaded.authors, prompt)
    print(f"\n{preset}: {dict(parted)}")
    assert parted["rescued"] >= 20
    assert parted["misled"] >= 5


@pytest.mark.parametrize("without", ["selector", "convolution", "predecessor", "nothing"])
def test_the_plan_needs_both_of_what_dflash2_adds(without: str, load: Load) -> None:
    loaded = load("standard", backend="dflash2")
    prompt = loaded.pair.prompts[2]
    draft: Any = DFlash2DraftModel.from_pretrained(loaded.folder / "draft")
    with torch.no_grad():
        if without == "selector":
            draft.candidate_selector.successor_codebook.weight.zero_()
        elif without == "predecessor":
            table = draft.candidate_selector.predecessor_codebook.weight
            table[:] = table[loaded.pair.words.decoy].clone()
        elif without == "convolution":
            for layer in draft.layers:
                layer.attention_conv = layer.mlp_conv = None
    planned = loaded.pair.expected_accepted(prompt, loaded.pair.options.drafts, NEW_TOKENS)
    assert (accepted(loaded, draft, prompt)[:3] == planned[:3]) is (without == "nothing")
