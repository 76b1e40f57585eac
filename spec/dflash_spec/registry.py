"""The spec as data: clauses, ops and profiles, read from YAML and checked on the way in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dflash_spec.errors import SpecDataError

ROOT = Path(__file__).parent
PROFILES = ("ninfer", "zlab")
"""The profiles that carry a full set of vectors."""

DIFFERENCES = ("zlab-2026-04", "vllm-neuron", "luce")
"""The profiles that are stated as differences from one of these, on the ops that they touch."""

ALL_PROFILES = (*PROFILES, *DIFFERENCES)
CLAUSE_ID = re.compile(r"^([A-Z]+)-(\d{3})$")
LEVELS = ("must", "should", "may")
KINDS = ("exact", "bounded", "law", "error")
COMPARE = ("bits", "value", "bounded", "law")


@dataclass(frozen=True)
class Clause:
    """One rule: a sentence with a number, an order, a comparison or a named object in it."""

    id: str
    chapter: str
    level: str
    kind: str
    statement: str
    source: str
    ops: tuple[str, ...]
    without: str
    profiles: tuple[str, ...] = PROFILES

    def holds_in(self, profile: Profile) -> bool:
        """Whether `profile` obeys it: it is named, or what it differs from is."""
        return profile.name in self.profiles or profile.base in self.profiles


@dataclass(frozen=True)
class TensorSpec:
    """Declaration of one tensor of an op. `shape` is None where any shape is allowed.

    A name that ends in `.*` stands for every tensor whose name starts with what is before the star.
    """

    name: str
    dtype: str
    shape: tuple[str, ...] | None
    compare: str = "value"

    def dtype_for(self, profile: Profile) -> str:
        return profile.dtypes.get(self.dtype, self.dtype)


@dataclass(frozen=True)
class Op:
    """One thing an implementation can be asked to compute."""

    name: str
    chapter: str
    summary: str
    inputs: tuple[TensorSpec, ...]
    stages: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    composite: bool = False

    def find(self, role: str, name: str) -> TensorSpec | None:
        """The declaration of tensor `name` in role inputs | stages | outputs; None if there is none."""
        specs: Iterable[TensorSpec] = getattr(self, role)
        for spec in specs:
            if spec.name == name or (spec.name.endswith("*") and name.startswith(spec.name[:-1])):
                return spec
        return None


@dataclass(frozen=True)
class Profile:
    """Where real systems legitimately differ. `axes` are this profile's choices.

    A difference has a `base`, whose choices are its own wherever it makes none, and the `ops` that it is stated on.
    """

    name: str
    summary: str
    upstream: str
    axes: Mapping[str, Any]
    dtypes: Mapping[str, str]
    context_value_rounding: tuple[str, ...] = field(default=())
    base: str = ""
    ops: tuple[str, ...] = field(default=())

    def __hash__(self) -> int:
        return hash(self.name)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in `path`. Raises SpecDataError on bad YAML, a repeated key, or no mapping."""
    try:
        data = yaml.load(path.read_bytes().decode("utf-8"), Loader=_UniqueKeyLoader)
    except OSError as error:
        raise SpecDataError(f"{path.name}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecDataError(f"{path.name}: not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise SpecDataError(f"{path.name}: found {type(data).__name__}, expected a mapping")
    return data


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML keeps the last of two equal keys in silence; a spec must not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        texts = [key.value for key, _ in node.value]
        for text in texts:
            if texts.count(text) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {text!r} occurs twice", node.start_mark)
        return super().construct_mapping(node, deep)


def check_keys(found: Any, where: str, required: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Raise SpecDataError that names `where` and the key, if `found` is no mapping or a key is unknown or missing."""
    if not isinstance(found, dict):
        raise SpecDataError(f"{where}: found {found!r}, expected a mapping")
    required, optional = set(required), set(optional)
    for key in found:
        if key not in required | optional:
            raise SpecDataError(f"{where}: unknown key {key!r}, expected {', '.join(sorted(required | optional))}")
    for key in sorted(required):
        if key not in found:
            raise SpecDataError(f"{where}: key {key!r} is missing")


def _mapping(found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise SpecDataError(f"{where}: found {found!r}, expected a mapping")
    return found


def _names(found: Any, where: str) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise SpecDataError(f"{where}: found {found!r}, expected a list of names")
    return tuple(found)


def read_clauses(path: Path) -> dict[str, Clause]:
    """The clauses of one chapter file. Raises SpecDataError."""
    data = read_yaml(path)
    check_keys(data, path.name, ("chapter", "title", "clauses"))
    clauses = {}
    for id_, body in _mapping(data["clauses"], f"{path.name}: clauses").items():
        where = f"{path.name}: {id_}"
        match = CLAUSE_ID.match(str(id_))
        if not match or match.group(1) != data["chapter"]:
            raise SpecDataError(f"{where}: expected an id {data['chapter']}-nnn")
        check_keys(body, where, ("level", "kind", "statement", "source", "ops", "without"), ("profiles",))
        if body["level"] not in LEVELS or body["kind"] not in KINDS:
            raise SpecDataError(f"{where}: level {body['level']!r} or kind {body['kind']!r} is not known")
        profiles = _names(body.get("profiles", list(PROFILES)), f"{where}: profiles")
        if not set(profiles) <= set(ALL_PROFILES):
            raise SpecDataError(f"{where}: profiles {profiles}, expected some of {ALL_PROFILES}")
        for key in ("statement", "source", "without"):
            if not isinstance(body[key], str) or not body[key].strip():
                raise SpecDataError(f"{where}: {key}: found {body[key]!r}, expected a sentence")
        clauses[id_] = Clause(
            id_, data["chapter"], body["level"], body["kind"], body["statement"].strip(), body["source"],
            _names(body["ops"], f"{where}: ops"), body["without"], profiles,
        )  # fmt: skip
    return clauses


@cache
def load_clauses() -> dict[str, Clause]:
    """Every clause, by id, in chapter-file order."""
    clauses: dict[str, Clause] = {}
    for path in sorted((ROOT / "clauses").glob("*.yaml")):
        clauses.update(read_clauses(path))
    return clauses


def _tensor_specs(body: Any, where: str) -> tuple[TensorSpec, ...]:
    specs = []
    for name, declared in _mapping(body, where).items():
        if not isinstance(declared, list) or len(declared) not in (2, 3):
            raise SpecDataError(f"{where}: {name}: found {declared!r}, expected [dtype, shape, comparison]")
        dtype, shape, compare = declared[0], declared[1], (declared[2] if len(declared) == 3 else "value")
        if compare not in COMPARE:
            raise SpecDataError(f"{where}: {name}: comparison {compare!r}, expected one of {', '.join(COMPARE)}")
        if shape != "any" and not isinstance(shape, list):
            raise SpecDataError(f"{where}: {name}: shape {shape!r}, expected a list of symbols or any")
        specs.append(TensorSpec(name, dtype, None if shape == "any" else tuple(map(str, shape)), compare))
    return tuple(specs)


def read_ops(path: Path) -> dict[str, Op]:
    """The ops of one file. Raises SpecDataError."""
    ops = {}
    for name, body in read_yaml(path).items():
        where = f"{path.name}: {name}"
        check_keys(body, where, ("chapter", "summary", "inputs", "outputs"), ("stages", "composite"))
        ops[name] = Op(
            name, body["chapter"], body["summary"].strip(),
            _tensor_specs(body["inputs"], where), _tensor_specs(body.get("stages", {}), where),
            _tensor_specs(body["outputs"], where), bool(body.get("composite", False)),
        )  # fmt: skip
    return ops


@cache
def load_ops() -> dict[str, Op]:
    """Every op, by name."""
    ops: dict[str, Op] = {}
    for path in sorted((ROOT / "ops").glob("*.yaml")):
        ops.update(read_ops(path))
    return ops


def read_profile(path: Path) -> Profile:
    """One profile. Raises SpecDataError."""
    data = read_yaml(path)
    if "base" in data:
        return _difference(data, path.name)
    check_keys(data, path.name, ("name", "summary", "upstream", "axes", "dtypes", "context_value_rounding"))
    return Profile(
        data["name"], data["summary"], data["upstream"], _mapping(data["axes"], f"{path.name}: axes"),
        _mapping(data["dtypes"], f"{path.name}: dtypes"),
        _names(data["context_value_rounding"], f"{path.name}: context_value_rounding"),
    )  # fmt: skip


def _difference(data: dict[str, Any], where: str) -> Profile:
    """A profile given by what it does otherwise than its base: axes, dtypes or roundings."""
    optional = ("dtypes", "context_value_rounding")
    check_keys(data, where, ("name", "base", "summary", "upstream", "ops", "axes"), optional)
    if data["base"] not in PROFILES:
        raise SpecDataError(f"{where}: base {data['base']!r}, expected one of {', '.join(PROFILES)}")
    base = load_profile(data["base"])
    axes, dtypes = _mapping(data["axes"], f"{where}: axes"), _mapping(data.get("dtypes", {}), f"{where}: dtypes")
    for key in (*(axes.keys() - base.axes.keys()), *(dtypes.keys() - base.dtypes.keys())):
        raise SpecDataError(f"{where}: {key!r} is no axis or dtype of its base {base.name}")
    roundings = _names(
        data.get("context_value_rounding", list(base.context_value_rounding)), f"{where}: context_value_rounding"
    )
    return Profile(
        data["name"], data["summary"], data["upstream"], {**base.axes, **axes}, {**base.dtypes, **dtypes}, roundings,
        base.name, _names(data["ops"], f"{where}: ops"),
    )  # fmt: skip


@cache
def load_profile(name: str) -> Profile:
    """The profile `name`. Raises SpecDataError if there is none."""
    if name not in ALL_PROFILES:
        raise SpecDataError(f"profile {name!r}, expected one of {', '.join(ALL_PROFILES)}")
    return read_profile(ROOT / "profiles" / f"{name}.yaml")
