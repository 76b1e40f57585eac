"""Kernels against PyTorch, in Triton's interpreter. The test beside this folder runs it in a process of its own.

Triton decides whether it interprets when it is imported and when a kernel is defined, so that one process cannot do
both. Without TRITON_INTERPRET=1 nothing here is collected.
"""

from __future__ import annotations

import pytest
import torch
from dflash_accelerated.numerics import Numerics
from dflash_spec.registry import load_profile
from triton import knobs

from tests.interpreting import patch_language_once

collect_ignore_glob = [] if knobs.runtime.interpret else ["test_*.py"]

HELD = {
    "ninfer": Numerics.of(load_profile("ninfer")),
    "zlab-F32": Numerics.of(load_profile("zlab"), torch.float32),
    "zlab-BF16": Numerics.of(load_profile("zlab"), torch.bfloat16),
}

if knobs.runtime.interpret:
    patch_language_once()


@pytest.fixture(params=list(HELD))
def numerics(request: pytest.FixtureRequest) -> Numerics:
    """Each of the three combinations of dtypes; tests call both files of an op themselves."""
    return HELD[request.param]
