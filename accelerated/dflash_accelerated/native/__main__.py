"""Compile the kernels, or say in one line on stderr why they cannot be: `python -m dflash_accelerated.native`.

Exit code: 0 where they can be used, else 1.
"""

import sys

from dflash_spec.errors import UnsupportedError

from dflash_accelerated.native import kernels

try:
    kernels()
except UnsupportedError as error:
    sys.exit(str(error))
