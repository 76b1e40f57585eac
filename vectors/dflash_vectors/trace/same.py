"""Two traces of one implementation: whether it did the same twice, bit by bit.

What should not matter to an engine is tried this way: a restored prefix against a fresh one, a request alone against
one in a batch, a second run. Digests of state mean something only here: no two implementations lay out their state
alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np
from dflash_spec.errors import TraceError
from dflash_spec.tensors import FLOATS, Tensor

from dflash_vectors.trace.format import Configuration, Prefill, Round
from dflash_vectors.trace.reader import Trace

OWN = ("run", "chunks", "capacity")
"""What two runs of one request may have each for itself."""
NUMBERS = ("frontier", "anchor", "extent", "accepted", "kept")


@dataclass(frozen=True)
class Difference:
    """The first place where two traces part; the prefill is round -1. `left` and `right` are what they have there."""

    round: int
    place: str
    left: str
    right: str


@dataclass
class Sameness:
    """How far two traces are the same: rounds, tensors and digests that were compared, and where they part."""

    rounds: int = 0
    tensors: int = 0
    digests: int = 0
    difference: Difference | None = None


def compare(left: Trace, right: Trace) -> Sameness:
    """Compare two traces up to the first difference. What only one of them recorded is not compared.

    Raises TraceError where they are not of one implementation and one request, or where one is damaged.
    """
    _check_comparable(left.configuration, right.configuration)
    done = Sameness()
    first, second = left.prefill, right.prefill
    if first is not None and second is not None:
        done.difference = next(_differences(-1, first, second, done), None)
        if done.difference is None and first.first != second.first:
            done.difference = Difference(-1, "decision.first", str(first.first), str(second.first))
    for number in range(min(len(left), len(right))):
        if done.difference is not None:
            return done
        done.rounds += 1
        done.difference = next(_in_round(left.round(number), right.round(number), done), None)
    if done.difference is None and len(left) != len(right):
        shorter = min(len(left), len(right))
        there = ("a round", "none") if len(left) > shorter else ("none", "a round")
        done.difference = Difference(shorter, "in.frontier", *there)
    return done


def _check_comparable(left: Configuration, right: Configuration) -> None:
    for member in fields(Configuration):
        values = getattr(left, member.name), getattr(right, member.name)
        if member.name not in OWN and values[0] != values[1]:
            shown = [str(value) if len(str(value)) < 60 else "another" for value in values]
            raise TraceError(
                f"{member.name} is {shown[0]} in one trace and {shown[1]} in the other, expected two runs of one "
                "request by one implementation"
            )


def _in_round(left: Round, right: Round, done: Sameness) -> Iterator[Difference]:
    for name in NUMBERS:
        values = getattr(left, name), getattr(right, name)
        if values[0] != values[1]:
            kind = "decision" if name in ("accepted", "kept") else "in"
            yield Difference(left.number, f"{kind}.{name}", str(values[0]), str(values[1]))
    for name in ("proposals", "licensed"):
        lists = getattr(left, name).tolist(), getattr(right, name).tolist()
        if lists[0] != lists[1]:
            yield Difference(left.number, f"decision.{name}", str(lists[0]), str(lists[1]))
    yield from _differences(left.number, left, right, done)


def _differences(number: int, left: Prefill | Round, right: Prefill | Round, done: Sameness) -> Iterator[Difference]:
    for name in sorted(left.frontiers.keys() & right.frontiers.keys()):
        if left.frontiers[name] != right.frontiers[name]:
            values = str(left.frontiers[name]), str(right.frontiers[name])
            yield Difference(number, f"frontier.{name}", *values)
    kinds: tuple[tuple[str, Mapping[str, Tensor], Mapping[str, Tensor]], ...] = (
        ("stage", left.stages, right.stages), ("extra", left.extras, right.extras),
    )  # fmt: skip
    for kind, ours, theirs in kinds:
        for name in [name for name in ours if name in theirs]:
            done.tensors += 1
            yield from _bits(number, f"{kind}.{name}", ours[name], theirs[name])
    for name in sorted(left.hashes.keys() & right.hashes.keys()):
        done.digests += 1
        if left.hashes[name] != right.hashes[name]:
            yield Difference(number, f"hash.{name}", left.hashes[name].hex()[:16], right.hashes[name].hex()[:16])


def _bits(number: int, place: str, left: Tensor, right: Tensor) -> Iterator[Difference]:
    """The first element whose bits differ."""
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        yield Difference(number, place, f"{left.dtype} {list(left.shape)}", f"{right.dtype} {list(right.shape)}")
        return
    codes = [
        np.ascontiguousarray(tensor.values).view(np.uint32).reshape(tensor.shape)
        if tensor.dtype in FLOATS else tensor.values
        for tensor in (left, right)
    ]  # fmt: skip
    wrong = np.argwhere(codes[0] != codes[1])
    if len(wrong):
        index = tuple(int(n) for n in wrong[0])
        values = f"{left.values[index]:.9g}", f"{right.values[index]:.9g}"
        yield Difference(number, f"{place}{list(index)}", *values)
