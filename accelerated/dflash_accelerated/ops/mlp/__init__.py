"""What follows an attention in a layer: output projection, SwiGLU, and the two residual sums."""

from dflash_accelerated.ops.mlp.torch import Mlp, attention_output, gated, mlp, swiglu

__all__ = ["Mlp", "attention_output", "gated", "mlp", "swiglu"]
