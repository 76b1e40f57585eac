"""Memory of a fresh process that loads a pair and decodes with it.

Run as a module it is that process: it prints one JSON object. Only there does the peak belong to the engine alone.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from dflash_spec.errors import UnsupportedError

from dflash_vectors.bench.figures import Memory
from dflash_vectors.bench.pairs import Pair, make

CONTEXT = 256
"""Tokens after which a request is dropped for a new one, so that the context stays bounded."""
SAMPLES = 10
PATIENCE = 3600


def measured(pair: Pair, rounds: int, kernels: str, threads: int, device: str) -> Memory:
    """Peak and growth of `rounds` rounds, in the memory of `device`.

    Raises UnsupportedError where the process fails or there is no /proc.
    """
    if not Path("/proc/self/status").exists():
        raise UnsupportedError("memory is measured through /proc/self/status, which this system does not have")
    with tempfile.TemporaryDirectory() as folder:
        tiny = make(Path(folder) / "pair", pair.backend, "tiny")
        asked = {
            "target": str(pair.target), "draft": str(pair.draft), "prompt": pair.prompt(64), "rounds": rounds,
            "kernels": kernels, "threads": threads, "device": device, "tiny": [str(tiny.target), str(tiny.draft)],
        }  # fmt: skip
        command = [sys.executable, "-m", "dflash_vectors.bench.memory", json.dumps(asked)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        raise UnsupportedError(f"the process whose memory is measured ended with {done.returncode}: {last[0]}")
    told = json.loads(done.stdout)
    return Memory(pair.backend, told["peak"], told["planned"], [tuple(each) for each in told["held"]])


def status(field: str) -> int:
    """Bytes of a field of /proc/self/status: VmRSS now, VmHWM at its highest."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise UnsupportedError(f"/proc/self/status has no {field}")


def held(device: str) -> int:
    """Resident bytes, once the allocator has given back what it keeps for later; of a GPU those that tensors have."""
    if device != "cpu":
        return torch.cuda.memory_allocated(device)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return status("VmRSS")


def peak(device: str) -> int:
    """The most that there ever was of the same."""
    return status("VmHWM") if device == "cpu" else torch.cuda.max_memory_allocated(device)


def child(asked: dict[str, Any]) -> dict[str, Any]:
    """Load the pair, decode so many rounds of one request after another, and tell what that took.

    What Python and the libraries take for themselves is in the process before: it has decoded with a tiny pair.
    """
    from dflash_accelerated import Engine

    torch.set_num_threads(asked["threads"])
    device = asked["device"]
    where = {"dtype": torch.bfloat16, "max_batch": 1, "kernels": asked["kernels"], "device": device}
    first = Engine.from_pretrained(*asked["tiny"], **where)
    first.generate(range(1, 9), 16)
    del first
    baseline = held(device)
    engine = Engine.from_pretrained(asked["target"], asked["draft"], max_context=4 * CONTEXT, **where)
    request = engine.request(asked["prompt"], CONTEXT, stop_ids=[])
    ticket, samples = engine.submit(request), [(0, held(device))]
    for number in range(1, asked["rounds"] + 1):
        if engine.step()[ticket].finish_reason:
            ticket = engine.submit(request)
        if number % max(1, asked["rounds"] // SAMPLES) == 0:
            samples.append((number, held(device)))
    return {"peak": peak(device) - baseline, "planned": engine.memory()._asdict(), "held": samples}


if __name__ == "__main__":
    print(json.dumps(child(json.loads(sys.argv[1]))))
