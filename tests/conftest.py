"""Settings that hold for every test."""

import os
import signal

import pytest
from hypothesis import settings

# The same examples on every run: a red build must be red again on the next one.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

# Two pytest workers share two cores; a thread pool in each would only make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell lets what it starts in the background ignore interrupts, and children inherit that; tests send them some.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = {"test_triton.py", "test_kernels.py", "test_regeneration.py", "test_state_machine.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, lest one worker is at it when there is nothing left for the other."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
