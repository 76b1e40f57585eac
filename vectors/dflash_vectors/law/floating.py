"""Decisions in floating point, on rows that requests really have: measured breakpoint by breakpoint.

Rational enumeration proves the rule. What an implementation makes of the rule in FP32 is piecewise constant in every
uniform: `pieces` finds the pieces, and the sum of their lengths is the law that the implementation has.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from dflash_reference import block, engine, processing, selector
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array

from dflash_vectors.law import model
from dflash_vectors.law.asking import Question, ask
from dflash_vectors.law.configs import BACKENDS, Config, choices
from dflash_vectors.law.expected import Expected
from dflash_vectors.law.families import Round, Row
from dflash_vectors.law.filtering import softmax_limit
from dflash_vectors.law.lanes import CAPACITY, Lane, hashed
from dflash_vectors.law.symbolic import Draws
from dflash_vectors.law.uniforms import judge_draw, judge_round, limit
from dflash_vectors.law.verdicts import Finding
from dflash_vectors.law.verify import apart
from dflash_vectors.runners.protocol import Runner
from dflash_vectors.runners.python import PythonRunner


class AtHand(PythonRunner):
    """A runner of any object that has `run(op, inputs)`."""

    def __init__(self, implementation: Any) -> None:
        super().__init__("an object at hand", "", "")
        self._implementation = implementation


class TokenLaw(NamedTuple):
    """How far the law of one token is from the exact one: by filtering, by drawing, and what FP32 may do in both."""

    filtered: Fraction
    drawn: Fraction
    limit: Fraction


def first_lane(config: Config) -> Lane:
    """The request after its first token."""
    counts = np.bincount([model.ANCHOR], minlength=config.vocabulary)
    return Lane(config, hashed, Draws(), (model.ANCHOR,), counts)


def first_round(config: Config) -> Round:
    """The FP32 rows of a request's first round, along the chain of the proposals that its draft finds likeliest."""
    lane = first_lane(config)
    extent = block.extent(config.drafts, lane.remaining, CAPACITY, lane.frontier, lane.profile).extent
    proposals, q = _proposed(lane, extent)
    done = engine.distribution(lane, engine.adjusted(lane, lane.logits(proposals), proposals))
    rows = tuple(_row(ids, p) for ids, p in zip(done.support, done.p, strict=True))
    if BACKENDS[config.backend].verify == "law.sparse":
        return Round(config.name, rows, q)
    return Round(config.name, rows, (), tuple((int(token),) for token in proposals))


def _proposed(lane: Lane, extent: int) -> tuple[Array, tuple[Row, ...]]:
    """The likeliest chain, and the law of each proposal: ids of probability 0 are left out, as of a draft's own."""
    config, text, before = lane.config, (*lane.prompt, *lane.tokens), int(lane.anchor)
    drafter, asked = BACKENDS[config.backend].drafter, lane.settings
    chain, laws = list[int](), list[Row]()
    for slot in range(extent):
        row = model.draft_logits(config, text, slot)
        if drafter == "selector":
            ids = model.candidates(config, text, slot)
            q = selector.softened(model.edge_scores(config, text, slot, before), asked.temperature)
        elif drafter == "rows":
            given = row[np.newaxis], asked.temperature, asked.top_k, 0.0, asked.top_p
            done = processing.supported(*given, load_profile("zlab"))
            ids, q = np.arange(len(row)), done.p[0]
        else:
            ids, q = np.array([np.argmax(row)]), np.ones(1)
        before = int(ids[np.argmax(q)])
        chain.append(before)
        laws.append(_row(ids, q))
    return np.array(chain, dtype=np.int64), tuple(laws)


def _row(ids: Array, weights: Array) -> Row:
    return Row(tuple(map(int, ids)), tuple(map(float, weights)))


def judge_first_round(runner: Runner, config: Config) -> Finding:
    """The law of the first round's accepted count and tokens, against the closed form of its rows."""
    return judge_round(runner, BACKENDS[config.backend].verify, first_round(config), first_lane(config).profile)


def judge_first_token(runner: Runner, config: Config) -> TokenLaw:
    """The law of the token after the first one, filtered and drawn by an implementation, against the exact one.

    Raises ImplementationError where there is no answer, or one that is no distribution.
    """
    lane, nothing = first_lane(config), np.zeros(0, dtype=np.int64)
    profile, asked = lane.profile, lane.settings
    adjusted = engine.adjusted(lane, lane.logits(nothing), nothing)
    question = Question.of("proc.filter", profile, ("PROC-016",), adjusted=adjusted)
    settings = {"temperature": asked.temperature, "min_p": asked.min_p, "top_p": asked.top_p}
    answer = ask(runner, question.case(top_k=asked.top_k, **{k: np.float32(v) for k, v in settings.items()}))
    row = _row(answer["support"][0], answer["p"][0])
    drawn = judge_draw(runner, config.name, row, profile)
    exact = Expected(config).row((model.ANCHOR,))
    finite = [float(value) for value in adjusted[0] if np.isfinite(value)]
    bound = softmax_limit(finite, asked.temperature) + limit(len(row.ids), 0)
    return TokenLaw(apart(row.law, exact), Fraction(drawn.deviation), bound)


def measurable(config: Config) -> bool:
    """Whether a request's first round is quick to measure: at most two proposals of few tokens."""
    backend = BACKENDS[config.backend]
    return backend.verify != "law.greedy" and config.drafts <= 2 and config.vocabulary <= 7 and choices(config) <= 3
