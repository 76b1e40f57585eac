"""The draft's context: common rows from target features, and each layer's keys and values from them."""

from dflash_accelerated.ops.context_kv.torch import Feature, Keys, Values, feature, keys, values

__all__ = ["Feature", "Keys", "Values", "feature", "keys", "values"]
