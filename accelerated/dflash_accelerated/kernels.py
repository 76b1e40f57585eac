"""Which implementation of the ops an engine runs."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from dflash_spec.errors import RequestError, UnsupportedError

from dflash_accelerated.arguments import shown
from dflash_accelerated.numerics import Kernels

Choice = Literal["auto", "torch", "native", "triton"]
"""What a caller may ask for; `auto` takes the fastest that runs on the device."""


def resolve_kernels(kernels: object, device: torch.device) -> Kernels:
    """The kernels that run on `device`: those asked for, or the best at hand for `auto`.

    That is Triton on CUDA; on a CPU native code, where there is a C compiler; PyTorch otherwise. On a CPU Triton runs
    in its interpreter alone, which shows that a kernel is right and is slow. Raises RequestError for kernels that do
    not run there, and where Triton would start them on another GPU.
    """
    if not isinstance(kernels, str) or kernels not in get_args(Choice):
        raise RequestError(f"kernels is {shown(kernels)}, expected one of {', '.join(get_args(Choice))}")
    if kernels == "torch":
        return "torch"
    fast: Kernels = "triton" if kernels == "triton" or (kernels == "auto" and device.type == "cuda") else "native"
    missing = _without_triton(device) if fast == "triton" else _without_native(device)
    if missing and kernels != "auto":
        raise RequestError(f"kernels is {kernels!r} on device {device}, expected {missing}")
    if missing:
        return "torch"
    if device.type == "cuda" and device.index is not None and device.index != (current := torch.cuda.current_device()):
        raise RequestError(
            f"device is {device}, expected cuda:{current}, the process's own, where Triton starts kernels: "
            "torch.cuda.set_device chooses it"
        )
    return fast


def _without_triton(device: torch.device) -> str:
    """What Triton wants and does not find, if there is such a thing."""
    if find_spec("triton") is None:
        return "the triton package, which is not installed"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "a CUDA device, or TRITON_INTERPRET=1 in the environment, for Triton's slow interpreter"
    return ""


def _without_native(device: torch.device) -> str:
    """What native kernels want and do not find, if there is such a thing."""
    if device.type != "cpu":
        return "device cpu: native kernels are C code"
    from dflash_accelerated import native

    try:
        native.kernels()  # which compiles them
    except UnsupportedError as error:
        return f"native kernels that can be built: {error}"
    return ""
