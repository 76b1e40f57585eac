"""Compile the kernels: `python -m dflash_accelerated.native`."""

import sys

from dflash_spec.errors import UnsupportedError

from dflash_accelerated.commands.console import Parser
from dflash_accelerated.native import kernels

Parser(
    prog="python -m dflash_accelerated.native",
    description="Compile the kernels in C into the cache folder, or say on stderr why they cannot be compiled.",
    epilog="exit code: 0 where they can be used, 1 where they cannot, 2 for wrong usage",
).parse_args()
try:
    kernels()
except UnsupportedError as error:
    sys.exit(str(error))
