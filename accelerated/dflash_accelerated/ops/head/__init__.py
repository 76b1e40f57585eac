"""Embedding rows, final norm, logits and argmax."""

from dflash_accelerated.ops.head.torch import argmax, embed, final_rows, logits

__all__ = ["argmax", "embed", "final_rows", "logits"]
