"""Norm, projections, head norms and RoPE in front of an attention."""

from dflash_accelerated.ops.qkv.torch import Projections, project

__all__ = ["Projections", "project"]
