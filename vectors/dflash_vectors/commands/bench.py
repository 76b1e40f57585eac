"""bench: measure the engine and the authors' package in turns.

Only the way in: it says how many threads there are before the libraries start theirs, and loads the measurement, which
takes long enough to be interrupted meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from dflash_vectors.commands.bench_options import EXIT_INTERRUPTED, parsed
from dflash_vectors.commands.check_vectors import leave, signals


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, measure, print; returns the exit code that `--help` documents."""
    options = parsed(sys.argv[1:] if argv is None else argv)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    try:
        with signals(leave):
            from dflash_vectors.commands import benching
        with signals(signal.default_int_handler):
            return benching.run(options)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
