"""Replaying traces with the reference: round by round, stage by stage, along the trace's own committed tokens."""

from dflash_vectors.replay.findings import BUG, PREFILL_ROUND, TIE, Finding, Report
from dflash_vectors.replay.lanes import Pair
from dflash_vectors.replay.replay import Replay

__all__ = ["BUG", "PREFILL_ROUND", "TIE", "Finding", "Pair", "Replay", "Report"]
