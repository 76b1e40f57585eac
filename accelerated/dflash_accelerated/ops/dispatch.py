"""Which implementation of an op runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar, cast

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def dispatched(*kernels: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """For an op in a file `torch.py`: `kernels` are the files beside it that have the op too, by the same name.

    That one runs which `numerics`, an op's last positional argument, names; where it names none of them, PyTorch's own.
    Such a file is imported when it is first needed, because what it needs may not be installed.
    """

    def choosing(plain: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        folder, name = plain.__module__.rpartition(".")[0], plain.__name__

        @cache
        def found(kernel: str) -> Callable[..., Result]:
            function: Callable[..., Result] = getattr(import_module(f"{folder}.{kernel}"), name)
            return function

        @wraps(plain)
        def run(*arguments: Any) -> Result:
            kernel = arguments[-1].kernels
            return found(kernel)(*arguments) if kernel in kernels else plain(*arguments)  # type: ignore[call-arg]

        return cast("Callable[Arguments, Result]", run)

    return choosing
