"""Faults of the candidate path."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from dflash_reference import num, selector
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

PORT = "https://github.com/natpate/ninfer-windows/pull/4"
FAST_PATH = "https://github.com/Atlas-Inf/atlas/pull/46"
ROWS = "https://github.com/vllm-project/vllm/pull/52816"
SELECTOR = "NInfer docs/maintainer/dflash.md, selector"
CONTRACT = "Infernix include/infernix/ops/candidate_selector.h"
KEYED = ("ninfer",)

Before = Callable[[dict[str, Any], int, list[int]], int]
"""The predecessor of a step, from the walk's inputs, the step, and the ranks chosen so far."""


def walked(given: dict[str, Any], before: Before) -> selector.Walk:
    """The walk with another rule for the predecessor."""
    unary, candidates, profile = given["unary"], given["candidates"], given["profile"]
    scores, q, ranks = np.zeros(unary.shape), np.zeros(unary.shape), list[int]()
    for step, ids in enumerate(candidates):
        row = given["predecessor"][before(given, step, ranks)]
        scores[step] = num.round_to(selector.scored(unary[step], row, given["g"][step], given["successor"][ids]), "F32")
        chosen, q[step] = selector.step_of(scores[step], given["temperature"], given["u"][step], profile)
        ranks.append(chosen)
    return selector.Walk(scores, candidates[np.arange(len(ranks)), ranks].astype(np.int64), q)


def _chosen(given: dict[str, Any], step: int, ranks: list[int]) -> int:
    return int(given["candidates"][step - 1, ranks[-1]] if step else given["anchor"])


def _walking(true: Function, before: Before) -> Function:
    return by_name(true, lambda **given: walked(given, before))


@fault("dflash_reference.selector.scored", clauses=("SEL-001",), report=FAST_PATH, effect="acceptance")
def first_four_candidates_scored(true: Function) -> Function:
    """A fast path scores the first four candidates and takes the others for lost."""

    def wrong(unary: Array, predecessor: Array, g: Array, successor: Array) -> Array:
        scores = np.asarray(true(unary, predecessor, g, successor))
        return np.where(np.arange(len(scores)) < 4, scores, -1e30)

    return wrong


@fault("dflash_reference.selector.scored", clauses=("SEL-001",), report=FAST_PATH, effect="acceptance")
def first_64_dimensions_scored(true: Function) -> Function:
    """A fast path stops at dimension 64 of 256."""
    return lambda unary, predecessor, g, successor: true(unary, predecessor[:64], g[:64], successor[:, :64])


@fault("dflash_reference.selector.scored", clauses=("SEL-001",), effect="acceptance",
    report="https://github.com/lightseekorg/TorchSpec/issues/177",
)  # fmt: skip
def unary_scores_alone(true: Function) -> Function:
    """The path is that of the unary head; the selector is not applied."""
    return lambda unary, predecessor, g, successor: unary


@fault("dflash_reference.selector.scored", clauses=("SEL-001",), report=SELECTOR, effect="acceptance")
def hidden_row_left_out(true: Function) -> Function:
    """The codebooks are multiplied without the hidden row between them."""
    return lambda unary, predecessor, g, successor: true(unary, predecessor, np.ones_like(g), successor)


@fault("dflash_reference.selector.scored", clauses=("SEL-001",), report=ROWS, effect="acceptance")
def scores_held_in_bf16(true: Function) -> Function:
    """A row of scores is stored in BF16."""
    return lambda unary, predecessor, g, successor: num.round_to(true(unary, predecessor, g, successor), "BF16")


@fault("dflash_reference.selector.walk", clauses=("SEL-001",), effect="acceptance",
    report="https://github.com/1CatAI/1Cat-vLLM/pull/253",
)  # fmt: skip
def codebooks_exchanged(true: Function) -> Function:
    """The predecessor is looked up in the successor codebook and the candidates in the other."""

    def wrong(predecessor: Array, successor: Array, **named: Any) -> Any:
        return true(predecessor=successor, successor=predecessor, **named)

    return by_name(true, wrong)


@fault("dflash_reference.selector.best", clauses=("SEL-001",), report=PORT, effect="acceptance")
def positive_scores_inverted(true: Function) -> Function:
    """The inverse of the order-preserving key swaps its branches: the larger a positive score, the lower it ranks."""
    return lambda scores: true(np.where(scores > 0, -scores, scores))


@fault("dflash_reference.selector.best", clauses=("SEL-001",), report=PORT, effect="acceptance")
def scores_compared_as_bits(true: Function) -> Function:
    """Scores are compared as unsigned codes, in which every negative number is larger than every positive one."""
    return lambda scores: true(np.where(scores < 0, 1e30 - scores, scores))


@fault("dflash_reference.selector.walk", clauses=("SEL-002",), report=SELECTOR, effect="acceptance")
def predecessor_of_the_best_unary_score(true: Function) -> Function:
    """A step is conditioned on the candidate before it with the best unary score."""

    def before(given: dict[str, Any], step: int, ranks: list[int]) -> int:
        if not step:
            return int(given["anchor"])
        return int(given["candidates"][step - 1, np.argmax(given["unary"][step - 1])])

    return _walking(true, before)


@fault("dflash_reference.selector.walk", clauses=("SEL-002",), report=PORT, effect="acceptance")
def predecessor_in_the_wrong_major_order(true: Function) -> Function:
    """The token before is read from an array of ranks by slots with the strides of slots by ranks."""

    def before(given: dict[str, Any], step: int, ranks: list[int]) -> int:
        if not step:
            return int(given["anchor"])
        flat = given["candidates"].T.reshape(-1)
        return int(flat[(step - 1) * given["candidates"].shape[1] + ranks[-1]])

    return _walking(true, before)


@fault("dflash_reference.selector.walk", clauses=("SEL-002",), report=PORT, effect="acceptance")
def anchor_missing_at_slot_0(true: Function) -> Function:
    """The anchor is not broadcast to the predecessors of slot 0, which read token 0."""
    return _walking(true, lambda given, step, ranks: _chosen(given, step, ranks) if step else 0)


@fault("dflash_reference.selector.walk", clauses=("SEL-002",), report=PORT, effect="acceptance")
def anchor_at_every_slot(true: Function) -> Function:
    """Every step is conditioned on the anchor."""
    return _walking(true, lambda given, step, ranks: int(given["anchor"]))


@fault("dflash_reference.selector.walk", clauses=("SEL-002",), report=SELECTOR, effect="acceptance")
def best_path_instead_of_the_walk(true: Function) -> Function:
    """The path with the largest sum of scores is proposed."""

    def total(given: dict[str, Any], path: tuple[int, ...]) -> float:
        return float(sum(_along(given, path, step)[rank] for step, rank in enumerate(path)))

    def wrong(**given: Any) -> Any:
        steps, count = given["unary"].shape
        if given["temperature"] > 0 or count**steps > 1024:
            return true(**given)
        best = max(product(range(count), repeat=steps), key=lambda path: total(given, path))
        scores = np.array([_along(given, best, step) for step in range(steps)])
        return selector.Walk(scores, given["candidates"][np.arange(steps), best], np.eye(count)[list(best)])

    return by_name(true, wrong)


def _along(given: dict[str, Any], path: tuple[int, ...], step: int) -> Array:
    row = given["predecessor"][_chosen(given, step, list(path[:step]))]
    successor = given["successor"][given["candidates"][step]]
    return num.round_to(selector.scored(given["unary"][step], row, given["g"][step], successor), "F32")


def _certain(scores: Array, chosen: int) -> tuple[int, Array]:
    return chosen, np.eye(len(scores))[chosen]


@fault("dflash_reference.selector.best", clauses=("SEL-003",), report=CONTRACT, effect="acceptance")
def tie_to_the_last_rank(true: Function) -> Function:
    """The last of equal scores is taken."""
    return lambda scores: _certain(scores, len(scores) - 1 - int(np.argmax(scores[::-1])))


@fault("dflash_reference.selector.best", clauses=("SEL-003",), effect="output",
    report="https://github.com/jaymody/speculative-sampling/issues/3",
)  # fmt: skip
def softmax_claimed_for_the_argmax(true: Function) -> Function:
    """The greedy walk takes the best candidate and keeps the softmax as its law."""
    return lambda scores: (true(scores)[0], selector.softened(scores, 1.0))


@fault("dflash_reference.selector.walk", clauses=("SEL-003",), report=CONTRACT, effect="acceptance")
def tie_to_the_lowest_id(true: Function) -> Function:
    """The lowest id of equal scores is taken, as the head ranks them."""

    def wrong(candidates: Array, unary: Array, **named: Any) -> Any:
        order = np.argsort(candidates, axis=1)
        done = true(
            candidates=np.take_along_axis(candidates, order, 1), unary=np.take_along_axis(unary, order, 1), **named
        )
        back = np.argsort(order, axis=1)
        scores, q = (np.take_along_axis(x, back, 1) for x in (done.scores, done.q))
        return selector.Walk(scores, done.proposals, q)

    return by_name(true, wrong)


@fault("dflash_reference.selector.step_of", clauses=("SEL-003",), effect="output", profiles=("ninfer",),
    report="https://github.com/sgl-project/sglang/pull/23296",
)  # fmt: skip
def negative_temperature_sampled(true: Function) -> Function:
    """Only a temperature of exactly 0 is greedy."""

    def wrong(scores: Array, temperature: float, u: float, profile: Any) -> Any:
        if temperature == 0:
            return selector.best(scores)
        q = selector.softened(scores, temperature) if temperature > 0 else selector.softened(-scores, -temperature)
        return selector.drawn(q, u, profile), q

    return wrong


@fault("dflash_reference.selector.softened", clauses=("SEL-004",), effect="output",
    report="https://github.com/z-lab/dflash/issues/74",
)  # fmt: skip
def walk_ignores_the_temperature(true: Function) -> Function:
    """The law is the softmax of the scores themselves."""
    return lambda scores, temperature: true(scores, 1.0)


@fault("dflash_reference.selector.softened", clauses=("SEL-004",), report=SELECTOR, effect="output")
def walk_multiplies_by_the_temperature(true: Function) -> Function:
    """Scores are multiplied by the temperature."""
    return lambda scores, temperature: true(scores, 1.0 / temperature)


@fault("dflash_reference.selector.softened", clauses=("SEL-004",), report=SELECTOR, effect="output")
def walk_overflows_when_cold(true: Function) -> Function:
    """The exponential of score / T is taken in FP32 without the maximum being subtracted."""

    def wrong(scores: Array, temperature: float) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            powers = np.exp((scores / temperature).astype(np.float32))
            return num.round_to(powers / powers.sum(), "F32")

    return wrong


@fault("dflash_reference.selector.walk", clauses=("SEL-004",), report=SELECTOR, effect="output")
def temperature_on_the_unary_part_alone(true: Function) -> Function:
    """The unary score is divided by the temperature and the bilinear part is not."""

    def wrong(**given: Any) -> Any:
        done, temperature = true(**given), given["temperature"]
        if not temperature > 0:
            return done
        q = np.array([
            selector.softened(row - unary + unary / temperature, 1.0)
            for row, unary in zip(done.scores, given["unary"], strict=True)
        ])  # fmt: skip
        return done._replace(q=q)

    return by_name(true, wrong)


@fault("dflash_reference.selector.drawn", clauses=("SEL-005",), report=CONTRACT, effect="output")
def rank_whose_sum_equals_u_drawn(true: Function) -> Function:
    """The first rank whose cumulative q is at least u is taken, so a uniform of 0 draws rank 0."""

    def wrong(q: Array, u: float, profile: Any) -> int:
        reached = np.cumsum(q) >= u
        return int(np.argmax(reached)) if reached.any() else int(true(q, u, profile))

    return wrong


@fault("dflash_reference.selector.walk", clauses=("SEL-005",), effect="output",
    report="https://github.com/PaddlePaddle/FastDeploy/pull/5568",
)  # fmt: skip
def one_uniform_for_the_walk(true: Function) -> Function:
    """Every step draws with the first step's uniform."""
    return by_name(true, lambda u, **named: true(u=np.full_like(u, u[0]), **named))


@fault("dflash_reference.selector.drawn", clauses=("SEL-005",), report=CONTRACT, effect="output")
def fallback_of_the_other_profile(true: Function) -> Function:
    """Where no rank qualifies the draw ends as in the other profile."""

    def wrong(q: Array, u: float, profile: Any) -> int:
        if u < num.sum_last(q):
            return int(true(q, u, profile))
        last = len(q) - 1
        return int(np.flatnonzero(q > 0)[-1]) if profile.axes["walk_fallback"] == "last_rank" else last

    return wrong


@fault("dflash_reference.selector.walk", clauses=("SEL-005",), effect="output",
    report="https://github.com/huggingface/transformers/issues/47932",
)  # fmt: skip
def law_renormalised_after_the_draw(true: Function) -> Function:
    """The draw uses the whole law; what is kept is cut to the likeliest nine tenths and renormalised."""

    def cut(q: Array) -> Array:
        order = np.argsort(-q, kind="stable")
        kept = np.zeros(len(q), dtype=bool)
        kept[order] = np.cumsum(q[order]) - q[order] < 0.9
        return num.round_to(np.where(kept, q, 0.0) / q[kept].sum(), "F32")

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(q=np.array([cut(row) for row in done.q])) if given["temperature"] > 0 else done

    return by_name(true, wrong)


@fault("dflash_reference.selector.walk", clauses=("SEL-005",), report=ROWS, effect="output")
def law_of_another_predecessor(true: Function) -> Function:
    """The law that is kept is the row of the predecessor of rank 0, not of the token that was chosen."""

    def first(given: dict[str, Any], step: int, ranks: list[int]) -> int:
        return int(given["candidates"][step - 1, 0] if step else given["anchor"])

    def wrong(**given: Any) -> Any:
        return true(**given)._replace(q=walked(given, first).q)

    return by_name(true, wrong)


@fault("dflash_reference.selector.walk", clauses=("SEL-005",), effect="output",
    report="https://github.com/z-lab/dflash/issues/74",
)  # fmt: skip
def walk_takes_the_argmax_of_its_law(true: Function) -> Function:
    """A sampled walk keeps the softmax as its law and takes the likeliest candidate."""

    def wrong(**given: Any) -> Any:
        sampled = dict(given, u=np.zeros(len(given["u"])))
        laws = true(**dict(sampled, temperature=0.0)).proposals
        return true(**given)._replace(proposals=laws)

    return by_name(true, wrong)


@fault("dflash_reference.selector.project", clauses=("SEL-006",), report=SELECTOR, effect="acceptance")
def selector_row_normed_again(true: Function) -> Function:
    """The hidden row is normed once more before it is projected."""

    def wrong(hidden: Array, projection: Array, profile: Any) -> Any:
        return true(hidden / np.sqrt(num.mean_square(hidden))[:, np.newaxis], projection, profile)

    return wrong


@fault("dflash_reference.selector.represent_row", clauses=("SEL-007",), effect="acceptance", profiles=KEYED,
    report="Infernix src/models/qwen3_5/execution/draft.cpp",
)  # fmt: skip
def selector_row_unrounded(true: Function) -> Function:
    """The selector's hidden row stays in FP32."""
    return lambda g, profile: num.round_to(g, "F32")


@fault("dflash_reference.rng.proposal_keys", clauses=("SEL-008",), report=CONTRACT, effect="output", profiles=KEYED)
def proposal_keyed_at_its_token(true: Function) -> Function:
    """Step i draws at F + i + 1, where its token will stand."""
    return lambda frontier, drafts, profile: true(frontier + 1, drafts, profile)


@fault("dflash_reference.rng.proposal_keys", clauses=("SEL-008",), effect="output", profiles=KEYED,
    report="https://github.com/vllm-project/vllm/pull/54282",
)  # fmt: skip
def proposal_keyed_as_its_accept_test(true: Function) -> Function:
    """The draw and the accept test of a proposal share purpose 2 and the position of its token."""

    def wrong(frontier: int, drafts: int, profile: Any) -> Any:
        keys = np.array(true(frontier + 1, drafts, profile).keys)
        keys[:, 1] = 2
        return true(frontier, drafts, profile)._replace(keys=keys)

    return wrong


@fault("dflash_reference.rng.proposal_keys", clauses=("SEL-008",), report=CONTRACT, effect="output", profiles=KEYED)
def proposal_keyed_by_sub_index(true: Function) -> Function:
    """All steps draw at F, told apart by their sub-index, as a tree's children are."""

    def wrong(frontier: int, drafts: int, profile: Any) -> Any:
        keys = np.array(true(frontier, drafts, profile).keys)
        keys[:, 2] = keys[:, 0] - frontier
        keys[:, 0] = frontier
        return true(frontier, drafts, profile)._replace(keys=keys)

    return wrong
