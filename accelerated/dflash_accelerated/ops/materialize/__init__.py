"""Context keys and values of several layers from one projection."""

from dflash_accelerated.ops.materialize.torch import ContextWeights, keys, values

__all__ = ["ContextWeights", "keys", "values"]
