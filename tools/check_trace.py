#!/usr/bin/env python3
"""Replay an engine's trace with the reference; `--help` says how."""

import sys

from dflash_vectors.commands.check_trace import main

sys.exit(main())
