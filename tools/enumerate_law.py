"""Prove the law of whole requests by enumeration; see `--help`."""

from dflash_vectors.commands.enumerate_law import main

raise SystemExit(main())
