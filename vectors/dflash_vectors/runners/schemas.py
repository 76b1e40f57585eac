"""JSON schemas of what an implementation says about itself and answers, and the part of JSON Schema that they use.

`docs/protocol.md` prints the same schemas; a test keeps the two equal.
"""

from __future__ import annotations

from typing import Any

from dflash_spec.errors import ImplementationError
from dflash_spec.registry import ALL_PROFILES
from dflash_spec.tensors import STORED

from dflash_vectors.cases import shown

PROTOCOL = 1

_DESCRIPTION: dict[str, Any] = {
    "name": {"type": "string", "minLength": 1},
    "version": {"type": "string"},
    "profile": {"enum": list(ALL_PROFILES)},
    "ops": {"type": "array", "items": {"type": "string"}},
    "dtypes": {"type": "array", "items": {"enum": list(STORED)}},
    "note": {"type": "string"},
}
DESCRIPTION: dict[str, Any] = {
    "$id": "implementation",
    "type": "object",
    "required": ["name", "version", "profile"],
    "properties": _DESCRIPTION,
    "additionalProperties": False,
}
STARTED: dict[str, Any] = {
    "$id": "started",
    "type": "object",
    "required": ["protocol", "name", "version", "profile"],
    "properties": {"protocol": {"enum": [PROTOCOL]}, **_DESCRIPTION},
    "additionalProperties": False,
}
NOT_SPOKEN: dict[str, Any] = {
    "$id": "unsupported",
    "type": "object",
    "required": ["unsupported"],
    "properties": {"unsupported": {"type": "string", "minLength": 1}},
    "additionalProperties": False,
}
DONE: dict[str, Any] = {
    "$id": "done",
    "type": "object",
    "required": ["seq", "ok"],
    "properties": {"seq": {"type": "integer"}, "ok": {"enum": [True]}},
    "additionalProperties": False,
}
ERROR: dict[str, Any] = {
    "$id": "error",
    "type": "object",
    "required": ["seq", "error"],
    "properties": {"seq": {"type": "integer"}, "error": {"type": "string", "minLength": 1}},
    "additionalProperties": False,
}
ANSWERS = (DESCRIPTION, STARTED, NOT_SPOKEN, DONE, ERROR)

_TYPES: dict[str, type] = {"object": dict, "array": list, "string": str, "integer": int}


def validate(value: Any, schema: dict[str, Any], where: str) -> None:
    """Raise ImplementationError that names `where` and the key, if `value` does not match `schema`."""
    if "enum" in schema and not any(value == item and type(value) is type(item) for item in schema["enum"]):
        raise ImplementationError(f"{where}: found {shown(value)}, expected {' or '.join(map(repr, schema['enum']))}")
    if "type" in schema and (not isinstance(value, _TYPES[schema["type"]]) or isinstance(value, bool)):
        raise ImplementationError(f"{where}: found {shown(value)}, expected {schema['type']}")
    if len(value) < schema["minLength"] if "minLength" in schema else False:
        raise ImplementationError(f"{where}: found an empty string")
    for key in schema.get("required", ()):
        if key not in value:
            raise ImplementationError(f"{where}: key {key!r} is missing")
    if "properties" in schema:
        for key, item in value.items():
            if key not in schema["properties"]:
                raise ImplementationError(
                    f"{where}: unknown key {shown(key)}, expected {', '.join(schema['properties'])}"
                )
            validate(item, schema["properties"][key], f"{where}: {key}")
    for number, item in enumerate(value if "items" in schema else ()):
        validate(item, schema["items"], f"{where}[{number}]")
