"""How kernels are compiled: the options of every launch, and compilation ahead of time, which needs no GPU."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}
"""What every launch passes: a sum and a product stay two roundings. Triton's default changes between releases."""

Variant = tuple[Any, dict[str, str], dict[str, Any]]
"""A kernel, the Triton type of each argument by name, and the values of those that are compile-time constants."""


def compile_ahead(variant: Variant, capability: int = 90) -> Any:
    """The kernel compiled for an NVIDIA GPU of this compute capability, ten times its number, with `OPTIONS`.

    Raises what Triton's compiler raises. Does not work under TRITON_INTERPRET, where a kernel is plain Python.
    """
    kernel, signature, constants = variant
    types = {name: "constexpr" if name in constants else signature[name] for name in kernel.arg_names}
    return triton.compile(
        ASTSource(kernel, types, constants), target=GPUTarget("cuda", capability, 32), options=OPTIONS
    )
