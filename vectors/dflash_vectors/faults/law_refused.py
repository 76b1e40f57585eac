"""Faults of probabilities that are no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import law
from dflash_spec.errors import TensorError
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

ALL_NAN = "https://github.com/vllm-project/vllm/pull/50183"
SENTINEL = "https://github.com/avifenesh/memra/issues/87"
CLAUSES = ("LAW-013",)


@fault("dflash_reference.processing.drawable", clauses=CLAUSES, report=SENTINEL, effect="crash")
def rows_with_nan_drawn_from(true: Function) -> Function:
    """A row is drawn from whatever it holds: no sum exceeds the goal, and a fall-back or an index of -1 comes of it."""
    return lambda where, p: None


@fault("dflash_reference.processing.drawable", clauses=CLAUSES, report=ALL_NAN, effect="crash")
def only_the_first_rank_looked_at(true: Function) -> Function:
    """Only a NaN at the first rank is noticed."""
    return lambda where, p: true(where, p[:1])


@fault("dflash_reference.law.accepts", clauses=CLAUSES, report=SENTINEL, effect="output")
def nan_probability_accepts(true: Function) -> Function:
    """The test is written as not (u >= p), which a NaN passes."""

    def wrong(proposal: int, support: Array, p: Any, u: Any) -> bool:
        held = law.weight_of(proposal, support, p)
        return bool(held != held or true(proposal, support, p, u))

    return wrong


@fault("dflash_reference.law.covered_or_under", clauses=CLAUSES, report=SENTINEL, effect="output", profiles=("ninfer",))
def nan_ratio_accepts_where_covered(true: Function) -> Function:
    """The tests are written the other way around, which a NaN of p or of q passes."""
    return lambda p, q, u: bool(p != p or q != q or true(p, q, u))


@fault("dflash_reference.law.under", clauses=CLAUSES, report=SENTINEL, effect="output", profiles=("zlab",))
def nan_ratio_accepts(true: Function) -> Function:
    """The test is written as not (u * q >= p), which a NaN of p or of q passes."""
    return lambda p, q, u: bool(p != p or q != q or true(p, q, u))


def _stopping(true: Function) -> Function:
    """A round that ends where p or q holds a NaN anywhere."""

    def wrong(**given: Any) -> Any:
        if any(np.isnan(np.asarray(given[name])).any() for name in ("p", "q") if name in given):
            raise TensorError("a probability is NaN")
        return true(**given)

    return by_name(true, wrong)


@fault("dflash_reference.law.one_hot", clauses=CLAUSES, report=ALL_NAN, effect="crash")
def unread_nan_ends_the_round(true: Function) -> Function:
    """A NaN anywhere in the rows of p ends the round, though nothing reads it."""
    return _stopping(true)


@fault("dflash_reference.law.sparse", clauses=CLAUSES, report=ALL_NAN, effect="crash")
def unread_nan_ends_a_drawn_round(true: Function) -> Function:
    """A NaN anywhere in p or q ends the round, though nothing reads it."""
    return _stopping(true)


@fault("dflash_reference.law.one_hot", clauses=CLAUSES, report=ALL_NAN, effect="output")
def nan_cleaned_to_0(true: Function) -> Function:
    """NaN probabilities are replaced by 0 and the round goes on."""
    return by_name(true, lambda **given: true(**given | {"p": np.nan_to_num(np.asarray(given["p"]))}))


@fault("dflash_reference.law.sparse", clauses=CLAUSES, report=ALL_NAN, effect="output")
def nan_of_the_law_cleaned_to_0(true: Function) -> Function:
    """NaN entries of q are replaced by 0, and such a proposal is accepted whatever the coin says."""
    return by_name(true, lambda **given: true(**given | {"q": np.nan_to_num(np.asarray(given["q"]))}))
