"""check_trace: replay an engine's trace with the reference and say where it first goes wrong.

Only the way in: it loads the reference, which takes long enough to be interrupted meanwhile.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from dflash_vectors.commands.check_vectors import EXIT_INTERRUPTED, leave, signals


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, replay, print; returns the exit code that `--help` documents."""
    try:
        with signals(leave):
            from dflash_vectors.commands import tracing
        with signals(signal.default_int_handler):
            return tracing.run(argv)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
