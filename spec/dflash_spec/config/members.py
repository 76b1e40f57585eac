"""The members of a config file: JSON read strictly, and one typed getter per kind of value.

`null` counts as absent everywhere, because writers of the published format put it there for "not set".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_spec.config import arguments
from dflash_spec.errors import ConfigError

INT_LIMIT = 2**32 - 1


@dataclass(frozen=True)
class Members:
    """One JSON object. `file` and `path` say where it stands, for error messages."""

    values: Mapping[str, Any]
    file: str
    path: str = ""

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def wrong(self, key: str, expected: str, clause: str, kind: type[ConfigError] = ConfigError) -> ConfigError:
        """The error for member `key`: what was found, what was expected, and where."""
        found = repr(self.values[key]) if key in self.values else "nothing"
        return kind(
            f"{self.file}: {self.path}{key}: found {found}, expected {expected}", key=self.path + key, clause=clause
        )


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object's members.

    Clause: CFG-002. Raises ConfigError on a key that occurs twice: readers differ in which of the two they keep.
    """
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ConfigError(f"key {key!r} occurs twice, expected once", key=key, clause="CFG-002")
        mapping[key] = value
    return mapping


def refuse_constant(text: str) -> float:
    """Clause: CFG-003. Raises ConfigError: NaN, Infinity and -Infinity are not JSON."""
    raise ConfigError(f"found {text}, expected a JSON number", clause="CFG-003")


def parse(data: bytes, file: str) -> Members:
    """The top-level object of a config file.

    Clause: CFG-001. Raises ConfigError unless `data` is one JSON object in UTF-8 without a byte order mark.
    """
    try:
        values = json.loads(data.decode("utf-8"), object_pairs_hook=unique_pairs, parse_constant=refuse_constant)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.detail}", key=error.key, clause=error.clause) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not JSON: {error}", clause="CFG-001") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: found a {type(values).__name__}, expected a JSON object", clause="CFG-001")
    return Members(values, file)


def read(source: bytes | Path, what: str) -> Members:
    """The members of `source`: bytes, a file, or a folder with a config.json. `what` names bytes in messages."""
    arguments.check_instance(what, source, (bytes, Path))
    if isinstance(source, bytes):
        return parse(source, what)
    path = source / "config.json" if source.is_dir() else source
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", clause="CFG-001") from error
    except ValueError as error:  # a path that holds NUL or a lone surrogate
        raise ConfigError(f"{str(path)!r}: no name of a file: {error}", clause="CFG-001") from error
    return parse(data, str(path))


def require(members: Members, key: str) -> Any:
    """Clause: CFG-004. Raises ConfigError where `key` is absent: no library's default stands in for it."""
    if not members.has(key):
        raise members.wrong(key, "a value", "CFG-004")
    return members.get(key)


def positive_int(members: Members, key: str) -> int:
    """Clause: CFG-005. A size or count: a JSON integer, 1 to 2^32 - 1. Raises ConfigError."""
    value = require(members, key)
    if type(value) is not int or not 1 <= value <= INT_LIMIT:
        raise members.wrong(key, f"an integer from 1 to {INT_LIMIT}", "CFG-005")
    return value


def index(members: Members, key: str) -> int:
    """Clause: CFG-006. An id: a JSON integer, 0 to 2^32 - 1. Raises ConfigError."""
    value = require(members, key)
    if type(value) is not int or not 0 <= value <= INT_LIMIT:
        raise members.wrong(key, f"an integer from 0 to {INT_LIMIT}", "CFG-006")
    return value


def positive_float(members: Members, key: str) -> float:
    """Clause: CFG-007. The nearest FP32 of a JSON number. Raises ConfigError unless that is positive and finite."""
    value = require(members, key)
    if type(value) not in (int, float):
        raise members.wrong(key, "a number", "CFG-007")
    try:
        with np.errstate(over="ignore"):
            kept = float(np.float32(value))
    except OverflowError:
        kept = math.inf
    if not (math.isfinite(kept) and kept > 0):
        raise members.wrong(key, "a number that is positive and finite in FP32", "CFG-007")
    return kept


def flag(members: Members, key: str) -> bool | None:
    """Clause: CFG-008. `true`, `false`, or None where absent. Raises ConfigError on 0, 1 and strings."""
    value = members.get(key)
    if value is not None and not isinstance(value, bool):
        raise members.wrong(key, "true or false", "CFG-008")
    return value


def inner(members: Members, key: str) -> Members:
    """The object under `key`; an empty one where absent. Raises ConfigError if it is no object.

    Clause: CFG-009.
    """
    value = members.get(key)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise members.wrong(key, "an object", "CFG-009")
    return Members(value, members.file, f"{members.path}{key}.")


def closed(members: Members, allowed: Sequence[str], clause: str = "CFG-010") -> None:
    """Clause: CFG-010. Raises ConfigError, by `clause`, on a member that is not in `allowed`."""
    for key in members.values:
        if key not in allowed:
            raise members.wrong(key, f"only {', '.join(allowed)}", clause)


def unknown(members: Members, known: Iterable[str]) -> tuple[str, ...]:
    """Clause: CFG-011. The members that this reader does not know, in file order: kept and listed, no error."""
    known = frozenset(known)
    return tuple(key for key in members.values if key not in known)
