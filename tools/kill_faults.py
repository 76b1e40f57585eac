#!/usr/bin/env python3
"""Run every known fault against the vectors; `--help` says how."""

import sys

from dflash_vectors.commands.kill_faults import main

sys.exit(main())
