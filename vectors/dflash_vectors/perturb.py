"""Bounds of composites, by Monte Carlo arithmetic (Parker 1997).

Worst cases of single steps, carried through a whole model, end beyond any use. Instead the reference runs a few
times with every rounding point moved at random by up to half an ulp before it rounds, and every contraction moved by
up to one FP32 unit roundoff of the sum of its terms' magnitudes. The bound of a tensor is MULTIPLE times the largest
deviation seen anywhere in it. Decisions that the runs take are recorded with the numbers that they rest on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs as keyed
from dflash_vectors.bounds.algebra import U, ulp
from dflash_vectors.errors import BuildError
from dflash_vectors.faults import Function, patched
from dflash_vectors.margins import Decision, edge, gaps, lead
from dflash_vectors.run import execute

REPETITIONS = 8
REPETITIONS_OF_DECISIONS = 4
"""Where nothing gets a bound: decisions ask for a margin of MULTIPLE deviations in any case."""
MULTIPLE = 4.0


@dataclass(frozen=True)
class Taken:
    """One decision as it was taken: what kind, and the numbers that met.

    proposals, tokens: logits. draw: weights, and the goal. accept: a probability, and what it must exceed. rank: the
    scores of all rows, and which rank among them is decided. cut: what a filter compares, and with what. top: logits,
    and how many of them are kept. In a step of DFlash2's walk, `ids` are the candidates that the numbers belong to:
    their order may change without consequence.
    """

    kind: str
    numbers: Array
    goal: float = 0.0
    ids: Array | None = None


def _watch(
    taken: list[Taken], steps: list[Array], see: Callable[..., Sequence[Taken]]
) -> Callable[[Function], Function]:
    """Notes what is seen; what a step of a walk decides is noted with the candidates of the step."""

    def wrap(true: Function) -> Function:
        def watched(*args: Any, **named: Any) -> Any:
            for seen in see(*args, **named):
                own = steps and seen.kind in ("proposals", "draw")
                taken.append(replace(seen, ids=steps.pop(0)) if own else seen)
            return true(*args, **named)

        return watched

    return wrap


def _walk(steps: list[Array]) -> Callable[[Function], Function]:
    def wrap(true: Function) -> Function:
        def watched(candidates: Array, *args: Any, **named: Any) -> Any:
            steps[:] = list(np.array(candidates))
            try:
                return true(candidates, *args, **named)
            finally:
                steps.clear()

        return watched

    return wrap


def _proposals(rows: Array) -> list[Taken]:
    return [Taken("proposals", np.array(row)) for row in rows]


def _tokens(logits: Array, public: int, profile: Profile) -> list[Taken]:
    return [Taken("tokens", np.array(row)) for row in logits[:, :public]]


def _rank(weights: Sequence[Any], goal: Any) -> list[Taken]:
    return [Taken("draw", np.array([float(w) for w in weights]), float(goal))]


def _accepts(proposal: int, support: Array, p: Sequence[Any], u: Any) -> list[Taken]:
    held = sum(float(weight) for token, weight in zip(support, p, strict=True) if token == proposal)
    return [Taken("accept", np.array([held]), float(u))]


def _ranks(scores: Array, ids: Array, top: int) -> list[Taken]:
    return [Taken("rank", np.array(row), rank) for row in scores for rank in range(top)]


def _ratios(p: float, q: float, u: float) -> list[Taken]:
    return [Taken("accept", np.array([float(p)]), float(u) * float(q))]


def _kept(weights: Array, min_p: float, top_p: float) -> list[Taken]:
    """Ranked weights against min-p, and against top-p the cumulative shares of those that it leaves.

    The last share of all is 1 in any case.
    """
    held = np.array(weights, dtype=np.float64)
    relative, shares = held / held[0], np.cumsum(held) / held.sum()
    taken = [Taken("cut", relative, float(min_p))] if min_p > 0 else []
    return [*taken, Taken("cut", shares[:-1][relative[:-1] >= min_p], float(top_p))] if top_p < 1 else taken


SMALLEST_CAP = 20
"""A top-k below this was asked for; at this cap, and without one, what is left out is a tail that hardly counts."""


def _capped(rows: Array, cap: int) -> list[Taken]:
    return [Taken("top", np.array(row), cap) for row in rows] if cap < min(SMALLEST_CAP, rows.shape[1]) else []


WATCHED: dict[str, Callable[..., Sequence[Taken]]] = {
    "dflash_reference.head.first_largest": _proposals,
    "dflash_reference.processing.greedy": _tokens,
    "dflash_reference.processing.rank": _rank,
    "dflash_reference.law.accepts": _accepts,
    "dflash_reference.head.ranked": _ranks,
    "dflash_reference.law.covered_or_under": _ratios,
    "dflash_reference.law.under": _ratios,
    "dflash_reference.filters.kept": _kept,
    "dflash_reference.processing.capped": _capped,
}


FILTERING = ("cut", "top")


def _judge(taken: list[Taken]) -> Callable[[Function], Function]:
    """Forgets what filters decided in rows after the one that ended the round: nothing reads these."""

    def wrap(true: Function) -> Function:
        def watched(state: Any, proposals: Array, *rest: Any) -> Any:
            before, rows = len(taken), len(proposals) + 1
            verdict = true(state, proposals, *rest)
            for kind in FILTERING:
                places = [place for place in range(before, len(taken)) if taken[place].kind == kind]
                for place in reversed(places[len(places) // rows * (int(verdict.accepted) + 1) :]):
                    del taken[place]
            return verdict

        return watched

    return wrap


@contextmanager
def watching() -> Iterator[list[Taken]]:
    """Collects the decisions that the reference takes meanwhile."""
    taken, steps = list[Taken](), list[Array]()
    with ExitStack() as stack:
        stack.enter_context(patched("dflash_reference.selector.walk", _walk(steps)))
        stack.enter_context(patched("dflash_reference.engine.judge", _judge(taken)))
        for target, see in WATCHED.items():
            stack.enter_context(patched(target, _watch(taken, steps, see)))
        yield taken


@contextmanager
def perturbed(key: str) -> Iterator[None]:
    """The reference with every rounding point moved at random; equal keys move it equally."""
    calls = iter(range(1 << 62))

    def noise(shape: tuple[int, ...]) -> Array:
        return (keyed.hashes(f"{key}/{next(calls)}", shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5

    def rounding(true: Function) -> Function:
        def round_to(x: Any, dtype: str) -> Any:
            exact = np.asarray(x, dtype=np.float64)
            return true(exact + noise(exact.shape) * np.where(np.isfinite(exact), ulp(exact, dtype), 0.0), dtype)

        return round_to

    def contracting(true: Function) -> Function:
        def contract(x: Array, w: Array) -> Array:
            total: Array = true(x, w)
            size: Array = true(np.abs(x), np.abs(w))
            return total + 2 * U * noise(total.shape) * size

        return contract

    with (
        patched("dflash_reference.num.round_to", rounding),
        patched("dflash_reference.num.contract", contracting),
    ):
        yield


def moved_by(true: Taken, other: Taken) -> float:
    """How far a perturbation moved what a decision rests on: its lead, a cumulative sum, a probability."""
    if true.ids is not None and other.ids is not None:
        return _moved_step(true, other, true.ids, other.ids)
    if true.kind == "draw":
        sums = np.abs(np.cumsum(other.numbers) - np.cumsum(true.numbers))
        return float(sums.max()) + abs(other.goal - true.goal)
    if true.kind == "accept":
        return float(np.abs(other.numbers - true.numbers)[0]) + abs(other.goal - true.goal)
    if true.kind == "rank":
        return _moved_rank(true, other.numbers - true.numbers)
    if true.kind == "cut":
        return float(np.abs(other.numbers - true.numbers).max(initial=0.0))
    finite = np.isfinite(true.numbers)
    best = int(np.argmax(true.numbers))
    if true.kind == "top":
        best = int(np.argsort(-true.numbers, kind="stable")[int(true.goal) - 1])
    shifts = np.where(finite, other.numbers, 0.0) - np.where(finite, true.numbers, 0.0)
    return float(np.abs(shifts - shifts[best]).max())


def _moved_step(true: Taken, other: Taken, ids: Array, moved_ids: Array) -> float:
    """As moved_by, candidate by candidate; infinite where the one that was chosen is none any more."""
    places = {int(id_): place for place, id_ in enumerate(moved_ids)}
    if true.kind == "draw":
        sums = np.cumsum(true.numbers)
        chosen = min(int(np.searchsorted(sums, true.goal, side="right")), len(sums) - 1)
        place = places.get(int(ids[chosen]))
        if place is None:
            return float("inf")
        moved = np.cumsum(other.numbers)
        begins = moved[place] - other.numbers[place] - (sums[chosen] - true.numbers[chosen])
        return float(max(abs(begins), abs(moved[place] - sums[chosen]))) + abs(other.goal - true.goal)
    best = int(np.argmax(true.numbers))
    if int(ids[best]) not in places:
        return float("inf")
    common = [(rank, places[int(id_)]) for rank, id_ in enumerate(ids) if int(id_) in places]
    ranks, others = (list(column) for column in zip(*common, strict=True))
    shifts = other.numbers[others] - true.numbers[ranks]
    return float(np.abs(shifts - shifts[ranks.index(best)]).max())


def _moved_rank(true: Taken, shifts: Array) -> float:
    """The largest change of the ranked row's lead over any later row, in proportion to how far that row is behind."""
    order = np.argsort(-true.numbers, kind="stable")
    ranked, later = order[int(true.goal)], order[int(true.goal) + 1 :]
    behind = true.numbers[ranked] - true.numbers[later]
    share = np.divide(behind[:1], behind, out=np.ones_like(behind), where=behind > 0)
    return float((np.abs(shifts[later] - shifts[ranked]) * share).max(initial=0.0))


def decision_of(true: Taken, moved: float) -> Decision:
    """The margin of a decision, and its doubt where perturbations moved what it rests on by so much at most."""
    if true.kind == "draw":
        return Decision(true.kind, edge(true.goal, true.numbers), MULTIPLE * moved)
    if true.kind == "accept":
        return Decision(true.kind, abs(true.goal - float(true.numbers[0])), MULTIPLE * moved)
    if true.kind == "rank":
        return Decision(true.kind, float(gaps(true.numbers, int(true.goal) + 1)[-1]), MULTIPLE * moved)
    if true.kind == "cut":
        return Decision(true.kind, float(np.abs(true.numbers - true.goal).min(initial=np.inf)), MULTIPLE * moved)
    if true.kind == "top":
        finite, count = true.numbers[np.isfinite(true.numbers)], int(true.goal)
        margin = float(gaps(finite, count)[-1]) if count < len(finite) else np.inf
        return Decision(true.kind, margin, MULTIPLE * moved)
    return Decision(true.kind, lead(true.numbers), MULTIPLE * moved)


@dataclass(frozen=True)
class Spread:
    """Scalar bounds by tensor name, and the decisions in the order in which they were taken."""

    bounds: Mapping[str, float]
    decisions: list[Decision]


def spread(
    id_: str, op: str, inputs: Mapping[str, Any], profile: Profile, names: Sequence[str], strict: bool = True
) -> Spread:
    """The bounds of the float tensors `names` of a composite, and its decisions with margin and doubt.

    The order of candidates is a decision only where the op returns them: elsewhere their tokens and laws are.
    Raises BuildError if a perturbed run decides differently and `strict` is set.
    """
    with watching() as taken:
        true = execute(op, inputs, profile)
    largest = dict.fromkeys(names, 0.0)
    moves = [0.0] * len(taken)
    for repetition in range(REPETITIONS if names else REPETITIONS_OF_DECISIONS):
        with perturbed(f"{id_}/{repetition}"), watching() as moved_taken:
            moved = execute(op, inputs, profile)
        for name in names:
            if moved[name].shape == true[name].shape:
                largest[name] = max(largest[name], float(np.abs(moved[name] - true[name]).max(initial=0.0)))
        kinds, moved_kinds = [t.kind for t in taken], [t.kind for t in moved_taken]
        if strict and kinds != moved_kinds:
            raise BuildError(
                f"case {id_}: perturbation {repetition} takes {len(moved_kinds)} decisions, the reference "
                f"{len(kinds)}: some decision has no margin"
            )
        for index, (before, after) in enumerate(zip(taken, moved_taken, strict=False)):
            if before.kind == after.kind and before.numbers.shape == after.numbers.shape:
                moves[index] = max(moves[index], moved_by(before, after))
        others = [
            name for name, value in true.items() if value.dtype.kind in "iu" and not np.array_equal(moved[name], value)
        ]
        if strict and others:
            raise BuildError(f"case {id_}: perturbation {repetition} gives other {', '.join(others)}")
    decisions = [
        decision_of(t, moved) for t, moved in zip(taken, moves, strict=True) if t.kind != "rank" or "candidates" in true
    ]
    return Spread({name: MULTIPLE * value for name, value in largest.items()}, decisions)
