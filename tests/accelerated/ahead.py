"""Compiles the kernels of the ops named as arguments and prints as JSON what came out.

test_ahead_of_time.py starts it in a process of its own: under TRITON_INTERPRET there is nothing to compile.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path

from dflash_accelerated.ops.compiling import compile_ahead


def launched(path: Path) -> set[str]:
    """The kernels that a file starts: what is called as `name[grid](...)`."""
    calls = [node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    return {call.value.id for call in calls if isinstance(call, ast.Subscript) and isinstance(call.value, ast.Name)}


def main() -> None:
    made = {}
    for op in sys.argv[1:]:
        module = importlib.import_module(f"dflash_accelerated.ops.{op}.triton")
        names, fused = set(), 0
        for variant in module.variants():
            compiled = compile_ahead(variant)
            names.add(variant[0].__name__)
            fused += compiled.asm["ptx"].count("fma.rn.f32")
            assert len(compiled.asm["cubin"]) > 0
        made[op] = {"launched": sorted(launched(Path(str(module.__file__)))), "compiled": sorted(names), "fused": fused}
    print(json.dumps(made))


if __name__ == "__main__":
    main()
