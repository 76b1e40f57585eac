"""Norm, one projection, head norms and RoPE in front of an attention."""

from dflash_accelerated.ops.qkv.torch import Prepared, Projections, project, project_prepared

__all__ = ["Prepared", "Projections", "project", "project_prepared"]
