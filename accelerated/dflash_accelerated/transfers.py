"""Numbers of the host on their way to a device.

A copy from ordinary memory has the host wait for all that it has queued on a GPU; one from pinned memory is queued too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def sent(host: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host, on `device`; nobody waits."""
    if device.type == "cpu":
        return host
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


def listed(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers, in as many axes as they are nested, on `device`; nobody waits."""
    return sent(torch.tensor(values, dtype=dtype, device="cpu"), device)
