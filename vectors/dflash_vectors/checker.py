"""Run implementations on vectors and compare what they answer with what must come out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from dflash_spec.errors import ImplementationError, TensorFileError, UnsupportedError
from dflash_spec.registry import ALL_PROFILES, Profile
from dflash_spec.tensors import FLOATS, Array, Tensor

from dflash_vectors.cases import Entry, Expected, GoldenCase, Loader, load_case
from dflash_vectors.differences import Difference
from dflash_vectors.runners.protocol import Answer, Description, Runner
from dflash_vectors.style import printable
from dflash_vectors.verdict import (
    DAMAGED,
    FAILED,
    PASSED,
    UNSUPPORTED,
    Column,
    Divergence,
    Element,
    Result,
    Run,
    ordered_codes,
    show,
    stale_differences,
)  # fmt: skip

Sink = Callable[[Column, Result], None]


def differing(expected: Expected, got: Array) -> Array:
    """Which elements are wrong, as a bool array of the tensor's shape. `got` has its dtype and shape.

    bits: the codes are equal (any NaN for a NaN). value: the numbers are equal, so both zeros are. bounded:
    |got - expected| <= bound; where one is not finite, the numbers must be equal.
    """
    want = expected.tensor.values
    if expected.tensor.dtype not in FLOATS:
        return np.asarray(want != got)
    both_nan = np.isnan(want) & np.isnan(got)
    if expected.compare == "bits":
        same = np.ascontiguousarray(want).view(np.uint32) == np.ascontiguousarray(got).view(np.uint32)
        return np.asarray(~(same.reshape(want.shape) | both_nan))
    equal = (want == got) | both_nan
    if expected.bound is None:
        return np.asarray(~equal)
    return np.asarray(~(equal | (_distance(want, got) <= expected.bound)))


def _distance(want: Array, got: Array) -> Array:
    """|got - want| in float64; infinite where either is not finite."""
    finite = np.isfinite(want) & np.isfinite(got)
    gap = np.abs(np.where(finite, got, 0).astype(np.float64) - np.where(finite, want, 0).astype(np.float64))
    return np.where(finite, gap, np.inf)


def compare_tensor(expected: Expected, got: Tensor) -> Divergence | None:
    """How one tensor of an answer differs; None if it does not."""
    want = expected.tensor
    if got.dtype != want.dtype:
        return Divergence(expected.label, f"dtype {got.dtype}, expected {want.dtype}")
    if got.shape != want.shape:
        return Divergence(expected.label, f"shape {list(got.shape)}, expected {list(want.shape)}")
    wrong = differing(expected, got.values)
    places = np.argwhere(wrong)
    if not len(places):
        return None
    first = tuple(int(n) for n in places[0])
    worst = first
    if want.dtype in FLOATS:
        gap = _distance(want.values, got.values)
        if expected.bound is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                gap = np.where(gap == 0, 0.0, gap / expected.bound)
        worst = tuple(int(n) for n in places[int(np.argmax(gap[wrong]))])
    return Divergence(
        expected.label, "", _element(expected, got, first), _element(expected, got, worst),
        len(places), want.values.size,
    )  # fmt: skip


def _element(expected: Expected, got: Tensor, index: tuple[int, ...]) -> Element:
    want = expected.tensor
    ulps = bound = bounds = None
    if want.dtype in FLOATS:
        if not (np.isnan(want.values[index]) or np.isnan(got.values[index])):
            ulps = abs(int(ordered_codes(want)[index]) - int(ordered_codes(got)[index]))
        if expected.bound is not None:
            bound = float(expected.bound[index])
            gap = float(_distance(want.values[index], got.values[index]))
            bounds = gap / bound if bound else float("inf")
    return Element(index, show(want, index), show(got, index), ulps, bound, bounds)


def compare(case: GoldenCase, answer: Answer) -> tuple[Divergence, ...]:
    """Every divergence of an answer, earliest first: stages, outputs, then what should not be there.

    Stages are optional, but one that is given is judged; `refused = 0` may be said or left out.
    """
    found = []
    for expected in case.expected:
        label = expected.label
        divergence = None
        if label in answer.problems:
            divergence = Divergence(label, printable(answer.problems[label]))
        elif label in answer.tensors:
            divergence = compare_tensor(expected, answer.tensors[label])
        elif expected.role == "outputs" and not (label == "out.refused" and not expected.tensor.values.any()):
            divergence = Divergence(label, "missing from the answer")
        if divergence is not None:
            found.append(divergence)
    expected_labels = {expected.label for expected in case.expected}
    for label in sorted({*answer.tensors, *answer.problems} - expected_labels):
        if label == "out.refused" and label in answer.tensors and not answer.tensors[label].values.any():
            continue  # to say so where nothing is to be refused is no mistake
        role, _, name = label.partition(".")
        if role != "stage" or case.entry.op.find("stages", name) is None:
            shown = printable(label)
            found.append(Divergence(shown, f"unexpected: this vector of op {case.entry.op.name} has no {shown}"))
    return tuple(found)


def blamed_clause(case: GoldenCase, divergences: Sequence[Divergence]) -> str:
    """The clause that the earliest divergence breaks."""
    return case.blame(divergences[0].label.partition(".")[2])


def judge(runner: Runner, description: Description, entry: Entry, load: Loader = load_case) -> Result:
    """One vector of one implementation, from file to verdict. Raises nothing but what interrupts a run.

    A damaged vector is told even where its op is not supported: that op may be what is damaged.
    """
    try:
        case = load(entry)
    except TensorFileError as error:
        return Result(entry, DAMAGED, printable(error))
    lacks = description.lacks(entry.op, entry.profile)
    if lacks:
        return Result(entry, UNSUPPORTED, lacks)
    start = time.perf_counter()
    try:
        answer = runner.run(case)
    except ImplementationError as error:
        return Result(entry, FAILED, printable(error), entry.clauses[0], seconds=time.perf_counter() - start)
    seconds = time.perf_counter() - start
    divergences = compare(case, answer)
    if not divergences:
        return Result(entry, PASSED, seconds=seconds)
    return Result(entry, FAILED, "", blamed_clause(case, divergences), divergences, seconds, answer=answer)


def explained(result: Result, description: Description, known: Iterable[Difference]) -> Result:
    """The result with the record that explains its failure, if there is one."""
    names = {"op": result.entry.op.name, "case": result.entry.id, "clause": result.clause}
    for difference in known if result.status == FAILED else ():
        if difference.explains(description.name, description.version, description.profile, **names):
            return replace(result, difference=difference)
    return result


def profiles_of(entries: Iterable[Entry]) -> Iterator[tuple[Profile, tuple[Entry, ...]]]:
    """The entries of each profile that has any, in the spec's order."""
    entries = tuple(entries)
    for name in ALL_PROFILES:
        own = tuple(entry for entry in entries if entry.profile.name == name)
        if own:
            yield own[0].profile, own


def check(
    run: Run, runners: Sequence[Runner], known: Sequence[Difference], sink: Sink, load: Loader = load_case
) -> None:
    """Judge every entry of `run` on every implementation; each result is in `run` and `sink` before the next starts.

    An interrupt ends the check and is noted in `run`; what was gathered stays.
    """
    try:
        for runner in runners:
            _check_one(run, runner, known, sink, load)
    except KeyboardInterrupt:
        run.interrupted = True
    run.stale.extend(stale_differences(known, run.columns))


def started(runner: Runner, profile: Profile, silent: list[str], broken: list[str]) -> Description | None:
    """What `runner` says of itself in a profile; None, and a sentence in one of the lists, where it does not run."""
    try:
        return runner.start(profile.name)
    except UnsupportedError as error:
        silent.append(printable(f"{runner.spec} does not speak profile {profile.name}: {error}"))
    except ImplementationError as error:
        broken.append(printable(f"{runner.spec} could not be run in profile {profile.name}: {error}"))
    return None


def _check_one(run: Run, runner: Runner, known: Sequence[Difference], sink: Sink, load: Loader) -> None:
    spoken, silent, before = False, list[str](), len(run.broken)
    try:
        for profile, entries in profiles_of(run.entries):
            description = started(runner, profile, silent, run.broken)
            if description is None:
                continue
            spoken = True
            column = Column(runner.spec, description)
            run.columns.append(column)
            for entry in entries:
                result = explained(judge(runner, description, entry, load), description, known)
                column.results.append(result)
                sink(column, result)
    finally:
        runner.close()
    run.silent.extend(silent)
    if silent and not spoken and len(run.broken) == before:
        run.broken.append(printable(f"{runner.spec} speaks none of the profiles asked for"))
