"""What every process that runs kernels in Triton's interpreter does first."""

from __future__ import annotations

from typing import Any

from triton.language import standard
from triton.runtime.interpreter import InterpretedFunction, _patch_lang


def _call(self: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    return self.rewrite()(*args, **kwargs)


def patch_language_once() -> None:
    """Make Triton's language that of the interpreter, for functions that kernels call.

    The interpreter does so wherever a kernel calls one, and never takes it back: from the second time on that changes
    nothing, and takes half of its time.
    """
    _patch_lang(standard.max.fn)
    InterpretedFunction.__call__ = _call
