"""A PyTorch engine for DFlash pairs: independent of the reference, checked by the same vectors.

`Engine.from_pretrained(target, draft)` reads two published folders, of DFlash or DFlash2; `generate`, `stream` and
`decode_plain` run one request, `generate_batch`, `submit` and `step` several together;
`checkpoint`, `fork` and `restore` keep what they hold; `Statistics` says what rounds came to. New targets, drafts and
plans keep the protocols of `dflash_accelerated.protocols`. Every error raised on purpose is a `DFlashError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_spec.errors import (
        CheckpointError,
        ConfigError,
        DFlashError,
        RequestError,
        StateError,
        TensorError,
        UnsupportedConfigError,
        UnsupportedError,
    )

    from dflash_accelerated.engine import Engine
    from dflash_accelerated.images import Checkpoint
    from dflash_accelerated.numerics import Numerics
    from dflash_accelerated.planning import Memory
    from dflash_accelerated.requests import Generation, Request, Round, RoundTrace
    from dflash_accelerated.statistics import Statistics
    from dflash_accelerated.timing import StageTimes

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "DFlashError",
    "Engine",
    "Generation",
    "Memory",
    "Numerics",
    "Request",
    "RequestError",
    "Round",
    "RoundTrace",
    "StageTimes",
    "StateError",
    "Statistics",
    "TensorError",
    "UnsupportedConfigError",
    "UnsupportedError",
]


def __getattr__(name: str) -> Any:
    """The names above, loaded when the first of them is asked for: a command can be interrupted while PyTorch loads."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dflash_spec import errors

    from dflash_accelerated.engine import Engine
    from dflash_accelerated.images import Checkpoint
    from dflash_accelerated.numerics import Numerics
    from dflash_accelerated.planning import Memory
    from dflash_accelerated.requests import Generation, Request, Round, RoundTrace
    from dflash_accelerated.statistics import Statistics
    from dflash_accelerated.timing import StageTimes

    public = (
        Checkpoint, Engine, Generation, Memory, Numerics, Request, Round, RoundTrace, StageTimes, Statistics
    )  # fmt: skip
    globals().update({each.__name__: each for each in public})
    globals().update({each: getattr(errors, each) for each in __all__ if hasattr(errors, each)})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
