"""How numbers are held and rounded: one object that every op of an engine shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile
from torch import Tensor

from dflash_accelerated.ops.rounding import narrow

Kernels = Literal["torch", "native", "triton"]
"""Which implementation of an op runs, where it has several: files beside each other in the op's folder."""

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


@dataclass(frozen=True)
class Numerics:
    """Where values are rounded, in four dtypes.

    `act` holds activations, keys and logits; `value` holds stored context values. `compute` is what weights are held
    in and what products, norm weights, RoPE and residual sums are computed in; each stage's output is then rounded to
    `act` once. Softmax, means and sums of a norm are FP32 always.

    | profile, dtype | act | compute | value | sense |
    |---|---|---|---|---|
    | ninfer, BF16 | BF16 | FP32 | FP16 | rounds exactly where DRAFT-012, CTX-003, CTX-007 and HEAD-004 say |
    | zlab, FP32 | FP32 | FP32 | FP32 | the profile's vectors |
    | zlab, BF16 | BF16 | BF16 | BF16 | what PyTorch modules in BF16 do: every operation rounds its result |
    """

    profile: Profile
    act: torch.dtype
    compute: torch.dtype
    value: torch.dtype
    kernels: Kernels = "torch"

    @staticmethod
    def of(profile: Profile, dtype: torch.dtype | None = None, kernels: Kernels = "torch") -> Numerics:
        """The numerics of `profile` in `dtype`; None takes the profile's own. Raises RequestError."""
        own, *others = Numerics.dtypes(profile)
        if dtype is None or dtype == own:
            return Numerics(profile, own, torch.float32, DTYPES[profile.dtypes["CTX_V"]], kernels)
        if dtype in others:
            return Numerics(profile, dtype, dtype, dtype, kernels)
        allowed = " or ".join(map(str, (own, *others)))
        raise RequestError(f"dtype {dtype} in profile {profile.name}, expected {allowed}")

    @staticmethod
    def dtypes(profile: Profile) -> tuple[torch.dtype, ...]:
        """What `profile` can be computed in: its own dtype, and BF16 where that is FP32."""
        own = DTYPES[profile.dtypes["ACT"]]
        return (own, torch.bfloat16) if own == torch.float32 else (own,)

    def weight(self, values: Tensor) -> Tensor:
        """A weight as products read it: represented in `act`, held in `compute`."""
        return narrow(narrow(values, self.act), self.compute)

    def activation(self, values: Tensor) -> Tensor:
        """A stage's output: rounded to `act`, once."""
        return narrow(values, self.act)

    def stored_value(self, values: Tensor) -> Tensor:
        """Context values as they are stored, from values already in `act`.

        In profile ninfer this is the second of two roundings, BF16 and then FP16, so a BF16 65536 becomes infinity.

        Clause: CTX-007. Source: Infernix include/infernix/ops/kv_cache_append.h.
        """
        return narrow(values, self.value)
