"""What a process that was forked from a decoding one can do."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from dflash_accelerated.native import available
from dflash_vectors.planted import Planted

FORKS = """
import multiprocessing, signal, sys
import torch
from dflash_accelerated import Engine

folder, kernels, prompt = sys.argv[1], sys.argv[2], [int(token) for token in sys.argv[3:]]
torch.set_num_threads(3)
engine = Engine.from_pretrained(f"{folder}/target", f"{folder}/draft", kernels=kernels, max_context=256)
alone = engine.generate(prompt, 40).tokens
wide = torch.ones(700, 700)
wide @ wide  # large enough for PyTorch to share out

def again(tokens):
    wide @ wide
    other = Engine.from_pretrained(f"{folder}/target", f"{folder}/draft", kernels=kernels, max_context=256)
    return engine.generate(prompt, tokens).tokens == other.generate(prompt, tokens).tokens == alone[:tokens]

with multiprocessing.get_context("fork").Pool(2, signal.alarm, (200,)) as pool:
    assert pool.map(again, [40, 23]) == [True, True]
assert engine.generate(prompt, 40).tokens == alone
assert torch.get_num_threads() == 3
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_a_forked_process_decodes_the_same_tokens(
    kernels: str, planted_pair: Callable[..., tuple[Path, Planted]]
) -> None:
    if kernels == "native" and not available():
        pytest.skip("no C compiler")
    folder, plan = planted_pair("standard")
    command = [sys.executable, "-W", "ignore", "-c", FORKS, folder, kernels, *plan.prompts[0]]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
