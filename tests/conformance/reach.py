"""Runs the vectors through the engine with one kind of kernels and prints as JSON what came out: KERNELS [ROWS].

Dispatch is watched, so that it shows which kernels the vectors reach. With ROWS, whole requests (the ops `engine.*`)
are run only if prompt and budget come to that many tokens at most.

test_kernels.py starts it in a process of its own: dispatch keeps what it has found, and Triton interprets every kernel
of a process or none.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import isfunction
from types import SimpleNamespace
from typing import Any

import pytest
from dflash_accelerated.ops import dispatch
from dflash_vectors.cases import Entry, default_folder, load_case, read_index
from dflash_vectors.plugin import Bench, VectorFailure, expect_passed

from tests.interpreting import patch_language_once


def counting(reached: Counter[str], path: str) -> SimpleNamespace:
    """What dispatch loads, with every function counted as `op.name`."""
    op = path.split(".")[-2]

    def counted(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            reached[f"{op}.{name}"] += 1
            return kernel(*arguments)

        return run

    return SimpleNamespace(
        **{name: counted(name, own) for name, own in vars(import_module(path)).items() if isfunction(own)}
    )


def is_short(entry: Entry, rows: int) -> bool:
    inputs = load_case(entry).inputs
    return len(inputs["prompt"].values) + int(inputs["max_new"].values) <= rows


def main() -> None:
    kernels, most = sys.argv[1], [int(rows) for rows in sys.argv[2:]]
    reached: Counter[str] = Counter()
    patch_language_once()
    dispatch.import_module = partial(counting, reached)  # type: ignore[assignment, attr-defined]
    bench, passed, left_out, failures = Bench(), [], [], {}
    for entry in read_index(default_folder()):
        if entry.op.name.startswith("engine.") and not all(is_short(entry, rows) for rows in most):
            left_out.append(entry.id)
            continue
        try:
            expect_passed(bench, f"python:dflash_accelerated.conformance:{kernels}", entry)
            passed.append(entry.id)
        except pytest.skip.Exception:  # an op that the engine does not declare, whatever its kernels
            pass
        except VectorFailure as failure:
            failures[entry.id] = str(failure)
    print(json.dumps({"passed": passed, "left_out": left_out, "failures": failures, "reached": reached}))


if __name__ == "__main__":
    main()
