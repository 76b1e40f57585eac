#!/usr/bin/env python3
"""Say whether the draws and verifies of an implementation have the law that they must have; `--help` says how."""

import sys

from dflash_vectors.commands.check_law import main

sys.exit(main())
