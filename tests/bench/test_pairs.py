"""The pairs that are measured accept what their texts say."""

from pathlib import Path

import pytest
import torch
from dflash_vectors.bench import ours, pairs


@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
def test_every_round_of_the_measured_pair_accepts_what_its_text_says(backend: str, tmp_path: Path) -> None:
    pair = pairs.make(tmp_path, backend)
    engine = ours.load(pair, kernels="auto", device=torch.device("cpu"), chunk=None, longest=340)
    levels = {str(level): [level] for level in pairs.LEVELS} | {"mixed": [gap - 1 for gap in pairs.MIXED]}
    assert pair.texts.keys() == levels.keys()
    for text, wanted in levels.items():
        answer = engine.generate(pair.prompt(243, text), 49, stop_ids=[])
        assert list(answer.accepted) == wanted * (len(answer.accepted) // len(wanted)), text
