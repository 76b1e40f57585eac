"""What was measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "triton", "transformers", "dflash", "dflash-oracle")


def described(threads: int, device: torch.device, kernels: str) -> dict[str, Any]:
    """The processor, what else it has to do, and the versions of what ran on it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "processor": name, "cores": os.cpu_count(), "threads": threads, "device": str(device), "kernels": kernels,
        "load": round(os.getloadavg()[0], 2), "python": platform.python_version(),
        "packages": {package: found for package in PACKAGES if (found := _version(package))},
        "bf16_products": bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    }  # fmt: skip


def several(count: int, what: str) -> str:
    """A number of things, in words."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def processor() -> str:
    """The CPU's name, as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
