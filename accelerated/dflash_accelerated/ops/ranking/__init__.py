"""The largest of several scores in an order that leaves nothing open."""

from dflash_accelerated.ops.ranking.torch import ranked

__all__ = ["ranked"]
