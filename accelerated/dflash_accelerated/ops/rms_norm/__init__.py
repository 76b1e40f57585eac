"""RMS norm over the last axis: layer norms, the context norm, head norms and final norms."""

from dflash_accelerated.ops.rms_norm.torch import normed, rms_norm

__all__ = ["normed", "rms_norm"]
