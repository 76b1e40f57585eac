"""Compiles for a GPU of compute capability 9.0 all that an engine launches there, and prints as JSON what came out.

A launch is compiled as that GPU's would be: with the same types, alignments and options, and integers that are 1 as
constants. test_ahead_of_time.py starts it in a process of its own: under TRITON_INTERPRET there is nothing to compile.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from tests.accelerated import pretended

GPU = GPUTarget("cuda", 90, 32)


class Compiled:
    """What was compiled so far, each launch once."""

    def __init__(self) -> None:
        self.kernels: dict[str, dict[str, Any]] = {}

    def add(self, kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A launch, in Triton's own words for it."""
        backend, named = make_backend(GPU), named | {"debug": False, "instrumentation_mode": ""}
        bound, kinds, _ = create_function_from_signature(kernel.signature, kernel.params, backend)(*arguments, **named)
        options, types, constants, attributes = kernel._pack_args(backend, named, bound, kinds, None)
        key = f"{kernel.__name__} {kinds} {options}"
        if key not in self.kernels:
            source = ASTSource(kernel, types, constants, attributes)
            made = triton.compile(source, target=GPU, options=options.__dict__)
            self.kernels[key] = {"name": kernel.__name__, "types": list(types.values())} | _told(made)


def _told(made: Any) -> dict[str, Any]:
    """What a kernel takes of a multiprocessor, and how it reads and multiplies."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True)
    registers, stack = map(int, re.findall(r"(?:REG|STACK):(\d+)", usage.stdout + usage.stderr))
    code = made.asm["ptx"]
    return {
        "shared": made.metadata.shared, "registers": registers, "stack": stack,
        "fused": len(re.findall(r"fma\.rn\.f32", code)),
        "tensor_cores": len(re.findall(r"wgmma\.mma_async|mma\.sync", code)),
        "wide_reads": len(re.findall(r"ld\.global\S*\.v[24]\.|cp\.async\.cg\S* .* 0x10,", code)),
    }  # fmt: skip


def main(profile: str, dtype: str, second: bool, temperature: float) -> None:
    """Of requests at that temperature and of greedy ones."""
    compiled = Compiled()
    with pretended.device(compiled.add):
        engine = pretended.load(profile, getattr(torch, dtype), second)
        for requests, warmth in ((1, temperature), (3, temperature), (3, 0.0)):
            pretended.play(engine, requests, 3, temperature=warmth)
        engine.decode_plain([3, 1, 4], 3, stop_ids=[])
    print(json.dumps(list(compiled.kernels.values())))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
