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

BUSY = """
import os, signal, sys, threading, time
import torch
from dflash_accelerated import Engine

folder, kernels, prompt = sys.argv[1], sys.argv[2], [int(token) for token in sys.argv[3:]]
torch.set_num_threads(1)
engine = Engine.from_pretrained(f"{folder}/target", f"{folder}/draft", kernels=kernels, max_context=256)
alone, over = engine.generate(prompt, 20).tokens, threading.Event()

def decode():
    while not over.is_set():
        engine.generate(prompt, 20)

busy = threading.Thread(target=decode, daemon=True)
busy.start()
for _ in range(8):
    time.sleep(0.02)
    child = os.fork()
    if not child:
        signal.alarm(100)
        os._exit(engine.generate(prompt, 20).tokens != alone)
    assert os.waitpid(child, 0)[1] == 0
over.set()
busy.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("kernels", ["torch", "native"])
@pytest.mark.parametrize("program", [FORKS, BUSY], ids=["after", "meanwhile"])
def test_a_forked_process_decodes_the_same_tokens(
    program: str, kernels: str, planted_pair: Callable[..., tuple[Path, Planted]]
) -> None:
    """One that is forked after its parent has decoded, or while another thread of it does."""
    if kernels == "native" and not available():
        pytest.skip("no C compiler")
    folder, plan = planted_pair("standard")
    command = [sys.executable, "-W", "ignore", "-c", program, folder, kernels, *plan.prompts[0]]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
