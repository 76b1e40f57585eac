"""The three ways of plugging in: files, a program on stdin and stdout, a Python object."""

from __future__ import annotations

from pathlib import Path

from dflash_spec.errors import ImplementationError

from dflash_vectors.runners.files import FilesRunner
from dflash_vectors.runners.protocol import Runner
from dflash_vectors.runners.python import PythonRunner
from dflash_vectors.runners.stdio import StdioRunner

FORMS = ("files:DIR", "stdio:CMD", "python:MODULE:FACTORY")


def open_runner(spec: str, timeout: float) -> Runner:
    """The runner that `spec` names, not yet started. `timeout` is in seconds and binds programs only.

    Raises ImplementationError if `spec` has none of the three forms.
    """
    kind, _, rest = spec.partition(":")
    if kind == "files" and rest:
        return FilesRunner(spec, Path(rest))
    if kind == "stdio" and rest.strip():
        return StdioRunner(spec, rest, timeout)
    module, _, factory = rest.rpartition(":")
    if kind == "python" and module and factory:
        return PythonRunner(spec, module, factory)
    raise ImplementationError(f"implementation {spec!r}, expected {', '.join(FORMS[:-1])} or {FORMS[-1]}")
