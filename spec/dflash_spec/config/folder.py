"""Whether the tensors of a folder are those that its config asks for, by name, shape and dtype."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from dflash_spec.config.inventory import Shapes
from dflash_spec.errors import ConfigError, FolderError
from dflash_spec.tensors import FLOATS


class Held(NamedTuple):
    """What a folder holds under one name."""

    dtype: str
    shape: tuple[int, ...]


Found = Mapping[str, Held]
Where = Callable[[str], str]
"""The file in which a tensor of this name stands, or should."""


def check_complete(expected: Shapes, found: Found, where: Where) -> None:
    """Clause: CFG-067. Raises FolderError where a tensor that the config asks for is missing."""
    for name in sorted(expected.keys() - found.keys()):
        raise FolderError(f"{where(name)}: tensor {name!r}: found nothing, expected shape {expected[name]}",
                          key=name, clause="CFG-067")  # fmt: skip


def check_closed(expected: Shapes, found: Found, where: Where) -> None:
    """Clause: CFG-068. Raises FolderError on a tensor that nobody asked for: it may make the model another one."""
    for name in sorted(found.keys() - expected.keys()):
        raise FolderError(f"{where(name)}: tensor {name!r}: found shape {found[name].shape}, expected no such tensor",
                          key=name, clause="CFG-068")  # fmt: skip


def check_shape(name: str, expected: tuple[int, ...], found: Held, where: Where) -> None:
    """Clause: CFG-069. Raises FolderError unless a tensor has its whole shape, in order."""
    if found.shape != expected:
        raise FolderError(f"{where(name)}: tensor {name!r}: found shape {found.shape}, expected {expected}",
                          key=name, clause="CFG-069")  # fmt: skip


def check_dtype(name: str, found: Held, where: Where, dtypes: Collection[str] = FLOATS) -> None:
    """Clause: CFG-070. Raises FolderError unless a tensor is of a float dtype, of `dtypes`."""
    if found.dtype not in dtypes:
        raise FolderError(
            f"{where(name)}: tensor {name!r}: found dtype {found.dtype}, expected one of {', '.join(dtypes)}",
            key=name, clause="CFG-070",
        )  # fmt: skip


def check_tensors(expected: Shapes, found: Found, where: Where, dtypes: Collection[str] = FLOATS) -> None:
    """Raise FolderError unless `found` is exactly `expected`, in `dtypes`."""
    check_complete(expected, found, where)
    check_closed(expected, found, where)
    for name in sorted(expected.keys() & found.keys()):
        check_shape(name, expected[name], found[name], where)
        check_dtype(name, found[name], where, dtypes)


def read_listing(text: str) -> dict[str, Held]:
    """The tensors of a listing: a line each, `name dtype 2x3`, without a shape for a single value.

    Raises ConfigError for a line of another form and for a name that occurs twice.
    """
    held: dict[str, Held] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        dtype, _, sizes = rest.partition(" ")
        digits = sizes.split("x") if sizes else []
        if not name or name in held or not dtype or not all(size.isdecimal() for size in digits):
            raise ConfigError(f"tensor listing: found {line!r}, expected a new name, a dtype, and sizes joined by x")
        held[name] = Held(dtype, tuple(map(int, digits)))
    return held
