"""Compiling the kernels into a library that this machine keeps."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dflash_spec.errors import UnsupportedError

SOURCES = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
TUNED = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
FLAGS = ("-std=gnu11", "-O3", TUNED, "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC")
"""Without contraction, because which products and sums a compiler fuses differs between compilers and even between the
body of a loop and its last elements; no -ffast-math, which would order sums anew and lose NaN."""

SECONDS = 300
"""GCC and Clang need 12 seconds of a core, and other programs may want that core too."""

ABANDONED = 3600
PREFIX = "tmp"
SEAL = hashlib.sha256().digest_size


def build() -> ctypes.CDLL:
    """The loaded library: from the user's cache folder, else compiled, once, and kept there if that can be done.

    Raises UnsupportedError where there is no compiler, or where it fails, with what it said.
    """
    compiler, folder = find_compiler(), _cache_folder()
    name = f"kernels-{_fingerprint(compiler)}.so"
    if folder is not None and _is_sealed(folder / name):
        with suppress(OSError):
            return _opened(folder / name)
    with tempfile.TemporaryDirectory(prefix="dflash-oracle-") as held:
        made = Path(held) / name
        try:
            _compile(compiler, made)
            if folder is not None:
                with suppress(OSError):  # full, not writable after all, or mounted so that nothing in it can be run
                    _keep(made, folder)
                    return _opened(folder / name)
            return _opened(made)
        except OSError as problem:
            raise UnsupportedError(f"native kernels: {problem}, expected a library that can be loaded") from problem


def _opened(library: Path) -> ctypes.CDLL:
    """Raises OSError for a file that is no library of these kernels."""
    loaded = ctypes.CDLL(str(library))
    if not hasattr(loaded, "rms_norm"):
        raise OSError(f"{library}: has no function rms_norm")
    return loaded


def _seal(library: Path, content: bytes) -> bytes:
    """What follows the content in its file, where a loader does not look. Another version's name gives another seal."""
    return hashlib.sha256(library.name.encode() + b"\0" + content).digest()


def _is_sealed(library: Path) -> bool:
    """Asked before loading: half a library can be loaded, and ends the process when what is missing is touched."""
    try:
        held = library.read_bytes()
    except OSError:
        return False
    return held[-SEAL:] == _seal(library, held[:-SEAL])


def find_compiler() -> list[str]:
    """The command in $CC, else the first of cc, gcc and clang on the path. Raises UnsupportedError."""
    try:
        asked = shlex.split(os.environ.get("CC", ""))
    except ValueError as problem:
        raise UnsupportedError(
            f"native kernels: $CC is {os.environ['CC']!r}: {problem}, expected a command"
        ) from problem
    for command in [asked] if asked else [[name] for name in COMPILERS]:
        if shutil.which(command[0]):
            return command
    found = f"no {asked[0]} (from $CC)" if asked else f"none of {', '.join(COMPILERS)}"
    raise UnsupportedError(f"native kernels: {found} on the path, expected a C compiler")


def _compile(compiler: Sequence[str], library: Path) -> None:
    _run([*compiler, *FLAGS, str(SOURCES / "kernels.c"), "-o", str(library), "-lm"])
    content = library.read_bytes()
    library.write_bytes(content + _seal(library, content))


def _keep(library: Path, folder: Path) -> None:
    """Under another name first, so that a process that builds at the same time never sees half a library."""
    _sweep(folder)
    handle, unfinished = tempfile.mkstemp(dir=folder, prefix=PREFIX, suffix=".so")
    os.close(handle)
    try:
        Path(unfinished).write_bytes(library.read_bytes())
        os.chmod(unfinished, 0o666 & ~_umask())
        os.replace(unfinished, folder / library.name)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what killed builds left; younger files may be another process's, which is still at it."""
    for left in folder.glob(f"{PREFIX}*.so"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                left.unlink()


def _umask() -> int:
    """What a new file lacks, asked by setting it: there is no other way."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _run(command: Sequence[str]) -> str:
    """What a command prints. One that takes too long ends with all that it has started."""
    try:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        ) as started:  # fmt: skip
            try:
                printed, said = started.communicate(timeout=SECONDS)
            except BaseException:
                os.killpg(started.pid, signal.SIGKILL)
                raise
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UnsupportedError(f"native kernels: {problem}, expected a C compiler that works") from problem
    if started.returncode:
        ended = f"native kernels: {shlex.join(command)} ended with {started.returncode}, expected 0; it said"
        raise UnsupportedError(f"{ended}:\n{said}" if said.strip() else f"{ended} nothing")
    return printed


def _fingerprint(compiler: Sequence[str]) -> str:
    """What a library depends on: sources, compiler, flags, and the CPU, whose instructions another may not have."""
    parts = [source.read_bytes() for source in sorted(SOURCES.glob("*.[ch]"))]
    parts += [part.encode() for part in (*compiler, _run([*compiler, "--version"]), *FLAGS, _cpu())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _cpu() -> str:
    told = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        first = Path("/proc/cpuinfo").read_text("utf-8", "replace").split("\n\n")[0]
    except OSError:
        first = platform.processor()
    kept = [line for line in first.splitlines() if line.startswith(told)]
    return "\n".join([platform.machine(), *(kept or [first])])


def _cache_folder() -> Path | None:
    """None where no folder can be made."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "dflash-oracle"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder
