"""check_law: say whether an implementation's draws and verifies have the law of plain decoding.

Only the way in: it loads the check, which takes long enough to be interrupted meanwhile.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from dflash_vectors.commands.check_vectors import EXIT_INTERRUPTED, leave, signals


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, judge, print; returns the exit code that `--help` documents."""
    try:
        with signals(leave):
            from dflash_vectors.commands import judging_laws
        with signals(signal.default_int_handler):
            return judging_laws.run(argv)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
