"""Embedding rows, final norm, logits, argmax and the best candidates."""

from dflash_accelerated.ops.head.torch import Candidates, argmax, embed, final_rows, indexed_argmax, logits, top

__all__ = ["Candidates", "argmax", "embed", "final_rows", "indexed_argmax", "logits", "top"]
