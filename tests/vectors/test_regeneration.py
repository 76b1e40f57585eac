"""Regeneration is byte-identical: again, on other vector units, and to what is committed."""

import json
import os
import subprocess
import sys
from importlib import import_module

import numpy as np
from dflash_vectors.cases import default_folder
from dflash_vectors.index import build_all, differences, read_ledger
from dflash_vectors.suite import all_cases

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

UNROUNDED = """
import hashlib, sys
import numpy as np
from dflash_reference import elementary, num
from dflash_vectors.build import judge
from dflash_vectors.inputs import normal_like
from dflash_vectors.run import execute, input_tensors, load_profile, numbers
from dflash_vectors.suite import all_cases

x = normal_like("unrounded", (50, 401), 3.0, "F32")
found = [elementary.exp(x), elementary.log(np.abs(x)), *elementary.sin_cos(x * 1000), num.contract(x, x)]
for case in all_cases(chapter="DRAFT"):
    if case.op != "draft.block":
        profile, inputs = load_profile(case.profile), numbers(input_tensors(case)[0])
        found += judge(case, inputs, execute(case.op, inputs, profile), profile)[0].values()
digest = hashlib.sha256()
for values in found:
    assert values.dtype == np.float64
    digest.update(values.tobytes())
sys.stdout.write(digest.hexdigest())
"""
"""Rounding to a vector's dtypes hides most differences of a last float64 bit; here nothing is rounded yet."""


def switched_off():
    """An environment in which NumPy does without the vector units that it has here."""
    umath = import_module("numpy._core._multiarray_umath")
    units = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
    assert units, "this machine has no vector units that NumPy could do without: the test would prove nothing"
    return {"NPY_DISABLE_CPU_FEATURES": " ".join(units)}


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


def test_numpys_own_functions_change_with_the_vector_units():
    assert python(TRANSCENDENTALS, **switched_off()) != python(TRANSCENDENTALS), "the units were not switched off"


def test_another_process_without_vector_units_generates_the_same_bytes():
    assert python(GENERATE, **switched_off()) == committed()


def test_values_and_bounds_are_the_same_bits_before_any_rounding():
    assert python(UNROUNDED, **switched_off()) == python(UNROUNDED)


def test_every_committed_vector_is_frozen_in_the_ledger():
    entries = json.loads(committed())["cases"]
    ledger = read_ledger(default_folder() / "ledger.json")
    assert {id_: ledger.get(id_) for id_ in entries} == {id_: entry["sha256"] for id_, entry in entries.items()}


def test_float64_arithmetic_is_ieee_here():
    # The whole construction rests on this: one rounding for each operation, no fused or extended intermediate.
    x = np.array([1 + 2.0**-30])
    assert (x * x - (1 + 2.0**-29)).tolist() == [0.0]
