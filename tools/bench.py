#!/usr/bin/env python3
"""Measure the engine and the authors' package in turns; `--help` says how."""

import sys

from dflash_vectors.commands.bench import main

sys.exit(main())
