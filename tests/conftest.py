"""Settings that hold for every test."""

import os

from hypothesis import settings

# The same examples on every run: a red build must be red again on the next one.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

# Two pytest workers share two cores; a thread pool in each would only make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
