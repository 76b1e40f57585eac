"""The processed distribution of a row of adjusted logits."""

from dflash_accelerated.ops.filters.torch import Distribution, Filtered, distribution, filtered

__all__ = ["Distribution", "Filtered", "distribution", "filtered"]
