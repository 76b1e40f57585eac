"""Faults: wrong-on-purpose variants of single functions, each of which the vectors must catch.

A chapter file registers a fault like this; the wrong function gets the true one and may call it:

    @fault("dflash_reference.block.inputs", clauses=("BLK-001",), report="https://…", effect="acceptance")
    def mask_in_the_anchor_slot(true):
        \"\"\"The anchor slot is fed the mask id.\"\"\"
        def wrong(anchor, mask_id, *rest, **named):
            return true(mask_id, mask_id, *rest, **named)
        return wrong
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from dflash_spec.errors import SpecDataError
from dflash_spec.registry import PROFILES, load_clauses

from dflash_vectors.suite import EFFECTS

Function = Callable[..., Any]
PATCHED_PACKAGES = ("dflash_reference", "dflash_spec.config")
_FAULTS: dict[str, Fault] = {}


@dataclass(frozen=True)
class Fault:
    """One rule broken. `clauses` are those of which one must be blamed first.

    `target` is the dotted name of the function that is replaced; `replacement` gets the true function and
    returns the wrong one; `report` is where such a bug was seen (a public URL, or the contract that it breaks).
    """

    name: str
    target: str
    replacement: Callable[[Function], Function]
    clauses: tuple[str, ...]
    report: str
    effect: str
    story: str
    profiles: tuple[str, ...] = PROFILES


def fault(
    target: str, *, clauses: tuple[str, ...], report: str, effect: str, profiles: tuple[str, ...] = PROFILES
) -> Callable[[Callable[[Function], Function]], Callable[[Function], Function]]:
    """Register the decorated function as the fault of its name; its docstring is the story."""

    def register(replacement: Callable[[Function], Function]) -> Callable[[Function], Function]:
        name = replacement.__name__.replace("_", "-")
        story = (replacement.__doc__ or "").strip()
        held = _FAULTS.get(name)
        if held is not None and held.replacement.__module__ != replacement.__module__:
            raise SpecDataError(f"fault {name}: registered in {held.replacement.__module__} already")
        if effect not in EFFECTS or not story or not clauses:
            raise SpecDataError(f"fault {name}: expected a story, clauses, and an effect of {', '.join(EFFECTS)}")
        for clause in clauses:
            if clause not in load_clauses():
                raise SpecDataError(f"fault {name}: there is no clause {clause}")
        _FAULTS[name] = Fault(name, target, replacement, clauses, report, effect, story, profiles)
        return replacement

    return register


@cache
def _discover() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def all_faults() -> list[Fault]:
    """Every registered fault, in name order."""
    _discover()
    return [_FAULTS[name] for name in sorted(_FAULTS)]


def resolve(target: str) -> tuple[Any, str, Function]:
    """The object that holds `target`, the attribute's name, and the function. Raises SpecDataError."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:-1]:
            owner = getattr(owner, part, None)
        found = getattr(owner, parts[-1], None)
        if callable(found):
            return owner, parts[-1], found
        break
    raise SpecDataError(f"patch target {target!r}: there is no such function")


def _holders(true: Function) -> Iterator[tuple[Any, str]]:
    """Every module of the patched packages that holds `true` under some name, and every table of ops."""
    for name in sorted(name for name in sys.modules if name.startswith(PATCHED_PACKAGES)):
        for attribute, value in vars(sys.modules[name]).items():
            if value is true:
                yield vars(sys.modules[name]), attribute
            elif attribute == "OPERATIONS" and isinstance(value, dict):
                yield from ((value, key) for key, entry in value.items() if entry is true)


@contextmanager
def patched(target: str, replacement: Callable[[Function], Function]) -> Iterator[None]:
    """Replace the function `target` wherever the patched packages hold it, and put it back after."""
    owner, attribute, true = resolve(target)
    wrong = replacement(true)
    holders = list(_holders(true))
    setattr(owner, attribute, wrong)
    for table, key in holders:
        table[key] = wrong
    try:
        yield
    finally:
        setattr(owner, attribute, true)
        for table, key in holders:
            table[key] = true


@contextmanager
def applied(fault: Fault) -> Iterator[None]:
    """The reference with `fault` in it."""
    with patched(fault.target, fault.replacement):
        yield
