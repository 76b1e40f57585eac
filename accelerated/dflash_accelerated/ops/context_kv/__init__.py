"""The draft's context rows, from target features."""

from dflash_accelerated.ops.context_kv.torch import Feature, feature

__all__ = ["Feature", "feature"]
