"""The glossary: one word for one thing, with the words of other systems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dflash_spec.errors import SpecDataError
from dflash_spec.registry import ROOT, check_keys, read_yaml


@dataclass(frozen=True)
class Term:
    """`also` maps a system to its own word."""

    name: str
    meaning: str
    also: Mapping[str, str]


def read_glossary(path: Path) -> dict[str, Term]:
    """The terms in `path`, in file order. Raises SpecDataError."""
    terms = {}
    for name, body in read_yaml(path).items():
        where = f"{path.name}: {name}"
        if not isinstance(body, dict):
            raise SpecDataError(f"{where}: found {body!r}, expected meaning and also")
        check_keys(body, where, ("meaning", "also"))
        if not isinstance(body["meaning"], str) or not isinstance(body["also"], dict):
            raise SpecDataError(f"{where}: expected a sentence as meaning and a mapping of systems to words as also")
        terms[name] = Term(name, body["meaning"], body["also"])
    return terms


@cache
def load_glossary() -> dict[str, Term]:
    """Every term, by name. Raises SpecDataError."""
    return read_glossary(ROOT / "glossary.yaml")
