#!/usr/bin/env python3
"""Decode a prompt with a pair of published folders; `--help` says how."""

import sys

from dflash_accelerated.commands.generate import main

sys.exit(main())
