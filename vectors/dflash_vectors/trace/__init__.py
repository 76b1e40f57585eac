"""Traces: what an engine did, round by round, recorded by it and read by the checker. Nothing here needs the reference.

`Recorder` writes one from Python; docs/traces.md has the format for every other language. `Trace` reads one.
"""

from dflash_vectors.trace.format import Configuration, End, Prefill, Round
from dflash_vectors.trace.reader import Trace
from dflash_vectors.trace.recorder import Recorder

__all__ = ["Configuration", "End", "Prefill", "Recorder", "Round", "Trace"]
