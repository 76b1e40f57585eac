"""A draft whose heads, columns and vocabulary are split over ranks."""

from dflash_accelerated.ops.shards.torch import Context, Head, attend, context_kv, head, heads_of, output

__all__ = ["Context", "Head", "attend", "context_kv", "head", "heads_of", "output"]
