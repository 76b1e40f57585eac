"""From a case to a vector: run the reference, bound what it returns, check what was promised, lay it out as bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dflash_spec.files import serialize
from dflash_spec.registry import Op, Profile, load_ops, load_profile
from dflash_spec.tensors import FLOATS, Array, Tensor

from dflash_vectors import VERSION
from dflash_vectors.bounds import MODELS, bounds_of
from dflash_vectors.errors import BuildError
from dflash_vectors.innocents import computing_as, innocents_of
from dflash_vectors.margins import FINDERS, Decision, check_margins
from dflash_vectors.perturb import spread
from dflash_vectors.run import execute, input_tensors, numbers, take
from dflash_vectors.suite import Case

CASE_LIMIT = 256 * 1024
SET_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True)
class Vector:
    """A built case: where it goes within a set, its bytes, and its line of the index."""

    id: str
    path: str
    content: bytes
    entry: Mapping[str, Any]


def exactly(case: Case, role: str, name: str) -> bool:
    """Whether the case promises an exact value of a stage or output that the op compares with a bound."""
    spec = load_ops()[case.op].find(role, name)
    return spec is not None and (name in case.exact or spec.name in case.exact)


def _roles(op: Op, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(role, name) of everything that was returned, in the order of the spec. Raises BuildError for a stray name."""
    order = {spec.name: rank for rank, spec in enumerate((*op.stages, *op.outputs))}
    placed = []
    for arrival, name in enumerate(result):
        role = next((role for role in ("stages", "outputs") if op.find(role, name)), None)
        if role is None:
            raise BuildError(f"op {op.name}: the reference returned {name!r}, which the op does not declare")
        spec = op.find(role, name)
        assert spec is not None
        placed.append((order[spec.name], arrival, role, name))
    return iter((role, name) for _, _, role, name in sorted(placed))


def bounded(case: Case, result: Mapping[str, Array]) -> list[str]:
    """What gets a bound, by name."""
    op = load_ops()[case.op]
    named = []
    for role, name in _roles(op, result):
        spec = op.find(role, name)
        if spec is not None and spec.compare == "bounded" and not exactly(case, role, name):
            named.append(name)
    return named


def judge(
    case: Case, inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile
) -> tuple[dict[str, Array], list[Decision]]:
    """Bounds by name, and decisions; a case that is refused has neither."""
    if set(result) == {"refused"}:
        return {}, []
    wanted = bounded(case, result)
    if load_ops()[case.op].composite:
        found = spread(case.id, case.op, inputs, profile, wanted, strict="tie" not in case.tags)
        return {name: np.full(result[name].shape, found.bounds[name]) for name in wanted}, found.decisions
    bounds = {}
    if case.op in MODELS:
        bounds = bounds_of(case.op, inputs, result, profile)
    if not set(wanted) <= set(bounds):
        raise BuildError(f"case {case.id}: no error model bounds {', '.join(sorted(set(wanted) - set(bounds)))}")
    decisions = list(FINDERS[case.op](inputs, result, profile)) if case.op in FINDERS else []
    return {name: bounds[name] for name in wanted}, decisions


def bound_tensor(bound: Array, where: str) -> Tensor:
    """A bound in F32, never smaller than the float64 it comes from. Raises BuildError if it is not finite."""
    with np.errstate(over="ignore"):
        narrow = bound.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise BuildError(f"{where}: a bound is not finite: expected values far from the dtype's overflow, or `exact`")
    return Tensor.of("F32", np.where(narrow < bound, np.nextafter(narrow, np.float32(np.inf)), narrow))


def prove_exact(case: Case, inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> None:
    """Raise BuildError that names the tensor and the innocent variant that gives another value."""
    names = [name for role, name in _roles(load_ops()[case.op], result) if exactly(case, role, name)]
    for unknown in set(case.exact) - {spec for name in names for spec in (name, f"{name.split('.')[0]}.*")}:
        raise BuildError(f"case {case.id}: exact names {unknown!r}, which the op does not return")
    for innocent in innocents_of(case.profile) if names else ():
        with computing_as(innocent):
            other = execute(case.op, inputs, profile)
        for name in names:
            if not np.array_equal(other[name], result[name], equal_nan=result[name].dtype.kind == "f"):
                at = tuple(int(i) for i in np.argwhere(other[name] != result[name])[0])
                raise BuildError(
                    f"case {case.id}: {name}{list(at)} is promised exact, but is {result[name][at]!r} in the reference "
                    f"and {other[name][at]!r} under the innocent variant {innocent.name}"
                )


def _metadata(case: Case, margins: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": case.id, "op": case.op, "chapter": case.chapter, "clauses": list(case.clauses), "profile": case.profile,
        "geometry": case.geometry, "seed": case.seed, "spec": VERSION, "generator": f"dflash_vectors {VERSION}",
        "margins": dict(margins), "tags": list(case.tags), "catches": case.catches, "effect": case.effect,
        "blame": dict(case.blame),
    }  # fmt: skip


def _expected(case: Case, inputs: Mapping[str, Tensor], sizes: dict[str, int]) -> tuple[
    dict[str, Tensor], dict[str, Any]
]:  # fmt: skip
    """Stages, outputs and bounds by their names in the file, and the margins."""
    op, profile, plain = load_ops()[case.op], load_profile(case.profile), numbers(inputs)
    result = execute(case.op, plain, profile)
    roles = list(_roles(op, result))
    bounds, decisions = judge(case, plain, result, profile)
    prove_exact(case, plain, result, profile)
    tensors: dict[str, Tensor] = {}
    for order, (role, name) in enumerate(roles):
        held = take(op, role, {name: result[name]}, profile, sizes, f"case {case.id}")[name]
        full = f"stage.{order:02d}.{name}" if role == "stages" else f"out.{name}"
        tensors[full] = held
        if name in bounds:
            if held.dtype not in FLOATS or np.isnan(held.values).any():
                raise BuildError(f"case {case.id}: {name}: NaN or an integer cannot have a bound")
            tensors[f"bound.{full}"] = bound_tensor(bounds[name], f"case {case.id}: {name}")
    return tensors, check_margins(case, decisions)


def build(case: Case, expected: bool = True) -> Vector:
    """The vector of a case; inputs alone if `expected` is false.

    Raises BuildError for inputs, bounds, margins or a size that break a rule, and what the reference raises.
    """
    held, sizes = input_tensors(case)
    tensors = {f"in.{name}": tensor for name, tensor in held.items()}
    margins: dict[str, Any] = {}
    if expected:
        computed, margins = _expected(case, held, sizes)
        tensors.update(computed)
    content = serialize(tensors, _metadata(case, margins))
    if len(content) > CASE_LIMIT and case.geometry == "tiny":
        raise BuildError(f"case {case.id}: {len(content)} bytes, expected at most {CASE_LIMIT}")
    path = f"{case.chapter.lower()}/{case.id}.safetensors"
    entry = {
        "path": path, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "op": case.op,
        "profile": case.profile, "clauses": list(case.clauses), "tags": list(case.tags),
    }  # fmt: skip
    return Vector(case.id, path, content, entry)
