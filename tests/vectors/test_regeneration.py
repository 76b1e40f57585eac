"""Regeneration is byte-identical: again, on other vector units, and to what is committed."""

import json
import os
import subprocess
import sys

import numpy as np
from dflash_vectors.cases import default_folder
from dflash_vectors.index import build_all, differences, read_ledger
from dflash_vectors.suite import all_cases
from numpy._core import _multiarray_umath as umath

GENERATE = """
import sys
from dflash_vectors.index import build_all, index_bytes
from dflash_vectors.suite import all_cases

sys.stdout.buffer.write(index_bytes(build_all(all_cases())))
"""
TRANSCENDENTALS = """
import hashlib, json, sys
import numpy as np

found = {}
for dtype in (np.float32, np.float64):
    x = np.linspace(0.001, 9, 10_007).astype(dtype)
    for name in ("exp", "log", "sin", "cos", "tanh", "exp2"):
        found[f"{name} {dtype.__name__}"] = hashlib.sha256(getattr(np, name)(x).tobytes()).hexdigest()
json.dump(found, sys.stdout)
"""


def python(code, **environment):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, env={**os.environ, **environment}, check=False
    )
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout


def committed():
    """The committed index. It holds the sha256 of every file, so equal indexes are equal sets."""
    return (default_folder() / "index.json").read_bytes()


def test_the_committed_set_is_what_is_generated_now():
    assert differences(default_folder(), build_all(all_cases())) == []


def test_another_process_generates_the_same_bytes():
    assert python(GENERATE) == committed()


def test_a_numpy_without_vector_units_generates_the_same_bytes():
    units = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
    assert units, "this machine has no vector units that NumPy could do without: the test would prove nothing"
    without = {"NPY_DISABLE_CPU_FEATURES": " ".join(units)}
    assert python(TRANSCENDENTALS, **without) != python(TRANSCENDENTALS), "the vector units were not switched off"
    assert python(GENERATE, **without) == committed()


def test_every_committed_vector_is_frozen_in_the_ledger():
    entries = json.loads(committed())["cases"]
    ledger = read_ledger(default_folder() / "ledger.json")
    assert {id_: ledger.get(id_) for id_ in entries} == {id_: entry["sha256"] for id_, entry in entries.items()}


def test_float64_arithmetic_is_ieee_here():
    # The whole construction rests on this: one rounding for each operation, no fused or extended intermediate.
    x = np.array([1 + 2.0**-30])
    assert (x * x - (1 + 2.0**-29)).tolist() == [0.0]
