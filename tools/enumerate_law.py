#!/usr/bin/env python3
"""Prove the law of whole requests by enumeration; `--help` says how."""

import sys

from dflash_vectors.commands.enumerate_law import main

sys.exit(main())
