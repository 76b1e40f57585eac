#!/usr/bin/env python3
"""Generate golden vectors; `--help` says how."""

import sys

from dflash_vectors.commands.gen_vectors import main

sys.exit(main())
