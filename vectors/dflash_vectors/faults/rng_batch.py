"""Faults of uniforms that depend on more than their own key.

Most keep the law of each request, and only take away that it can be repeated: the uniforms themselves show them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from dflash_reference import rng
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

SAMPLING = "Infernix include/infernix/ops/sampling.h"
RANKS = "https://github.com/vllm-project/vllm/pull/17509"
AGE = "https://github.com/NVIDIA/TensorRT-LLM/pull/17599"
RESTART = "https://github.com/NVIDIA/TensorRT-LLM/issues/19487"
GENERATOR = "https://github.com/vllm-project/vllm/issues/6038"
SEED = "https://github.com/PaddlePaddle/FastDeploy/pull/5568"
TARGET, CLAUSES, KEYED = "dflash_reference.rng.batch_uniforms", ("RNG-007",), ("ninfer",)


def _seeded(true: Function, seed: Callable[[int, Array, int, int], Any]) -> Function:
    """Every request's seed by another rule, from its row, the batch's seeds, its width, and the engine's age."""

    def wrong(**given: Any) -> Any:
        seeds = np.asarray(given["seeds"], dtype=np.uint64)
        with np.errstate(over="ignore"):
            changed = [seed(row, seeds, given["drafts"], given["drawn"]) for row in range(len(seeds))]
        return true(**given | {"seeds": np.array(changed, dtype=np.uint64)})

    return by_name(true, wrong)


def _live(given: dict[str, Any]) -> Array:
    """Which columns of which requests have an accept test."""
    live: Array = np.arange(given["drafts"]) < np.asarray(given["extents"])[:, np.newaxis]
    return live


@fault(TARGET, clauses=CLAUSES, report=RANKS, effect="output", profiles=KEYED)
def uniforms_depend_on_the_row(true: Function) -> Function:
    """The row in the batch, or the rank that holds it, goes into the seed."""
    return _seeded(true, lambda row, seeds, drafts, drawn: seeds[row] + np.uint64(row))


@fault(TARGET, clauses=CLAUSES, report=AGE, effect="output", profiles=KEYED)
def uniforms_depend_on_the_age_of_the_engine(true: Function) -> Function:
    """How many uniforms were used before goes into the seed, as with one engine-wide generator."""
    return _seeded(true, lambda row, seeds, drafts, drawn: seeds[row] + np.uint64(drawn))


@fault(TARGET, clauses=CLAUSES, report=SAMPLING, effect="output", profiles=KEYED)
def uniforms_depend_on_the_width(true: Function) -> Function:
    """The width of the block goes into the seed."""
    return _seeded(true, lambda row, seeds, drafts, drawn: seeds[row] + np.uint64(drafts))


@fault(TARGET, clauses=CLAUSES, report=GENERATOR, effect="output", profiles=KEYED)
def first_seed_serves_the_batch(true: Function) -> Function:
    """Requests have no generator of their own: the first one's serves the batch."""
    return _seeded(true, lambda row, seeds, drafts, drawn: seeds[0])


@fault(TARGET, clauses=CLAUSES, report=RESTART, effect="output", profiles=KEYED)
def streams_restart_in_every_row(true: Function) -> Function:
    """The stream restarts with each round: draws go by slot and not by position."""
    return by_name(true, lambda **given: true(**given | {"frontiers": np.zeros(len(given["seeds"]), dtype=np.int64)}))


@fault(TARGET, clauses=CLAUSES, report=SEED, effect="output", profiles=KEYED)
def one_uniform_in_all_slots(true: Function) -> Function:
    """All accept tests of a request's round share the first one's uniform."""

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(accept=np.where(_live(given), done.accept[:, :1], 0.0))

    return by_name(true, wrong)


@fault(TARGET, clauses=CLAUSES, report=SAMPLING, effect="output", profiles=KEYED)
def ragged_rows_packed(true: Function) -> Function:
    """The uniforms of all requests are packed without gaps, and read with the width as the stride."""

    def wrong(**given: Any) -> Any:
        done, live = true(**given), _live(given)
        packed = np.zeros(done.accept.size)
        packed[: int(live.sum())] = done.accept[live]
        return done._replace(accept=packed.reshape(done.accept.shape))

    return by_name(true, wrong)


@fault(TARGET, clauses=CLAUSES, report=SAMPLING, effect="output", profiles=KEYED)
def dead_columns_drawn(true: Function) -> Function:
    """Columns past a request's extent hold uniforms, as though every row were full."""

    def wrong(**given: Any) -> Any:
        requests = zip(given["seeds"], given["frontiers"], strict=True)
        full = [[rng.draw(seed, *key) for key in rng.accept_keys(int(at), given["drafts"])] for seed, at in requests]
        return true(**given)._replace(accept=np.array(full))

    return by_name(true, wrong)


@fault(TARGET, clauses=CLAUSES, report=RANKS, effect="output", profiles=KEYED)
def terminals_of_the_neighbour(true: Function) -> Function:
    """A request ends its round with the uniform of the row before it."""

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(terminal=np.roll(done.terminal, 1))

    return by_name(true, wrong)
