"""Faults of the authors' own drawn proposals: what draws them, and the law that is claimed for them.

Some keep the law of the output, and only lose acceptance: their story says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name
from dflash_vectors.inputs import represent

RAW = "https://github.com/huggingface/transformers/issues/47932"
ARGMAX = "https://github.com/jaymody/speculative-sampling/issues/3"
COLD = "https://github.com/z-lab/dflash/issues/74"
SEED = "https://github.com/PaddlePaddle/FastDeploy/pull/5568"
PACKAGE = "dflash 0.1.0 dflash_generate"
PUBLISHED = ("zlab",)
TARGET, CLAUSES = "dflash_reference.processing.propose", ("PROC-020",)
Given = dict[str, Any]


Change = Callable[[Given], Given]


def _proposing(true: Function, draws: Change | None = None, claims: Change | None = None) -> Function:
    """Changes the arguments that draw the proposals, those of the law that is claimed for them, or both."""

    def wrong(**given: Any) -> Any:
        drawn = true(**given | (draws(given) if draws else {}))
        return drawn._replace(q=true(**given | (claims(given) if claims else {})).q)

    return by_name(true, wrong)


def _shared(given: Given) -> Given:
    return {"u": np.full_like(given["u"], given["u"][0])}


def _first_row(given: Given) -> Given:
    return {"logits": np.repeat(given["logits"][:1], len(given["u"]), axis=0)}


def _raw(given: Given) -> Given:
    return {"temperature": 1.0, "top_k": 0, "top_p": 1.0}


def _unfiltered(given: Given) -> Given:
    return {"top_k": 0, "top_p": 1.0}


def _warm(given: Given) -> Given:
    return {"temperature": 1.0}


@fault(TARGET, clauses=CLAUSES, report=RAW, effect="output", profiles=PUBLISHED)
def law_of_raw_logits(true: Function) -> Function:
    """q is the softmax of raw logits, while the draw used processed ones."""
    return _proposing(true, claims=_raw)


@fault(TARGET, clauses=CLAUSES, report=RAW, effect="output", profiles=PUBLISHED)
def filters_claimed_and_not_applied(true: Function) -> Function:
    """Proposals are drawn without top-k and top-p, which q claims: the target alone is filtered."""
    return _proposing(true, draws=_unfiltered)


@fault(TARGET, clauses=CLAUSES, report=COLD, effect="output", profiles=PUBLISHED)
def draft_draws_at_temperature_1(true: Function) -> Function:
    """The draft's sampler ignores the temperature, which q claims."""
    return _proposing(true, draws=_warm)


@fault(TARGET, clauses=CLAUSES, report=COLD, effect="output", profiles=PUBLISHED)
def law_at_temperature_1(true: Function) -> Function:
    """The draft draws at the request's temperature, and q is that of temperature 1."""
    return _proposing(true, claims=_warm)


@fault(TARGET, clauses=CLAUSES, report=COLD, effect="acceptance", profiles=PUBLISHED)
def temperature_on_the_target_alone(true: Function) -> Function:
    """The draft draws at temperature 1 and says so in q. The law is kept and acceptance lost; q itself shows it."""
    return _proposing(true, draws=_warm, claims=_warm)


@fault(TARGET, clauses=CLAUSES, report=PACKAGE, effect="acceptance", profiles=PUBLISHED)
def filters_on_the_target_alone(true: Function) -> Function:
    """The draft is not filtered, and q says so. The law is kept and acceptance lost; q itself shows it."""
    return _proposing(true, draws=_unfiltered, claims=_unfiltered)


@fault(TARGET, clauses=CLAUSES, report=ARGMAX, effect="output", profiles=PUBLISHED)
def argmax_proposed_with_a_soft_law(true: Function) -> Function:
    """Proposals are argmaxes, and q is left as the softmax, as for a tree of the draft's best."""
    return by_name(true, lambda **given: true(**given)._replace(proposals=np.argmax(given["logits"], axis=1)))


@fault(TARGET, clauses=CLAUSES, report="z-lab/dflash@44947fb dflash/model.py", effect="acceptance", profiles=PUBLISHED)
def argmax_proposed_as_before(true: Function) -> Function:
    """Proposals are argmaxes with a law of one, as in the older loop. The law is kept and acceptance lost; the
    proposals show it."""

    def wrong(**given: Any) -> Any:
        best = np.argmax(given["logits"], axis=1)
        return true(**given)._replace(proposals=best, q=np.eye(given["logits"].shape[1])[best])

    return by_name(true, wrong)


@fault(TARGET, clauses=CLAUSES, report=SEED, effect="output", profiles=PUBLISHED)
def all_slots_draw_with_one_seed(true: Function) -> Function:
    """Every position of a round draws with the first one's uniform: each has its law, but not together."""
    return _proposing(true, draws=_shared, claims=_shared)


@fault(TARGET, clauses=CLAUSES, report=PACKAGE, effect="acceptance", profiles=PUBLISHED)
def first_row_proposes_for_all(true: Function) -> Function:
    """Every slot draws from the first row, and q says so. The law is kept and acceptance lost; proposals show it."""
    return _proposing(true, draws=_first_row, claims=_first_row)


@fault(TARGET, clauses=CLAUSES, report=PACKAGE, effect="output", profiles=PUBLISHED)
def law_of_the_row_after(true: Function) -> Function:
    """q is read one row off the rows that drew."""
    return _proposing(true, claims=lambda given: {"logits": np.roll(given["logits"], -1, axis=0)})


@fault(
    "dflash_reference.processing.rank", clauses=("PROC-020", "PROC-005"), effect="output", profiles=PUBLISHED,
    report="https://github.com/sgl-project/sglang/issues/35771",
)  # fmt: skip
def uniform_of_0_takes_the_first_id(true: Function) -> Function:
    """The test is goal <= sum, so that a uniform of exactly 0 draws an id of probability 0."""
    return lambda weights, goal: 0 if goal == 0 else true(weights, goal)


@fault(TARGET, clauses=CLAUSES, report=PACKAGE, effect="output", profiles=PUBLISHED)
def law_in_bf16(true: Function) -> Function:
    """q is stored as BF16, which is not what drew."""

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(q=represent(done.q, "BF16"))

    return by_name(true, wrong)
