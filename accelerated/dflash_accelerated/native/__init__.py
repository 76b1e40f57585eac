"""CPU kernels in C, compiled when they are first needed, by the machine's own compiler and for its own CPU."""

from dflash_accelerated.native.calls import (
    CODES,
    Attention,
    Forward,
    Intake,
    Layer,
    Packed,
    Pass,
    available,
    empty,
    kernels,
    rows_of,
)

__all__ = [
    "CODES",
    "Attention",
    "Forward",
    "Intake",
    "Layer",
    "Packed",
    "Pass",
    "available",
    "empty",
    "kernels",
    "rows_of",
]
