"""RMS norm over the last axis: layer norms, the context norm, head norms and final norms."""

from dflash_accelerated.ops.rms_norm.torch import rms_norm

__all__ = ["rms_norm"]
