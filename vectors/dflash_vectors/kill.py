"""The kill matrix: every fault of the registry against the vectors, which alone must notice it.

A fault runs only on vectors that reach the function it replaces: first those whose first clause it breaks, then those
that test a broken clause beside another, then the rest; single ops before composites, small vectors before large ones.
It is dead when a vector of its profiles decisively fails: another exact value, or more than DECISIVE bounds away. The
first vector to do so is its killer, and the clause that this vector blames must be one of the fault's.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from dflash_spec.errors import TensorError
from dflash_spec.registry import load_ops, load_profile
from dflash_spec.tensors import Array, Tensor

from dflash_vectors.cases import GoldenCase, load_case, read_index
from dflash_vectors.checker import blamed_clause, compare
from dflash_vectors.errors import BuildError
from dflash_vectors.faults import Fault, Function, all_faults, applied, patched
from dflash_vectors.index import PROCESSES, workers
from dflash_vectors.run import execute, numbers
from dflash_vectors.runners.protocol import Answer
from dflash_vectors.verdict import Divergence

DECISIVE = 2.0
"""Bounds that a bounded element must be off by, so that no port of a broken rule slips through."""
PARTS = 4
"""Shares of the vectors for each process, so that a slow share does not keep the other waiting."""
PATIENCE_SECONDS = 20.0
"""A faulty run that is not done by then has died of a loop without end."""


@dataclass(frozen=True)
class Death:
    """What became of a fault. `killer` is empty where it survives; `at` is the tensor that gave it away."""

    fault: Fault
    reached: int
    killer: str = ""
    blamed: str = ""
    at: str = ""

    @property
    def problem(self) -> str:
        """Why this fault fails the run; empty if all is well."""
        if not self.reached:
            return f"no vector reaches {self.fault.target}"
        if not self.killer:
            return f"survives all {self.reached} vectors that reach {self.fault.target}"
        if self.blamed not in self.fault.clauses:
            return f"{self.killer} blames {self.blamed}, expected {' or '.join(self.fault.clauses)}"
        return ""


class Stuck(Exception):
    """A faulty run took too long."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Raise Stuck in the main thread when the time is over."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Stuck

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answer_of(case: GoldenCase, result: Mapping[str, Array]) -> Answer:
    """A result of the reference as the checker takes it: what is not representable is a problem."""
    answer = Answer()
    op = load_ops()[case.entry.op.name]
    for name, value in result.items():
        role = "stages" if op.find("stages", name) else "outputs"
        spec = op.find(role, name)
        label = f"{'stage' if role == 'stages' else 'out'}.{name}"
        if spec is None:
            answer.problems[label] = "not declared"
            continue
        try:
            answer.tensors[label] = Tensor.of(spec.dtype_for(case.entry.profile), value, label)
        except TensorError as error:
            answer.problems[label] = str(error)
    return answer


def decisive(divergence: Divergence) -> bool:
    """Whether a port with this divergence could not be an honest one."""
    worst = divergence.worst
    return worst is None or worst.bound is None or (worst.bounds or 0.0) > DECISIVE


@cache
def load_set(folder: Path) -> dict[str, GoldenCase]:
    """The cases of a set in the order in which faults meet them."""
    cases = [load_case(entry) for entry in read_index(folder)]
    cases.sort(key=lambda case: (case.entry.op.composite, case.entry.size, case.entry.id))
    return {case.entry.id: case for case in cases}


def _run(case: GoldenCase) -> dict[str, Array]:
    return execute(case.entry.op.name, numbers(case.inputs), load_profile(case.entry.profile.name))


def _tracer(target: str, reached: set[str]) -> Callable[[Function], Function]:
    def wrap(true: Function) -> Function:
        def traced(*args: Any, **named: Any) -> Any:
            reached.add(target)
            return true(*args, **named)

        return traced

    return wrap


def reach(folder: Path, ids: Sequence[str], targets: Iterable[str]) -> dict[str, set[str]]:
    """Those of the functions `targets` that each vector runs. Raises BuildError if the reference fails a vector."""
    cases, found, results, reached = load_set(folder), {}, {}, set[str]()
    with ExitStack() as stack:
        for target in sorted(targets):
            stack.enter_context(patched(target, _tracer(target, reached)))
        for id_ in ids:
            reached.clear()
            results[id_] = _run(cases[id_])
            found[id_] = set(reached)
    for id_ in ids:
        failures = compare(cases[id_], answer_of(cases[id_], results[id_]))
        if failures:
            raise BuildError(
                f"{id_}: the reference without a fault fails at {failures[0].label}: generate the set anew"
            )
    return found


def attack(case: GoldenCase, fault: Fault) -> tuple[str, str]:
    """(blamed clause, tensor) if the fault decisively fails on a vector, else two empty texts."""
    try:
        with patience(PATIENCE_SECONDS), applied(fault):
            result = _run(case)
    except Stuck:
        return case.entry.clauses[0], f"nothing within {PATIENCE_SECONDS:g} s"
    except Exception as error:
        return case.entry.clauses[0], type(error).__name__
    failures = compare(case, answer_of(case, result))
    if any(decisive(failure) for failure in failures):
        return blamed_clause(case, failures), failures[0].label
    return "", ""


def kill(folder: Path, fault: Fault, ids: Sequence[str]) -> Death:
    """Run a fault on the vectors that reach it, until one kills it."""
    cases = load_set(folder)
    for id_ in ids:
        blamed, at = attack(cases[id_], fault)
        if blamed:
            return Death(fault, len(ids), id_, blamed, at)
    return Death(fault, len(ids))


def candidates(folder: Path, fault: Fault, reached: Mapping[str, set[str]]) -> list[str]:
    """The vectors that a fault runs on, in order; `reached` maps ids to the functions that they run."""
    entries = [case.entry for id_, case in load_set(folder).items() if fault.target in reached.get(id_, ())]
    fitting = [entry for entry in entries if entry.profile.name in fault.profiles]
    broken = set(fault.clauses)
    fitting.sort(key=lambda entry: (entry.clauses[0] not in broken, not broken & set(entry.clauses)))
    return [entry.id for entry in fitting]


def _reach_of(task: tuple[Path, Sequence[str], frozenset[str]]) -> dict[str, set[str]]:
    return reach(*task)


def _kill_named(task: tuple[Path, str, Sequence[str]]) -> Death:
    folder, name, ids = task
    return kill(folder, {fault.name: fault for fault in all_faults()}[name], ids)


def kill_all(folder: Path, faults: Sequence[Fault], processes: int = PROCESSES) -> Iterator[Death]:
    """What becomes of each fault, in the order given. Raises BuildError if the reference fails a vector."""
    targets = frozenset(fault.target for fault in faults)
    ids = list(load_set(folder))
    reached: dict[str, set[str]] = {}
    with workers(processes) as pool:
        parts = [ids[at :: PARTS * processes] for at in range(PARTS * processes)]
        for found in pool.map(_reach_of, [(folder, part, targets) for part in parts]):
            reached |= found
        yield from pool.map(_kill_named, [(folder, fault.name, candidates(folder, fault, reached)) for fault in faults])
