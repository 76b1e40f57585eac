"""Rotary positions: tables of cosines and sines, and the rotation."""

from dflash_accelerated.ops.rope.torch import Tables, Turns, rotate, tables, turned

__all__ = ["Tables", "Turns", "rotate", "tables", "turned"]
