"""Embedding rows, final norm, logits, the best id and the best candidates."""

from dflash_accelerated.ops.head.torch import (
    Best,
    Candidates,
    best,
    chosen,
    embed,
    final_rows,
    indexed_argmax,
    logits,
    top,
)

__all__ = ["Best", "Candidates", "best", "chosen", "embed", "final_rows", "indexed_argmax", "logits", "top"]
