"""Run the reference on a case: inputs checked against the op's declaration, results in the order of the spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dflash_reference import operations
from dflash_spec.errors import DFlashError, TensorError
from dflash_spec.registry import Op, Profile, TensorSpec, load_ops, load_profile
from dflash_spec.tensors import Array, Tensor

from dflash_vectors.errors import BuildError
from dflash_vectors.suite import Case


def check_shape(spec: TensorSpec, shape: tuple[int, ...], sizes: dict[str, int], where: str) -> None:
    """Raise BuildError if `shape` is not the declared one; `sizes` collects what each symbol stands for."""
    if spec.shape is None:
        return
    known = [int(s) if s.isdigit() else sizes.get(s) for s in spec.shape]
    if len(known) != len(shape) or any(k not in (None, n) for k, n in zip(known, shape, strict=True)):
        stands = ", ".join(f"{s}={sizes[s]}" for s in spec.shape if s in sizes)
        raise BuildError(
            f"{where}: shape {list(shape)}, expected [{', '.join(spec.shape)}] with {stands or 'any sizes'}"
        )
    sizes.update(zip(spec.shape, shape, strict=True))


def take(
    op: Op, role: str, values: Mapping[str, Any], profile: Profile, sizes: dict[str, int], where: str
) -> dict[str, Tensor]:
    """`values` as tensors of the declared dtypes. Raises BuildError that names the tensor."""
    tensors = {}
    for name, value in values.items():
        spec = op.find(role, name)
        if spec is None:
            raise BuildError(f"{where}: {name}: op {op.name} has no such {role[:-1]}")
        try:
            tensors[name] = Tensor.of(spec.dtype_for(profile), value, f"{where}: {name}")
        except TensorError as error:
            raise BuildError(str(error)) from error
        check_shape(spec, tensors[name].shape, sizes, f"{where}: {name}")
    return tensors


def input_tensors(case: Case) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The case's inputs as tensors, and the sizes of the shape symbols. Raises BuildError."""
    op, sizes = load_ops()[case.op], dict[str, int]()
    tensors = take(op, "inputs", case.inputs, load_profile(case.profile), sizes, f"case {case.id}")
    for spec in op.inputs:
        if not spec.name.endswith("*") and spec.name not in tensors:
            raise BuildError(f"case {case.id}: {spec.name}: missing, op {op.name} takes it")
    return tensors, sizes


def numbers(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the reference and the error models read: float64 arrays, integer arrays, and Python scalars for 0-d."""
    plain: dict[str, Any] = {}
    for name, tensor in tensors.items():
        values = tensor.values
        wide: Array = values.astype(np.float64 if values.dtype.kind == "f" else values.dtype)
        plain[name] = wide.item() if wide.ndim == 0 else wide
    return plain


def execute(op: str, inputs: Mapping[str, Any], profile: Profile) -> dict[str, Array]:
    """Every stage and output of the reference. An op with an output `refused` returns that alone where it refuses."""
    try:
        return operations.run(op, inputs, profile)
    except DFlashError:
        if load_ops()[op].find("outputs", "refused") is None:
            raise
        return {"refused": np.array(1, dtype=np.int32)}


def run_case(case: Case) -> dict[str, Array]:
    """The reference's result on a case. Raises BuildError for bad inputs, and what the reference raises."""
    tensors, _ = input_tensors(case)
    return execute(case.op, numbers(tensors), load_profile(case.profile))
