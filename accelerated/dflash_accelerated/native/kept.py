"""Arguments of a call that are kept from one to the next, with the workspace that it asks for."""

from __future__ import annotations

from ctypes import byref
from threading import Lock
from typing import Generic, TypeVar

import torch

from dflash_accelerated.native.calls import Forward, Intake, empty, kernels

Arguments = TypeVar("Arguments", Forward, Intake)


class KeptCall(Generic[Arguments]):
    """What every call of the kernel `name` has in common, and a workspace for the most rows so far.

    Whoever fills in the rest and calls holds `lock`: a call of C lets other threads of Python run.
    """

    def __init__(self, name: str, common: Arguments) -> None:
        self.lock = Lock()
        self.arguments: Arguments = common
        self._name, self._rows = name, 0
        self._workspace = empty(0, torch.uint8)

    def bytes_for(self, rows: int) -> int:
        """Bytes of the workspace of a call with so many rows, on as many threads as there are now."""
        arguments = type(self.arguments).from_buffer_copy(self.arguments)
        arguments.rows, arguments.threads = rows, torch.get_num_threads()
        found: int = getattr(kernels(), f"{self._name}_bytes")(byref(arguments))
        return found

    def of(self, rows: int) -> Arguments:
        """The arguments, with room for so many rows."""
        arguments, threads = self.arguments, torch.get_num_threads()
        if rows > self._rows or threads != arguments.threads:
            needed = self.bytes_for(max(rows, self._rows))
            if needed > len(self._workspace):
                self._workspace = empty(needed, torch.uint8)
                arguments.workspace = self._workspace.data_ptr()
            self._rows, arguments.threads = max(rows, self._rows), threads
        arguments.rows = rows
        return arguments
