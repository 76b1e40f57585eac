#!/usr/bin/env python3
"""Write a planted pair in the published formats; `--help` says how."""

import sys

from dflash_vectors.commands.make_planted_pair import main

sys.exit(main())
