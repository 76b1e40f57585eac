#!/usr/bin/env python3
"""Run implementations against the vectors; `--help` says how."""

import sys

from dflash_vectors.commands.check_vectors import main

sys.exit(main())
