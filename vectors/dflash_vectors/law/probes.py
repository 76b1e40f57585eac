"""Requests that faults are tried on: quick, and between them with everything that a fault can touch."""

from __future__ import annotations

from dflash_vectors.law.configs import Config

PROBES = (
    Config("ninfer-greedy", 5, 7, "none", "moving mask", "-0.5", "last", 9, 2),
    Config("ninfer-greedy", 3, 5, "all three", "both", "0", "none", 60, 40),
    Config("ninfer-greedy", 1, 11, "none", "frequency", "0", "none", 60, 40),
    Config("ninfer-greedy", 3, 23, "top-k", "presence", "0", "none", 60, 60),
    Config("ninfer-greedy", 2, 7, "none", "negative", "0", "two", 40, 40),
    Config("ninfer-greedy", 2, 3, "none", "none", "0", "none", 40, 40),
    Config("zlab-greedy", 3, 6, "top-p", "none", "0", "none", 60, 40),
    Config("zlab-greedy", 1, 23, "none", "mask", "0", "none", 40, 40),
    Config("zlab-2026-04-greedy", 3, 6, "none", "mask", "2^-18", "first", 4, 2),
    Config("zlab-2026-04-greedy", 2, 5, "none", "none", "2^-19", "none", 6, 3),
    Config("ninfer-dflash", 3, 5, "none", "frequency", "1.3", "none", 3, 2),
    Config("ninfer-dflash", 2, 7, "top-k min-p", "none", "0.7", "two", 9, 1),
    Config("ninfer-dflash", 5, 6, "top-p", "moving mask", "1", "last", 6, 1),
    Config("ninfer-dflash", 1, 23, "none", "presence", "2.5", "first", 2, 1),
    Config("ninfer-dflash", 3, 11, "min-p top-p", "both", "1", "none", 3, 1),
    Config("ninfer-dflash", 2, 3, "none", "all", "0.1", "ending", 3, 3),
    Config("ninfer-dflash", 2, 5, "top-p", "mask", "2^-18", "none", 4, 2),
    Config("ninfer-dflash", 1, 11, "none", "none", "2^-8", "none", 2, 1),
    Config("ninfer-dflash", 2, 3, "none", "none", "0.1", "none", 3, 2),
    Config("ninfer-dflash", 1, 23, "all three", "mask", "2.5", "none", 9, 1),
    Config("ninfer-dflash2", 2, 5, "none", "frequency", "1.3", "none", 3, 2),
    Config("ninfer-dflash2", 2, 7, "top-k min-p", "none", "0.7", "two", 9, 1),
    Config("ninfer-dflash2", 3, 6, "top-k top-p", "moving mask", "1", "last", 6, 1),
    Config("ninfer-dflash2", 1, 11, "none", "negative", "2.5", "first", 2, 1),
    Config("ninfer-dflash2", 3, 3, "none", "all", "0.1", "ending", 3, 2),
    Config("ninfer-dflash2", 2, 3, "none", "mask", "2^-8", "none", 2, 2),
    Config("zlab-dflash", 2, 5, "none", "none", "1.3", "none", 2, 2),
    Config("zlab-dflash", 2, 7, "top-k top-p", "moving mask", "0.7", "two", 9, 1),
    Config("zlab-dflash", 3, 11, "top-k", "none", "1", "last", 4, 1),
    Config("zlab-dflash", 1, 23, "top-p", "mask", "2.5", "first", 2, 1),
    Config("zlab-dflash", 3, 3, "none", "moving mask", "0.1", "ending", 3, 2),
    Config("zlab-dflash2", 2, 5, "top-k", "none", "0.7", "none", 3, 2),
    Config("zlab-dflash2", 3, 6, "top-p", "moving mask", "1.3", "first", 2, 1),
    Config("zlab-dflash2", 2, 3, "none", "mask", "2^-18", "none", 2, 2),
    Config("zlab-2026-04", 2, 5, "none", "none", "1.3", "none", 2, 2),
    Config("zlab-2026-04", 3, 3, "none", "moving mask", "0.7", "last", 9, 1),
    Config("zlab-2026-04", 1, 5, "none", "mask", "1", "ending", 9, 2),
    Config("zlab-2026-04-drawn", 2, 3, "none", "mask", "1", "two", 3, 2),
)
"""Each round enumerated on its own."""

STREAMS = (
    Config("ninfer-dflash", 3, 3, "none", "presence", "1.3", "none", 3, 3),
    Config("ninfer-dflash2", 2, 3, "none", "mask", "0.7", "ending", 2, 2),
    Config("ninfer-dflash2", 2, 3, "top-k", "moving mask", "2.5", "none", 3, 2),
    Config("zlab-dflash", 2, 3, "none", "none", "1.3", "first", 3, 2),
    Config("zlab-dflash2", 2, 3, "none", "moving mask", "0.7", "none", 2, 2),
    Config("zlab-2026-04", 2, 3, "none", "none", "1.3", "last", 2, 2),
)
"""Requests that are enumerated whole, with one uniform per key for all rounds: few, for every draw multiplies."""
