"""Arguments of a call that are kept from one to the next, with the workspace that it asks for."""

from __future__ import annotations

import os
from ctypes import byref
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import torch

from dflash_accelerated.native.calls import Forward, Intake, empty, kernels

Arguments = TypeVar("Arguments", Forward, Intake)

_kept: WeakSet[KeptCall[Any]] = WeakSet()


def _unlock() -> None:
    """New locks in a process that was forked while another thread held one: that thread was not forked."""
    for call in _kept:
        call.lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


class KeptCall(Generic[Arguments]):
    """What every call of the kernel `name` has in common, and a workspace for the most rows so far.

    Whoever fills in the rest and calls holds `lock`: a call of C lets other threads of Python run.
    """

    def __init__(self, name: str, common: Arguments) -> None:
        self.lock = Lock()
        self.arguments: Arguments = common
        self._name, self._rows = name, 0
        self._workspace = empty(0, torch.uint8)
        _kept.add(self)

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
            # An interruption anywhere in here must have the next call come by again.
            most, self._rows = max(rows, self._rows), 0
            needed = self.bytes_for(most)
            if needed > len(self._workspace):
                self._workspace = empty(needed, torch.uint8)
            arguments.workspace, arguments.threads = self._workspace.data_ptr(), threads
            self._rows = most
        arguments.rows = rows
        return arguments
