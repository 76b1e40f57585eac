"""What a trace must say in whole numbers: frontiers, anchors, extents, counts and ends follow from the round before.

Nothing here computes a tensor. The rules are the reference's own functions, on what the trace has committed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_reference import block, stop
from dflash_reference.names import Position
from dflash_spec.registry import load_clauses
from dflash_spec.tensors import Array

from dflash_vectors.replay.findings import PREFILL_ROUND, Finding
from dflash_vectors.trace import Configuration, End, Prefill, Round

EXTENT_CLAUSES = {"remaining_minus_one": "BLK-004", "remaining": "BLK-005", "block": "BLK-010"}
REASON_CLAUSES = {
    "stop": "STOP-001",
    "length": "STOP-003",
    "capacity": "STOP-003",
    "cancelled": "COMMIT-003",
    "error": "COMMIT-003",
}


LIMITS = {"length", "capacity"}
LIMIT_REASON = "STOP-010"
"""Which of two limits has ended a request; a rule of the profiles that tell them apart."""


class Ledger:
    """Where a right engine stands after the rounds so far."""

    def __init__(self, asked: Configuration) -> None:
        self.asked = asked
        self.frontier = len(asked.prompt)
        self.context = 0
        self.tokens: list[int] = []
        self.terminal = False
        self.cancelled = False
        self._captured: list[Array | None] = []  # of the rows that are not context yet, in order

    @property
    def remaining(self) -> int:
        """How many tokens the budget has left."""
        return self.asked.budget - len(self.tokens)

    @property
    def waiting(self) -> int:
        """How many rows are not context yet."""
        return self.frontier - self.context

    def begin(self, first: int, prefill: Prefill | None) -> Iterator[Finding]:
        """The token after the prompt, and what the pass over the prompt has left."""
        self.tokens.append(first)
        self.terminal = self._ended()
        captured = None if prefill is None else prefill.stages.get("target.features")
        self._captured.append(None if captured is None else captured.values)
        for name, value in () if prefill is None else prefill.frontiers.items():
            wanted = (0, self.frontier) if name == "context" else (self.frontier,)
            if value not in wanted:
                yield self._number(PREFILL_ROUND, f"frontier.{name}", "COMMIT-001", value, wanted[-1])

    def open(self, round_: Round) -> Iterator[Finding]:
        """What the round was given: it is there at all, its frontier, its anchor, its extent."""
        if self.terminal:
            clause = "STOP-004" if len(self.tokens) == 1 else "STOP-003" if self.remaining < 1 else "STOP-001"
            yield Finding(round_.number, "in.frontier", clause, "a round, expected none: the request had ended before")
        if round_.frontier != self.frontier:
            yield self._number(round_.number, "in.frontier", "COMMIT-001", round_.frontier, self.frontier)
        if round_.anchor != self.tokens[-1]:
            yield self._number(round_.number, "in.anchor", "COMMIT-001", round_.anchor, self.tokens[-1])
        extent = self.extent()
        if round_.extent != extent:
            clause = EXTENT_CLAUSES[self.asked.rules.axes["extent"]]
            yield self._number(round_.number, "in.extent", clause, round_.extent, extent)

    def extent(self) -> int:
        """How many proposals the next round verifies."""
        drafts, rules = self.asked.drafts, self.asked.rules
        given = drafts, self.remaining, self.asked.positions, Position(self.frontier)
        return block.extent(*given, rules).extent if drafts else 0

    def features(self, round_: Round) -> Iterator[Finding]:
        """How many rows became context, and that their features are the captured ones: bit by bit."""
        wanted, first = self.waiting, self.context == 0
        for name in ("features", "c"):
            rows = len(round_.stages[name].values) if name in round_.stages else wanted
            if rows != wanted:
                clause = "TAP-004" if first else "CTX-010" if rows == 0 else "CTX-009"
                said = f"{rows} rows, expected {wanted}, those of positions {self.context} to {self.frontier - 1}"
                yield Finding(round_.number, f"stage.{name}", clause, said)
        tensor = round_.stages.get("features")
        if tensor is not None and all(part is not None for part in self._captured):
            captured = np.concatenate([part for part in self._captured if part is not None])
            wrong = np.argwhere(~((captured == tensor.values) | (np.isnan(captured) & np.isnan(tensor.values))))
            if captured.shape == tensor.values.shape and len(wrong):
                row, column = map(int, wrong[0])
                said = (
                    f"row {row}, channel {column} is {tensor.values[row, column]:.8g}, expected "
                    f"{captured[row, column]:.8g}, as target.features had it at position {self.context + row}"
                )
                yield Finding(round_.number, "stage.features", "CTX-009", said)

    def caught_up(self) -> None:
        """All rows are context."""
        self.context = self.frontier
        self._captured.clear()

    def close(self, round_: Round, last: bool) -> Iterator[Finding]:
        """What was kept, and where the state was left; `last` is whether the trace has no round after this one."""
        stop_ids = np.array(self.asked.stop_ids, dtype=np.int64)
        kept, terminal = stop.preview(round_.licensed, stop_ids, self.remaining, self.asked.rules)
        if round_.kept == 0 and last:
            self.cancelled, terminal = True, 1
        elif round_.kept != kept or (kept <= round_.accepted and not terminal):
            kept = max(kept, round_.accepted + 1) if not terminal else kept
            yield self._number(round_.number, "decision.kept", self._kept_clause(round_, kept), round_.kept, kept)
        base, after, block_rows = self.frontier, self.frontier + round_.kept, round_.extent + 1
        for name, value in round_.frontiers.items():
            wanted = {self.context, base, after} if name == "context" else {after}
            if value in wanted:
                continue
            clause, said = "COMMIT-001", ""
            if name == "kv":
                clause = "COMMIT-002"
            elif name == "context":
                clause = "DRAFT-014" if value == base + block_rows else "CTX-010" if value < base else "CTX-009"
            elif value == after + round_.kept:
                clause, said = "COMMIT-008", f" (the round moves it by {round_.kept}, once)"
            wanted_number = base if name == "context" else after
            yield self._number(round_.number, f"frontier.{name}", clause, value, wanted_number, said)
        captured = round_.stages.get("target.features")
        self._captured.append(None if captured is None else captured.values[: round_.kept])
        self.tokens += round_.kept_tokens
        self.frontier = after
        self.terminal = bool(terminal)

    def _kept_clause(self, round_: Round, kept: int) -> str:
        if round_.kept > self.remaining:
            return "STOP-003"
        return "STOP-001" if round_.kept > kept else self._early_clause()

    def _early_clause(self) -> str:
        """Which rule an end breaks for which no kept token is a reason."""
        return "STOP-012" if self.asked.draft.mask_id in self.asked.stop_ids else "STOP-002"

    def finish(self, end: End | None, rounds: int) -> Iterator[Finding]:
        """Whether the run ended where it had to, for the right reason, and with the tokens of its rounds."""
        if end is None:
            return
        number = rounds - 1
        if end.tokens is not None and list(end.tokens) != self.tokens:
            mask = self.asked.draft.mask_id
            dropped = list(end.tokens) == [token for token in self.tokens if token != mask]
            at = next((i for i, (a, b) in enumerate(zip(end.tokens, self.tokens, strict=False)) if a != b), None)
            where = "" if at is None else f"; token {at} is {end.tokens[at]}, expected {self.tokens[at]}"
            said = f"{len(end.tokens)} tokens, expected the {len(self.tokens)} that were kept{where}"
            yield Finding(number, "end.tokens", "STOP-013" if dropped else "STOP-001", said)
        reason = self._reason()
        if end.reason != reason and not (reason == "cancelled" and end.reason == "error"):
            clause = self._early_clause() if not self.terminal else REASON_CLAUSES[reason]
            if {end.reason, reason} == LIMITS and load_clauses()[LIMIT_REASON].holds_in(self.asked.rules):
                clause = LIMIT_REASON
            expected = "no end yet" if not self.terminal else f"{reason!r}"
            yield Finding(number, "end.reason", clause, f"{end.reason!r}, expected {expected}")

    def _ended(self) -> bool:
        return self.tokens[-1] in self.asked.stop_ids or self.remaining < 1

    def _reason(self) -> str:
        if self.cancelled or not self.terminal:
            return "cancelled"  # the one end that needs no reason in the tokens
        if self.tokens[-1] in self.asked.stop_ids:
            return "stop"
        return "length" if len(self.tokens) == self.asked.max_new else "capacity"

    @staticmethod
    def _number(number: int, place: str, clause: str, got: int, expected: int, more: str = "") -> Finding:
        return Finding(number, place, clause, f"{got}, expected {expected}{more}")
