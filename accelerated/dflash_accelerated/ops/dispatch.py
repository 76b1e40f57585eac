"""Which implementation of an op runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def dispatched(plain: Callable[Arguments, Result], *kernels: str) -> Callable[Arguments, Result]:
    """The op `plain` of a file `torch.py`, or that of the same name in the file beside it which `numerics` names.

    `numerics` is an op's last positional argument. Where it names none of `kernels`, which are files that have the op,
    `plain` runs. Such a file is imported when it is first needed, because what it needs may not be installed.
    """
    folder, name = plain.__module__.rpartition(".")[0], plain.__name__

    @cache
    def found(kernel: str) -> Callable[..., Result]:
        function: Callable[..., Result] = getattr(import_module(f"{folder}.{kernel}"), name)
        return function

    @wraps(plain)
    def run(*arguments: Any) -> Result:
        kernel = arguments[-1].kernels
        return found(kernel)(*arguments) if kernel in kernels else plain(*arguments)

    return run
