"""Context keys and values of all layers, from one projection into the buffers that the layers read."""

from dflash_accelerated.ops.materialize.torch import Keys, Raw, keys, project, store, values, write

__all__ = ["Keys", "Raw", "keys", "project", "store", "values", "write"]
