"""Norm, one projection, head norms and RoPE in front of an attention."""

from dflash_accelerated.ops.qkv.torch import Prepared, Projections, prepared_staged, project, project_prepared

__all__ = ["Prepared", "Projections", "prepared_staged", "project", "project_prepared"]
