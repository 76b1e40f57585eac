"""What an adapter is, looked at once, and what it gives, held against what it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import le

import torch
from dflash_spec.errors import RequestError, StateError, TensorError
from torch import Tensor

from dflash_accelerated.arguments import check_integer, shown
from dflash_accelerated.joint import Proposals, Steps
from dflash_accelerated.protocols import Draft, LogitRows, Orchestrator, Proposal, SequenceState, Target, TargetStep

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
OPTIONAL = ("reserve", "planned_bytes", "held_bytes", "capture", "products", "working_bytes")
"""Methods that an adapter may have."""
BORROWED = ("embed", "logits", "choose", "top")
"""Methods of a vocabulary, which some drafts need."""
MOST = 2**31 - 1
"""Ids or layers."""


def check_target(target: Target) -> None:
    """Raise RequestError for what is no target: the first attribute that is missing, or is not what it must be."""
    _check_adapter("target", target, ("vocabulary", "device", "open", "forward"), ("open", "forward"))
    vocabulary = target.vocabulary
    _check_parts("target.vocabulary", vocabulary, ("public",))
    check_integer("target.vocabulary.public", vocabulary.public, 1, MOST)
    _check_methods("target.vocabulary", vocabulary, [name for name in BORROWED if hasattr(vocabulary, name)])
    if not isinstance(target.device, torch.device):
        raise RequestError(f"target.device is {shown(target.device)}, expected a torch.device")


def check_draft(draft: Draft) -> None:
    """Raise RequestError for what is no draft, as `check_target`."""
    _check_adapter("draft", draft, ("taps", "open", "append", "propose"), ("open", "append", "propose"))
    if not isinstance(draft.taps, tuple):
        raise RequestError(f"draft.taps is {shown(draft.taps)}, expected a tuple of the target's layers")
    for at, tap in enumerate(draft.taps):
        check_integer(f"draft.taps[{at}]", tap, 0, MOST)
    borrows = _borrows(draft)
    if not isinstance(borrows, tuple) or not all(each in BORROWED for each in borrows):
        raise RequestError(f"draft.borrows is {shown(borrows)}, expected a tuple of some of {', '.join(BORROWED)}")


def check_plan(plan: Orchestrator) -> Orchestrator:
    """The plan. Raises RequestError for what is none, as `check_target`."""
    methods = ("start", "round", "keep", "fork", "close")
    _check_adapter("what orchestrator gave", plan, methods, methods)
    return plan


def check_borrowed(target: Target, draft: Draft) -> None:
    """Raise RequestError where a draft says in `borrows` that it needs what the target's vocabulary has not."""
    _check_parts(f"target.vocabulary, from which {_kind(draft)} borrows,", target.vocabulary, _borrows(draft))


def _borrows(draft: Draft) -> tuple[str, ...]:
    """Which methods of a vocabulary a draft calls, as far as it says so."""
    return getattr(draft, "borrows", ())


def check_states(target: Target, draft: Draft) -> None:
    """Have both open a sequence of one row and close it: RequestError unless it is a state, of length 0.

    One that has no place for it serves another engine already, which has looked.
    """
    for role, adapter in (("target", target), ("draft", draft)):
        try:
            name, state = f"the state that {role}.open gave", adapter.open(1)
        except RequestError:
            continue
        _check_parts(name, state, ("length", "rollback", "close"))
        _check_methods(name, state, ("rollback", "close"))
        try:
            check_integer(f"length of {name}", state.length, 0, 0)
        finally:
            state.close()


def _check_adapter(role: str, adapter: object, parts: Sequence[str], methods: Sequence[str]) -> None:
    if isinstance(adapter, type):
        raise RequestError(f"{role} is the class {adapter.__name__}, expected an object of it")
    _check_parts(role, adapter, parts)
    _check_methods(role, adapter, methods)
    _check_methods(role, adapter, [name for name in OPTIONAL if hasattr(adapter, name)])


def _check_parts(name: str, held: object, parts: Sequence[str]) -> None:
    for part in parts:
        try:
            getattr(held, part)
        except AttributeError as error:  # a property's own, perhaps
            raise RequestError(f"{name} is {_kind(held)} without {part}, expected {', '.join(parts)}") from error


def _check_methods(name: str, held: object, methods: Sequence[str]) -> None:
    for method in methods:
        found = getattr(held, method)
        if not callable(found):
            raise RequestError(f"{name}.{method} is {shown(found)}, expected a method")


def check_steps(target: Target, steps: Sequence[TargetStep], rows: list[int], wanted: LogitRows, tapped: bool) -> None:
    """Raise TensorError unless there is a step for each segment, with logits and, if `tapped`, features of its rows."""
    if not isinstance(steps, Sequence) or len(steps) != len(rows):
        raise TensorError(f"target {_kind(target)} gave {_amount(steps, 'steps')}, expected {len(rows)}")
    if isinstance(steps, Steps):
        if [*steps.counts] != rows:
            raise TensorError(f"target {_kind(target)} gave steps of {[*steps.counts]} rows, expected {rows}")
        _check_step(target, steps, sum(rows), len(rows), wanted, tapped)
        if steps.chosen is not None:
            _check_chosen(target, steps.chosen, len(rows) if wanted == "last" else sum(rows))
        return
    for step, count in zip(steps, rows, strict=True):
        if not isinstance(step, TargetStep):
            raise TensorError(f"target {_kind(target)} gave a {_kind(step)} as a step, expected a TargetStep")
        _check_step(target, step, count, 1, wanted, tapped)


def _check_step(
    target: Target, step: TargetStep | Steps, rows: int, segments: int, wanted: LogitRows, tapped: bool
) -> None:
    """The step of one segment, or of several whose rows follow each other."""
    if wanted != "none":
        public = target.vocabulary.public
        _check_rows(target, "logits", step.logits, segments if wanted == "last" else rows, public)
    if tapped:
        _check_rows(target, "features", step.features, rows, 0)


def _check_chosen(target: Target, chosen: list[int], rows: int) -> None:
    public = target.vocabulary.public
    if not isinstance(chosen, list) or not set(map(type, chosen)) <= {int}:
        found = f"{_kind(chosen)} of {_kinds(chosen)}" if isinstance(chosen, Sequence) else _kind(chosen)
        raise TensorError(f"target {_kind(target)} gave chosen ids {found}, expected a list of int")
    if len(chosen) != rows or not -1 <= min(chosen) <= max(chosen) < public:
        found = f"{len(chosen)} chosen ids, {min(chosen, default=-1)} to {max(chosen, default=-1)}"
        raise TensorError(f"target {_kind(target)} gave {found}, expected {rows}, -1 to {public - 1}")


def check_proposals(draft: Draft, proposals: Sequence[Proposal], extents: Sequence[int]) -> None:
    """Raise TensorError unless there is a proposal for each block, of its extent or more."""
    if not isinstance(proposals, Sequence) or len(proposals) != len(extents):
        raise TensorError(f"draft {_kind(draft)} gave {_amount(proposals, 'proposals')}, expected {len(extents)}")
    if isinstance(proposals, Proposals) and all(map(le, extents, map(len, proposals.tokens))):
        return
    for proposal, extent in zip(proposals, extents, strict=True):
        if not isinstance(proposal, Proposal):
            raise TensorError(f"draft {_kind(draft)} gave a {_kind(proposal)}, expected a Proposal")
        tokens = proposal.tokens
        if (
            not isinstance(tokens, Tensor) or tokens.dim() != 1 or tokens.shape[0] < extent
            or tokens.dtype not in INTEGERS
        ):  # fmt: skip
            found = f"{tokens.dtype} {list(tokens.shape)}" if isinstance(tokens, Tensor) else _kind(tokens)
            raise TensorError(
                f"draft {_kind(draft)} proposed tokens {found}, expected integers [N] with N at least {extent}"
            )


def check_tokens(draft: Draft | None, tokens: Sequence[Sequence[int]], public: int) -> None:
    """Raise TensorError for a proposed id that is no integer, or none of the vocabulary's."""
    every = list(chain.from_iterable(tokens))
    if not set(map(type, every)) <= {int}:
        raise TensorError(f"draft {_kind(draft)} proposed ids of {_kinds(every)}, expected int")
    if every and not 0 <= min(every) <= max(every) < public:
        bad = next(token for token in every if not 0 <= token < public)
        raise TensorError(f"draft {_kind(draft)} proposed the id {bad}, expected 0 to {public - 1}")


def check_lengths(draft: Draft, states: Sequence[SequenceState], expected: Sequence[int], after: str) -> None:
    """Raise StateError unless each of a draft's sequences is as long as it must be `after` a call of it."""
    for state, length in zip(states, expected, strict=True):
        if state.length != length:
            raise StateError(
                f"draft {_kind(draft)} has a sequence of length {state.length} after {after}, expected {length}"
            )


def check_length(state: SequenceState, frontier: int) -> None:
    """Raise StateError unless a sequence that was rolled back ends at the frontier."""
    if state.length != frontier:
        raise StateError(f"{_kind(state)} has length {state.length} after a rollback, expected {frontier}")


def _check_rows(target: Target, name: str, given: Tensor | None, rows: int, width: int) -> None:
    shape = given.shape if isinstance(given, Tensor) else ()
    if len(shape) != 2 or shape[0] != rows or shape[1] < width:
        found = list(given.shape) if isinstance(given, Tensor) else _kind(given)
        columns = f"at least {width} columns" if width else "any number of columns"
        raise TensorError(f"target {_kind(target)} gave {name} {found}, expected {rows} rows, {columns}")


def _kind(adapter: object) -> str:
    return type(adapter).__name__


def _kinds(items: Sequence[object]) -> str:
    return " and ".join(sorted(set(map(_kind, items))))


def _amount(given: object, what: str) -> str:
    return f"{len(given)} {what}" if isinstance(given, Sequence) else type(given).__name__
