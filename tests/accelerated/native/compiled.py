"""Kernels as a machine of another kind compiles them."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dflash_accelerated.native import build, calls


def compiled(folder: Path, machine: str, headers: Sequence[str], kernels: Sequence[str], more: str = "") -> ctypes.CDLL:
    """A library of some `headers` and of what `more` adds, for the `machine` that -march names, or for this one.

    Its `kernels` are ready to be called. Few headers take a second or two, all of them twelve.
    """
    source, library = folder / "some.c", folder / "some.so"
    source.write_text("".join(f'#include "{name}.h"\n' for name in headers) + more, "utf-8")
    flags = [f"-march={machine}" if flag == build.TUNED and machine else flag for flag in build.FLAGS]
    command = [*build.find_compiler(), *flags, "-I", str(build.SOURCES), str(source), "-o", str(library), "-lm"]
    subprocess.run(command, check=True, timeout=build.SECONDS)
    made = ctypes.CDLL(str(library))
    for name in kernels:
        getattr(made, name).argtypes = [calls.TYPES[letter] for letter in calls.SIGNATURES[name].replace(" ", "")]
    return made
