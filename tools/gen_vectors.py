"""Generate golden vectors; see `--help`."""

from dflash_vectors.commands.gen_vectors import main

raise SystemExit(main())
