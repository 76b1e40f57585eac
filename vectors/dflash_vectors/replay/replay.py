"""The walk through a trace: each round is judged along the tokens that the trace itself has committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dflash_reference.names import Position, TokenId
from dflash_reference.request import Request, Settings
from dflash_spec.tensors import Array, Tensor

from dflash_vectors.replay import suspects
from dflash_vectors.replay.compare import compare_stage
from dflash_vectors.replay.findings import BUG, PREFILL_ROUND, Finding, Report
from dflash_vectors.replay.judge import Judge, recorded_rows
from dflash_vectors.replay.lanes import Chunk, History, Lanes, Pair
from dflash_vectors.replay.ledger import Ledger
from dflash_vectors.replay.stages import Own, Stages
from dflash_vectors.trace import Configuration, Prefill, Round, Trace

NONE: Array = np.zeros(0, dtype=np.int64)


class Replay:
    """Judges the rounds of a trace. Without a pair, only what rests on the trace alone."""

    def __init__(self, trace: Trace, pair: Pair | None, only: Sequence[int] | None = None) -> None:
        """`only` are the rounds to judge, all of them if None; the others just move the state along.

        Raises RequestError where the request that the trace tells of cannot be served.
        """
        self.trace, self.asked, self.report = trace, trace.configuration, Report(trace)
        self.only = only
        self.ledger = Ledger(self.asked)
        self.history = History(list(self.asked.prompt))
        self.lanes = None if pair is None else Lanes(pair, self.history)
        self.state = None if pair is None else _request(self.asked, pair)
        self.judge = Judge(self.asked, self.lanes, self.state, self.report)
        self.report.notes.extend(_notes(self.judge))

    def run(self, step: Callable[[int], None] = lambda number: None) -> Report:
        """Judge until the first bug; `step` is called after each round. Raises TraceError for a damaged file."""
        try:
            self._walk(step)
        except KeyboardInterrupt:
            self.report.interrupted = True
        return self.report

    def _walk(self, step: Callable[[int], None]) -> None:
        prefill, end, rounds = self.trace.prefill, self.trace.end, len(self.trace)
        if prefill is None and not rounds:
            self.report.notes.append("neither a prefill nor a round was recorded: nothing is judged")
            return
        first = self.trace.round(0).anchor if prefill is None else prefill.first
        if self._take(self._begun(prefill, first)):
            return
        for round_ in self.trace.rounds():
            self.report.accepted.append(round_.accepted)
            if self._take(self._played(round_, round_.number == rounds - 1)):
                return
            step(round_.number)
        self.report.complete = not self._take(self.ledger.finish(end, rounds))
        if end is None:
            self.report.notes.append(f"the trace has no end: the run stopped, or died, after {rounds} rounds")

    def _take(self, findings: Iterator[Finding]) -> bool:
        """Keep findings up to the first bug, and say whether there is one."""
        for finding in findings:
            if finding.verdict == BUG and self.lanes is not None:
                finding = suspects.named(finding, self.lanes, self.trace)
            self.report.findings.append(finding)
            if finding.verdict == BUG:
                return True
        return False

    def _judges(self, number: int) -> bool:
        return self.only is None or number in self.only

    def _begun(self, prefill: Prefill | None, first: int) -> Iterator[Finding]:
        """The prompt's pass, and the token after it."""
        yield from self.ledger.begin(first, prefill)
        if self._judges(PREFILL_ROUND):
            place = "in.anchor" if prefill is None else "decision.first"
            for finding in self._prompt({} if prefill is None else prefill.stages, first):
                own = finding.place.startswith("decision")
                clause = "PROC-005" if self.judge.sampled else "PROC-002"
                yield replace(finding, place=place, clause=clause) if own else finding
        if self.state is not None:
            self.state.anchor = TokenId(first)
            self.state.keep(np.array([first]), own_law=True)

    def _prompt(self, stages: Mapping[str, Tensor], first: int) -> Iterator[Finding]:
        """The pass as a round whose anchor is the prompt's last token, and which licenses the first new one."""
        *before, last = self.asked.prompt
        round_ = Round(PREFILL_ROUND, len(before), last, 0, NONE, 0, np.array([first]), 1, {}, stages, {}, {})
        own = None
        if self.lanes is not None:
            whole = Chunk(0, len(self.asked.prompt), None, None)
            yield from self.judge.compare_recorded(round_, captured(self.lanes, whole))
            self.history.ids.pop()
            _, own = Stages(self.lanes, self.asked, round_).verify()
        tensor = stages.get("target.logits")
        if tensor is not None:
            tensor = Tensor(tensor.dtype, tensor.values[-1:])
            round_ = replace(round_, stages={"target.logits": tensor})
        if own is not None:
            yield from self.judge.compare_recorded(round_, own)
        yield from self.judge.verdict(round_, recorded_rows(round_, "target.logits", 1), own, None)
        if self.lanes is not None:
            self.history.ids.append(last)

    def _played(self, round_: Round, last: bool) -> Iterator[Finding]:
        """One round: what it was given, what it proposed, what it verified, what it left."""
        judging = self._judges(round_.number)
        self.report.judged += judging
        yield from self.ledger.open(round_)
        stages = None if self.lanes is None else Stages(self.lanes, self.asked, round_)
        if self.state is not None:
            self.state.anchor, self.state.frontier = TokenId(round_.anchor), Position(round_.frontier)
        if round_.extent or "features" in round_.stages:
            yield from self._caught_up(round_, stages, judging)
        if judging:
            proposal = (yield from self.judge.proposed(round_, stages)) if round_.extent else None
            yield from self.judge.verified(round_, stages, proposal)
        yield from self.ledger.close(round_, last)
        if round_.kept:
            self.history.ids.extend([round_.anchor, *round_.kept_tokens[:-1]])
            if self.state is not None:
                self.state.keep(round_.licensed, self.judge.drawing and round_.extent > 0)

    def _caught_up(self, round_: Round, stages: Stages | None, judging: bool) -> Iterator[Finding]:
        """The rows that became context at the round's start."""
        waiting = self.ledger.waiting
        given = (recorded_rows(round_, name, waiting) for name in ("features", "c"))
        arrays = [None if rows is None else rows.true for rows in given]
        self.history.chunks.append(Chunk(self.ledger.context, self.ledger.frontier, *arrays))
        owns = [] if stages is None else stages.context()
        for finding in self.ledger.features(round_):
            if owns and finding.place == "stage.features" and arrays[0] is not None:
                trail = compare_stage(next(iter(owns)), round_.stages["features"], self.asked.rules).trail
                finding = replace(finding, trail=trail)
            yield finding
        self.ledger.caught_up()
        for own in owns if judging else ():
            yield from self.judge.compare_recorded(round_, own)


def captured(lanes: Lanes, chunk: Chunk) -> Own:
    """What the target has captured of the prompt."""
    value = lanes.compute("prefill/features", lambda lane: lane.own_features(chunk))
    return Own("target.features", value, None, lambda lane: lane.own_features(chunk))


def _request(asked: Configuration, pair: Pair) -> Request:
    """The request as the reference would serve it."""
    sampling: dict[str, Any] = dict(asked.sampling)
    if "top_k" in sampling:
        sampling["top_k"] = int(sampling["top_k"])
    if asked.allowed is not None:
        sampling["allowed"] = np.frombuffer(asked.allowed, dtype=np.uint8)
    settings = Settings(
        asked.drafts, asked.max_new, asked.stop_ids, asked.public, asked.temperature, asked.seed, asked.chunks,
        **sampling,
    )  # fmt: skip
    return Request(pair.target, asked.prompt, settings, pair.profile, asked.positions)


def _notes(judge: Judge) -> Iterator[str]:
    """What cannot be judged, and why."""
    if judge.lanes is None:
        yield (
            "no weights were given: judged is what the trace says of itself, its whole numbers, its copies, and its "
            "choices by recorded numbers; no tensor is computed"
        )
        if judge.adjusting:
            yield "the request has a mask or penalties: without weights, none of its tokens is judged"
        if judge.sampled:
            yield "the request is sampled: without weights, none of its draws is judged"
    elif judge.sampled and not judge.keyed:
        yield (
            "the implementation's draws are its own and opaque: sampled decisions are checked for consistency only "
            "(accepted tokens are the proposals, and no token comes that has no probability), not for their law"
        )
