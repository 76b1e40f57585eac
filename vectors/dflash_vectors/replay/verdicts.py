"""The target's decisions of a round: which proposals it accepted, and the token that it added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from dflash_reference import engine, law, processing
from dflash_reference.request import Request
from dflash_spec.tensors import Array

from dflash_vectors import perturb
from dflash_vectors.margins import Decision
from dflash_vectors.replay.choices import Rows, said
from dflash_vectors.replay.findings import Finding, Tie, Trail
from dflash_vectors.replay.lanes import Lane, Value
from dflash_vectors.trace import Round


def licensed_proposals(round_: Round) -> Iterator[Finding]:
    """The accepted proposals are licensed as they stand."""
    for row in range(min(round_.accepted, len(round_.licensed))):
        if round_.licensed[row] != round_.proposals[row]:
            text = f"row {row}: token {round_.licensed[row]}, expected the accepted proposal {round_.proposals[row]}"
            yield Finding(round_.number, "decision.licensed", "LAW-002", text)


def rejected_proposal(round_: Round) -> Iterator[Finding]:
    """Where the target says one token a row, it does not say the proposal that it rejected."""
    accepted = round_.accepted
    if accepted < min(round_.extent, len(round_.licensed)) and round_.licensed[accepted] == round_.proposals[accepted]:
        text = f"{accepted}, expected more: proposal {accepted + 1} is the very token {round_.licensed[accepted]} "
        yield Finding(round_.number, "decision.accepted", "LAW-001", text + "that the target says in its place")


def greedy(round_: Round, rows: Rows) -> Iterator[Finding]:
    """The verdict by the best id of each of `rows` [P + 1, V]: every token that a round licenses is that of its row."""
    for row, token in enumerate(round_.licensed):
        tie = rows.tie(row, int(token))
        if tie is None:
            continue
        if row < round_.accepted:
            text = f"proposal {row + 1} is accepted; {said(tie)}"
            yield Finding(round_.number, "decision.accepted", "LAW-001", text, tie=tie, trail=_trail(round_, rows))
        else:
            yield Finding(
                round_.number, "decision.licensed", "LAW-002", said(tie), tie=tie, trail=_trail(round_, rows)
            )  # fmt: skip


def _trail(round_: Round, rows: Rows) -> Trail:
    """The verdict taken again, by the numbers that decided or by those that another lane computes."""

    def judge(lane: Lane) -> Array:
        numbers = rows.value.true if rows.again is None else rows.again(lane)
        profile = lane.pair.profile
        tokens = processing.greedy(numbers[: round_.extent + 1], rows.public, profile).tokens
        accepted, licensed = law.greedy(round_.proposals, tokens, profile)
        return np.append(licensed[: accepted + 1][: len(round_.licensed)], accepted)

    recorded = np.append(round_.licensed, round_.accepted)
    return Trail(judge, lambda other: 0.0 if np.array_equal(other, recorded) else np.inf)


def keyed(
    round_: Round, logits: Value, judge: Callable[[Array], tuple[int, Array]], proposal: Any
) -> Iterator[Finding]:
    """A sampled verdict whose uniforms are those of the request's seed and each draw's key.

    `judge` takes the verdict by logits, `proposal` holds the law of the proposals where they have one. What the
    verdict rests on is watched while it is taken, once as it is and in every perturbed run, so that each accept test
    and draw has its margin and its doubt.
    """

    def judged(numbers: Array) -> tuple[int, list[int]]:
        accepted, licensed = judge(numbers)
        return accepted, licensed[: accepted + 1][: len(round_.licensed)].tolist()

    with perturb.watching() as taken:
        accepted, licensed = judged(logits.true)
    if (accepted, licensed) == (round_.accepted, round_.licensed.tolist()):
        return
    runs = []
    for lane in range(1, perturb.REPETITIONS + 1):
        with perturb.perturbed(f"round {round_.number}/verdict/{lane}"), perturb.watching() as moved:
            judged(logits.of(lane))
        runs.append(moved)
    decisions = _decisions(taken, runs)
    row = min(accepted, round_.accepted, len(round_.licensed) - 1)
    place, clause = ("licensed", "LAW-011") if accepted == round_.accepted else ("accepted", "LAW-009")
    if not engine.has_law(proposal):
        clause = "LAW-004" if place == "licensed" else "LAW-003"
    if place == "licensed" and accepted == round_.extent:
        clause = "LAW-007"
    expected, got = licensed[row], int(round_.licensed[row])
    decided = _decisive(decisions, place, row)
    tie = Tie(row, expected, got, decided.margin, decided.doubt)
    text = said(tie, "probability")
    if place == "accepted":
        text = f"{round_.accepted}, expected {accepted}: {text}"
    yield Finding(round_.number, f"decision.{place}", clause, text, tie=tie, trail=_again(round_, logits, judged))


def _again(round_: Round, logits: Value, judged: Callable[[Array], tuple[int, list[int]]]) -> Trail:
    """The sampled verdict taken again."""
    recorded = [*round_.licensed.tolist(), round_.accepted]

    def again(lane: Lane) -> Array:
        accepted, licensed = judged(logits.true)
        return np.array([*licensed, accepted])

    return Trail(again, lambda other: 0.0 if other.tolist() == recorded else np.inf)


def _decisions(taken: Sequence[perturb.Taken], runs: Sequence[Sequence[perturb.Taken]]) -> list[Decision]:
    """The decisions as they were taken, with margins and doubts: a run that decides otherwise has others after that."""
    found = []
    for index, true in enumerate(taken):
        others = [run[index] for run in runs if index < len(run)]
        alike = [other for other in others if (other.kind, other.numbers.shape) == (true.kind, true.numbers.shape)]
        found.append(perturb.decision_of(true, max((perturb.moved_by(true, other) for other in alike), default=0.0)))
    return found


def _decisive(decisions: list[Decision], place: str, row: int) -> Decision:
    """The decision that parts two verdicts: the accept test of a row, or the draw after the last of them.

    Where that one is clear, a candidate at the edge of a filter may have changed what was drawn from.
    """
    kind = "accept" if place == "accepted" else "draw"
    found = [decision for decision in decisions if decision.name == kind] or [Decision(kind, np.inf, 0.0)]
    own = found[row] if kind == "accept" and row < len(found) else found[-1]
    edges = [decision for decision in decisions if decision.name in ("cut", "top")]
    doubtful = [decision for decision in edges if decision.margin <= decision.doubt]
    return doubtful[0] if own.margin > own.doubt and doubtful else own


def opaque(round_: Round, state: Request, logits: Value, proposal: Any) -> Iterator[Finding]:
    """A sampled verdict whose draws nobody knows: no token may come that its row gives no probability at all."""
    rows = engine.adjusted(state, logits.true, round_.proposals)
    support, p = engine.distribution(state, rows)[2:]
    for row, token in enumerate(round_.licensed):
        weight = float(p[row][support[row] == token].sum())
        rejected = row == round_.accepted < round_.extent
        if rejected and engine.has_law(proposal):
            weight -= float(proposal.q[row][proposal.candidates[row] == token].sum())
        elif rejected and token == round_.proposals[row]:
            weight = 0.0
        if weight <= 0:
            place, clause = ("licensed", "LAW-011" if engine.has_law(proposal) else "LAW-004")
            if row < round_.accepted:
                place, clause = "accepted", "LAW-010"
            text = f"row {row}: token {token}, to which the target leaves no probability there ({weight:.3g})"
            yield Finding(round_.number, f"decision.{place}", clause, text)
