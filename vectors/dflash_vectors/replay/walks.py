"""A DFlash2 draft's choice: its candidates, their scores, and the walk through them, step by step.

Scores, law and step are computed along the path that the trace has taken, from its own candidates, unary scores and
hidden rows: a near tie at one step does not make the next one look wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_reference import head, num, selector, target
from dflash_reference.models import Draft2
from dflash_reference.names import TokenId
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.bounds import SAFETY
from dflash_vectors.bounds import candidates as models
from dflash_vectors.bounds.algebra import Value as Model
from dflash_vectors.bounds.algebra import gamma, ulp
from dflash_vectors.replay.choices import Rows, said
from dflash_vectors.replay.findings import Finding, Tie
from dflash_vectors.replay.lanes import Lane, Value
from dflash_vectors.replay.stages import Own, Stages
from dflash_vectors.trace import Round


def flipped(model: Model) -> Array:
    """The bound of FP32 values with the errors of a model: what it allows, and one flip of the rounding, twice."""
    bound: Array = SAFETY * (model.e + ulp(np.abs(model.v) + model.e, "F32"))
    return bound


class Walk:
    """The choice of one round. `rows` is how many hidden rows there are, `steps` how many proposals were verified."""

    def __init__(self, stages: Stages, draft: Draft2, hidden: Value) -> None:
        self.stages, self.draft, self.hidden = stages, draft, hidden
        self.profile, self.key = stages.profile, f"round {stages.round.number}"
        self.rows, self.steps = len(hidden.true), len(stages.round.proposals)
        self.table, self.public = target.head(stages.lanes.pair.target), stages.asked.ids
        self.all = self._scores_of_all()
        self.ids = self._ids()

    def _scores_of_all(self) -> Own:
        """The score of every public id, [rows, public]."""
        config = self.draft.config

        def step(lane: Lane, rows: Array) -> Array:
            logits = head.public_rows(num.contract(rows, self.table), self.public)
            return head.represent_scores(head.capped(logits, config.output_multiplier, config.softcap))

        bound = None
        if self.hidden.given:
            sizes = {"public": self.public, "multiplier": config.output_multiplier, "softcap": config.softcap}
            bound = flipped(models.scores({"hidden": self.hidden.true, "head": self.table, **sizes}))
        own = self.stages.lanes.compute(f"{self.key}/unary", step, self.hidden)
        return Own("unary", own, bound, lambda lane: step(lane, self.hidden.true))

    def _ids(self) -> Array:
        """The candidates [rows, C]: recorded, or the reference's."""
        recorded = self.stages.recorded("candidates", self.rows)
        if recorded is not None:
            return recorded.true.astype(np.int64)
        return head.ranked(self.all.value.true, np.arange(self.public), self.draft.config.selector_top_k)

    def picked(self, own: Own) -> Own:
        """Of a stage over all ids, the columns of the candidates."""

        def pick(rows: Array) -> Array:
            return np.take_along_axis(rows, self.ids, axis=1)

        value = self.stages.lanes.compute(f"{self.key}/picked", lambda lane, rows: pick(rows), own.value)
        bound = None if own.bound is None else pick(own.bound)
        return Own(own.name, value, bound, lambda lane: pick(own.again(lane)))

    def candidates(self) -> Iterator[Finding]:
        """Whether the candidates are the best ids, in order."""
        number, recorded = self.stages.round.number, self.stages.recorded("candidates", self.rows)
        if recorded is None:
            return
        size = self.draft.config.selector_top_k
        if self.ids.shape[1] != size:
            yield Finding(number, "stage.candidates", "HEAD-005", f"{self.ids.shape[1]} a row, expected {size}")
            return
        unary = self.stages.recorded("unary", self.rows)
        rows = Rows(self.all.value, self.public, self.all.bound)
        for row, ids in enumerate(self.ids):
            if len(set(ids.tolist())) < size or ids.max() >= self.public:
                said_ = f"row {row}: {ids.tolist()}, expected {size} different ids below {self.public}"
                yield Finding(number, "stage.candidates", "HEAD-002", said_)
                return
            order = self._order(row, ids, unary, rows)
            for tie in (*order, *self._left_out(row, ids, rows)):
                yield Finding(number, "stage.candidates", "HEAD-005", said(tie, "score"), tie=tie)

    def _order(self, row: int, ids: Array, unary: Value | None, rows: Rows) -> Iterator[Tie]:
        """Neighbours that stand the wrong way round: by the recorded scores, or by the reference's."""
        scores = rows.value.true[row][ids] if unary is None else unary.true[row]
        for rank in range(len(ids) - 1):
            first, second = int(ids[rank]), int(ids[rank + 1])
            gap = float(scores[rank + 1] - scores[rank])
            if gap > 0 or (gap == 0 and second < first):
                yield Tie(row, second, first, gap, -1.0 if unary is not None else rows.doubt(row, second, first))

    def _left_out(self, row: int, ids: Array, rows: Rows) -> Iterator[Tie]:
        """The best id that is no candidate, if it is better than one that is."""
        scores = rows.value.true[row]
        others = np.setdiff1d(np.arange(self.public), ids)
        last = int(ids[np.argmin(scores[ids])])
        best = int(others[np.argmax(scores[others])]) if len(others) else last
        gap = float(scores[best] - scores[last])
        if gap > 0 or (gap == 0 and best < last):
            yield Tie(row, best, last, gap, rows.doubt(row, best, last))

    def g(self) -> Own:
        """The selector's rows [rows, rank]."""
        weight = self.draft.selector.projection

        def step(lane: Lane, rows: Array) -> Array:
            return selector.project(rows, weight, self.profile).g

        bound = None
        if self.hidden.given:
            bound = self.stages.derived("selector.project", "g", hidden=self.hidden.true, projection=weight)
        own = self.stages.lanes.compute(f"{self.key}/g", step, self.hidden)
        return Own("g", own, bound, lambda lane: step(lane, self.hidden.true))

    def scores(self, g: Own) -> Own:
        """The scores [steps, C] along the trace's path."""
        draft, proposals, ids = self.draft.selector, self.stages.round.proposals, self.ids[: self.steps]
        unary = self.stages.recorded("unary", self.rows) or self.picked(self.all).value
        hidden = self.stages.recorded("g", self.rows) or g.value

        def step(lane: Lane, unary: Array, hidden: Array) -> Array:
            before = [self.stages.round.anchor, *map(int, proposals[:-1])]
            edges = [
                selector.scored(unary[i], draft.predecessor[token], hidden[i], draft.successor[ids[i]])
                for i, token in enumerate(before[: self.steps])
            ]
            return num.round_to(np.stack(edges), "F32")

        def again(lane: Lane) -> Array:
            path = selector.walk(
                ids, unary.true[: self.steps], hidden.true[: self.steps], draft.predecessor, draft.successor,
                TokenId(self.stages.round.anchor), 0.0, np.zeros(self.steps), self.profile,
            )  # fmt: skip
            return path.scores

        bound = None
        if unary.given and hidden.given:
            given = {
                "unary": unary.true[: self.steps], "g": hidden.true[: self.steps], "candidates": ids,
                "anchor": self.stages.round.anchor, "predecessor": draft.predecessor, "successor": draft.successor,
            }  # fmt: skip
            bound = flipped(models.edges(given, proposals))
        return Own("scores", self.stages.lanes.compute(f"{self.key}/scores", step, unary, hidden), bound, again)

    def law(self, scores: Value, temperature: float) -> Own:
        """The law [steps, C] of each step: certain, or the softmax of its scores."""

        def step(lane: Lane, rows: Array) -> Array:
            if temperature > 0:
                return np.stack([selector.softened(row, temperature) for row in rows])
            return np.stack([selector.best(row)[1] for row in rows])

        bound = None
        if temperature <= 0 and scores.given:
            bound = np.zeros(scores.true.shape)
        elif scores.given:
            bound = flipped(models.law(Model(scores.true, np.zeros(scores.true.shape)), temperature))
        own = self.stages.lanes.compute(f"{self.key}/q", step, scores)
        return Own("q", own, bound, lambda lane: step(lane, scores.true))


def best_steps(round_: Round, ids: Array, rows: Rows) -> Iterator[Finding]:
    """A greedy walk through candidates [steps, C]: each proposal is the one with the largest score of `rows`."""
    for row, token in enumerate(round_.proposals):
        rank = _rank(ids[row], int(token))
        tie = None if rank is None else rows.tie(row, rank)
        if rank is None:
            yield _stranger(round_, row, ids[row])
        elif tie is not None:
            named = tie._replace(expected=int(ids[row, tie.expected]), got=int(token))
            yield Finding(round_.number, "decision.proposals", "SEL-003", said(named, "score"), tie=named)


def drawn_steps(
    round_: Round, ids: Array, q: Array, bound: Array | None, u: Array, profile: Profile, clause: str = "SEL-005"
) -> Iterator[Finding]:
    """Drawn proposals whose law q [steps, C] and uniforms [steps] are known: each proposal is what they draw.

    `bound` is how far each q may be off, None where the trace itself holds it.
    """
    for row, token in enumerate(round_.proposals):
        rank, law = _rank(ids[row], int(token)), q[row]
        if rank is None:
            yield _stranger(round_, row, ids[row])
            continue
        drawn = selector.drawn(law, float(u[row]), profile)
        if drawn == rank:
            continue
        ends = np.cumsum(law)
        gap = float(max(ends[rank] - law[rank] - u[row], u[row] - ends[rank], 0.0))
        off = 0.0 if bound is None else float(bound[row].sum())
        tie = Tie(row, int(ids[row, drawn]), int(token), gap, off + gamma(len(law)))
        yield Finding(round_.number, "decision.proposals", clause, said(tie, "probability"), tie=tie)


def _rank(ids: Array, token: int) -> int | None:
    places = np.flatnonzero(ids == token)
    return int(places[0]) if len(places) else None


def _stranger(round_: Round, row: int, ids: Array) -> Finding:
    text = f"row {row}: token {round_.proposals[row]}, expected one of the candidates {ids.tolist()}"
    return Finding(round_.number, "decision.proposals", "SEL-002", text)
