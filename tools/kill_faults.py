"""Run every known fault against the vectors; see `--help`."""

from dflash_vectors.commands.kill_faults import main

raise SystemExit(main())
