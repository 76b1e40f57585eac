"""Rotary positions: tables of cosines and sines, and the rotation."""

from dflash_accelerated.ops.rope.torch import Tables, rotate, tables

__all__ = ["Tables", "rotate", "tables"]
