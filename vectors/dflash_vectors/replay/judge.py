"""One round judged: the draft's stages and choice, the target's stages and verdict, each from what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from dflash_reference import draft2, engine, processing, rng, selector
from dflash_reference.models import Draft2
from dflash_reference.request import Request
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array, Tensor

from dflash_vectors.replay import choices, verdicts, walks
from dflash_vectors.replay.choices import Rows
from dflash_vectors.replay.compare import compare_stage
from dflash_vectors.replay.findings import PREFILL_ROUND, Finding, Report, Trail
from dflash_vectors.replay.lanes import Lane, Lanes, Value
from dflash_vectors.replay.stages import Own, Stages
from dflash_vectors.trace import Configuration, Round

CLAUSES = {
    "features": "TAP-001", "c": "CTX-001", "hidden": "DRAFT-011", "logits": "HEAD-001", "unary": "HEAD-006",
    "g": "SEL-006", "scores": "SEL-001", "q": "SEL-004", "target.features": "TAP-001", "target.logits": "TGT-004",
}  # fmt: skip
"""Whom a stage blames where nothing more special is known."""
LAYER_CLAUSES = {False: "DRAFT-010", True: "CONV-008"}
"""Whom a layer blames, by whether the draft is a DFlash2 draft."""

Findings = Generator[Finding, None, Any]


class Judge:
    """Judges rounds. `lanes` and `state` are None without weights: then only recorded numbers decide."""

    def __init__(self, asked: Configuration, lanes: Lanes | None, state: Request | None, report: Report) -> None:
        self.asked, self.lanes, self.state, self.report = asked, lanes, state, report
        self.profile: Profile = asked.rules
        self.sampled = not processing.is_greedy(asked.temperature, self.profile)
        self.drawing = self.sampled and (asked.second or self.profile.axes["proposal"] == "sampled")
        self.keyed = self.sampled and asked.draws == "keyed"
        fines = asked.sampling.get("presence"), asked.sampling.get("frequency")
        self.adjusting = any(fines) or asked.allowed is not None

    @property
    def served(self) -> Request:
        """The request, where there are weights."""
        assert self.state is not None
        return self.state

    def compare(self, number: int, own: Own, tensor: Tensor) -> Iterator[Finding]:
        """One recorded stage against the reference's."""
        done = compare_stage(own, tensor, self.profile)
        self.report.seen(own.name, done.bounds)
        if done.divergence is not None:
            clause = CLAUSES.get(own.name, LAYER_CLAUSES[self.asked.second])
            if own.name == "q" and not self.asked.second:
                clause = "PROC-020"
            yield Finding(number, f"stage.{own.name}", clause, divergence=done.divergence, trail=done.trail)

    def compare_recorded(self, round_: Round, *owns: Own) -> Iterator[Finding]:
        """Those of the stages that were recorded."""
        for own in owns:
            if own.name in round_.stages:
                yield from self.compare(round_.number, own, round_.stages[own.name])

    def proposed(self, round_: Round, stages: Stages | None) -> Findings:
        """The draft's stages and its choice; the proposal as the reference's law reads it, None where it is certain."""
        if stages is None:
            if not self.sampled:
                yield from self._recorded_choice(round_)
            return None
        hidden = None
        for own in stages.layers():
            yield from self.compare_recorded(round_, own)
            hidden = own.value
        assert hidden is not None
        hidden = stages.recorded("hidden", stages.hidden_rows) or hidden
        if isinstance(stages.model, Draft2):
            return (yield from self._walked(round_, walks.Walk(stages, stages.model, hidden)))
        return (yield from self._headed(round_, stages, hidden))

    def _recorded_choice(self, round_: Round) -> Iterator[Finding]:
        """A greedy choice from recorded numbers alone."""
        held = {name: Value(tensor.values.astype(np.float64)) for name, tensor in round_.stages.items()}
        if "logits" in held:
            yield from choices.chosen(round_.number, Rows(held["logits"], self.asked.ids), round_.proposals)
        if "scores" in held and "candidates" in held:
            ids = round_.stages["candidates"].values.astype(np.int64)
            yield from walks.best_steps(round_, ids, Rows(held["scores"], ids.shape[1]))

    def _headed(self, round_: Round, stages: Stages, hidden: Value) -> Findings:
        """A DFlash draft's logits, and the proposals by them."""
        own = stages.logits(hidden)
        yield from self.compare_recorded(round_, own)
        recorded = stages.recorded("logits", stages.hidden_rows)
        if not self.drawing:
            for rows in self._rows(recorded, own.value, own):
                yield from choices.chosen(round_.number, rows, round_.proposals)
            return None
        return (yield from self._drawn(round_, stages, own.value if recorded is None else recorded))

    def _drawn(self, round_: Round, stages: Stages, logits: Value) -> Findings:
        """A DFlash draft's drawn proposals, and their law over all public ids."""
        state, asked = self.served, self.asked
        u = engine.proposal_uniforms(state, round_.extent) if self.keyed else np.zeros(round_.extent)
        filters = asked.temperature, state.settings.top_k, state.settings.top_p

        def law(lane: Lane, rows: Array) -> Array:
            numbers = processing.public_columns(rows[: round_.extent], state.public)
            return processing.propose(numbers, *filters, u, self.profile).q

        own = Own(
            "q",
            stages.lanes.compute(f"round {round_.number}/q", law, logits),
            None,
            lambda lane: law(lane, logits.true),
        )
        yield from self.compare_recorded(round_, own)
        recorded = stages.recorded("q", round_.extent)
        q, off = (own.value, own.value.spread()) if recorded is None else (recorded, 0.0)
        ids = np.tile(np.arange(q.true.shape[1]), (len(q.true), 1))
        if self.keyed:
            bound, trail = np.full(q.true.shape, off), self._drawn_again(round_, ids, q.true)
            for finding in walks.drawn_steps(round_, ids, q.true, bound, u, self.profile, "PROC-020"):
                yield replace(finding, trail=trail)
        for row, token in enumerate(round_.proposals):
            if not q.true[row, token] > 0:
                text = f"row {row}: token {token}, to which the draft's law gives no probability"
                yield Finding(round_.number, "decision.proposals", "PROC-020", text)
        none: Array = np.zeros((0, 0))
        return engine.Drawn((), none, none, round_.proposals, ids, q.true)

    def _drawn_again(self, round_: Round, ids: Array, q: Array) -> Trail:
        """The proposals drawn again, each from the law of its step."""
        state = self.served

        def again(lane: Lane) -> Array:
            u = engine.proposal_uniforms(state, len(q))
            ranks = [selector.drawn(law, float(goal), self.profile) for law, goal in zip(q, u, strict=True)]
            return np.array([row[rank] for row, rank in zip(ids, ranks, strict=True)])

        return Trail(again, lambda other: 0.0 if np.array_equal(other, round_.proposals) else np.inf)

    def _walked(self, round_: Round, walk: walks.Walk) -> Findings:
        """A DFlash2 draft's candidates, scores and law, and the proposals by them."""
        stages, steps = walk.stages, walk.steps
        yield from walk.candidates()
        yield from self.compare_recorded(round_, walk.picked(walk.all))
        g = walk.g()
        yield from self.compare_recorded(round_, g)
        scores = walk.scores(g)
        yield from self.compare_recorded(round_, scores)
        recorded = stages.recorded("scores", steps)
        law = walk.law(recorded or scores.value, self.asked.temperature if self.sampled else 0.0)
        yield from self.compare_recorded(round_, law)
        held = stages.recorded("q", steps)
        q, ids = law.value.true if held is None else held.true, walk.ids[:steps]
        if not self.sampled:
            for rows in self._rows(recorded, scores.value, scores):
                yield from walks.best_steps(round_, ids, rows)
        elif self.keyed and self.state is not None:
            u = engine.proposal_uniforms(self.state, steps)
            bound = None if held is not None else law.bound
            if held is None and bound is None:
                bound = np.full(q.shape, law.value.spread())
            trail = self._drawn_again(round_, ids, q)
            for finding in walks.drawn_steps(round_, ids, q, bound, u, self.profile):
                yield replace(finding, trail=trail)
        none: Array = np.zeros((0, 0))
        return draft2.Proposal((), none, ids, none, none, none, round_.proposals, q)

    def _rows(self, recorded: Value | None, own: Value, stage: Own) -> Iterator[Rows]:
        """The rows that decide: the recorded ones, and the reference's beside them; or the reference's alone."""
        width = own.true.shape[1]
        public = min(width, self.asked.ids) if stage.name.endswith("logits") else width
        if recorded is not None:
            yield Rows(recorded, public)
        again = stage.again if recorded is None else None
        yield Rows(own, public, stage.bound, again, recorded is not None)

    def verified(self, round_: Round, stages: Stages | None, proposal: Any) -> Iterator[Finding]:
        """The target's stages, and its verdict."""
        own = None
        for each in () if stages is None else stages.verify():
            yield from self.compare_recorded(round_, each)
            own = each
        recorded = recorded_rows(round_, "target.logits", round_.extent + 1)
        yield from verdicts.licensed_proposals(round_)
        yield from self.verdict(round_, recorded, own, proposal)
        if not self.sampled:
            yield from verdicts.rejected_proposal(round_)

    def verdict(self, round_: Round, recorded: Value | None, own: Own | None, proposal: Any) -> Iterator[Finding]:
        """The tokens that the target's logits license."""
        logits = recorded if recorded is not None or own is None else own.value
        if self.sampled:
            if self.state is not None and self.lanes is not None and logits is not None:
                if self.keyed:
                    yield from verdicts.keyed(round_, logits, self._verdict_of(round_, proposal), proposal)
                else:
                    yield from verdicts.opaque(round_, self.state, logits, proposal)
            return
        if own is None:
            if recorded is not None and not self.adjusting:
                yield from verdicts.greedy(round_, Rows(recorded, self.asked.ids))
            return
        exact = None if recorded is None else Value(self._adjusted(round_, recorded.true))
        for rows in self._rows(exact, self._moved_adjusted(round_, own.value), own):
            yield from verdicts.greedy(round_, rows)

    def _verdict_of(self, round_: Round, proposal: Any) -> Callable[[Array], tuple[int, Array]]:
        """The sampled verdict by given logits; the prompt's is the draw of the first token."""
        state = self.served

        def judge(logits: Array) -> tuple[int, Array]:
            if round_.number == PREFILL_ROUND:
                key = rng.plain_keys(len(state.prompt), state.frontier, self.profile).prefill
                return 0, np.array([engine.choose(state, logits, key)])
            return engine.judge(state, round_.proposals, logits, proposal)

        return judge

    def _adjusted(self, round_: Round, logits: Array) -> Array:
        """The logits that the target's argmax reads, with the request's mask and penalties where it has any."""
        return engine.adjusted(self.served, logits, round_.proposals) if self.adjusting else logits

    def _moved_adjusted(self, round_: Round, logits: Value) -> Value:
        if not self.adjusting:
            return logits
        return Value(self._adjusted(round_, logits.true), lambda lane: self._adjusted(round_, logits.of(lane)))


def recorded_rows(round_: Round, name: str, rows: int) -> Value | None:
    """The first `rows` rows of a recorded stage; None where it has not so many."""
    tensor = round_.stages.get(name)
    if tensor is None or len(tensor.values) < rows:
        return None
    return Value(tensor.values[:rows].astype(np.float64))
