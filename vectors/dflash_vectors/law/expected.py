"""What a request's law must be: plain decoding's rows, multiplied, and the closed form of every round.

Rows come from the reference's pipeline, one text at a time, with counts of the text itself: no block, no overlay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import TypeVar

import numpy as np
from dflash_reference import penalties, processing, selector
from dflash_spec.registry import load_profile

from dflash_vectors.law import closed, model
from dflash_vectors.law.configs import BACKENDS, Config
from dflash_vectors.law.lanes import normalised, settings_of

Tokens = tuple[int, ...]
State = TypeVar("State")
Joint = dict[tuple[Tokens, Tokens], Fraction]
"""(accepted counts of the rounds, tokens from the first one on) -> probability."""


class Expected:
    """The law of one request, by the unpatched reference's rows."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.backend = BACKENDS[config.backend]
        self.profile = load_profile(self.backend.profile)
        self._rows: dict[Tokens, closed.Law] = {}
        self._stops = model.stop_ids(config)
        self._rests: dict[tuple[Tokens, int], Joint] = {}

    def row(self, emitted: Tokens) -> closed.Law:
        """Plain decoding's next token after `emitted`."""
        if emitted not in self._rows:
            self._rows[emitted] = self._row(emitted)
        return self._rows[emitted]

    def _row(self, emitted: Tokens) -> closed.Law:
        asked, public = settings_of(self.config), self.config.vocabulary
        logits = model.target_logits(public, model.PROMPT + emitted)[np.newaxis]
        counts = np.bincount(emitted, minlength=logits.shape[1])
        allowed = np.ones(logits.shape, dtype=np.bool_)
        allowed[0, :public] = model.allowed_ids(self.config, emitted)
        nothing = np.zeros((1, 0), dtype=np.int64)
        adjusted = penalties.adjust(
            logits, public, allowed, counts, nothing, asked.presence, asked.frequency, self.profile
        ).adjusted
        if self.backend.verify == "law.greedy":
            return {int(np.argmax(adjusted[0])): Fraction(1)}
        filters = asked.top_k, asked.min_p, asked.top_p
        done = processing.supported(adjusted, asked.temperature, *filters, self.profile)
        return _law(done.support[0].tolist(), normalised(done.p)[0].tolist())

    def offered(self, emitted: Tokens, prefix: Tokens) -> closed.Law:
        """The law of the proposal after `prefix` in the block that follows `emitted`."""
        config, text, slot = self.config, model.PROMPT + emitted, len(prefix)
        temperature = settings_of(config).temperature
        if self.backend.drafter == "any":
            return {token: Fraction(1, config.vocabulary) for token in range(config.vocabulary)}
        if self.backend.drafter == "argmax":
            return {int(np.argmax(model.draft_logits(config, text, slot))): Fraction(1)}
        if self.backend.drafter == "selector":
            scores = model.edge_scores(config, text, slot, (*emitted, *prefix)[-1])
            q = normalised(selector.softened(scores, temperature))
            return _law(model.candidates(config, text, slot).tolist(), q.tolist())
        asked, row = settings_of(config), model.draft_logits(config, text, slot)[np.newaxis]
        done = processing.supported(row, temperature, asked.top_k, 0.0, asked.top_p, load_profile("zlab"))
        return _law(done.support[0].tolist(), normalised(done.p)[0].tolist())

    def plain(self) -> Mapping[Tokens, Fraction]:
        """The law of the tokens that are compared, by the target alone, from the anchor on."""
        found: dict[Tokens, Fraction] = {(model.ANCHOR,): Fraction(1)}
        for _ in range(min(self.config.budget, self.config.length)):
            found = {
                longer: mass * p
                for emitted, mass in found.items()
                for longer, p in self._continued(emitted).items()
            }  # fmt: skip
        return found

    def _continued(self, emitted: Tokens) -> Mapping[Tokens, Fraction]:
        if self._ended(emitted):
            return {emitted: Fraction(1)}
        return {(*emitted, token): p for token, p in self.row(emitted).items()}

    def _ended(self, emitted: Tokens) -> bool:
        """Whether a stop id or the budget ends the text. The anchor of the first round is no end, whatever its id."""
        return len(emitted) > self.config.budget or (len(emitted) > 1 and emitted[-1] in self._stops)

    def joint(self) -> Joint:
        """The joint law of every round's accepted count and the tokens that are compared, from the anchor on."""
        return self._rest((model.ANCHOR,), self.config.rounds)

    def stream(self) -> Joint:
        """That of a whole request, whose first token is drawn too and may end it."""
        first = (((), (token,), p) for token, p in self.row(()).items())
        return joined(
            first,
            lambda emitted: (
                {((), emitted): Fraction(1)} if emitted[0] in self._stops else self._rest(emitted, self.config.rounds)
            ),
        )

    def _rest(self, emitted: Tokens, rounds: int) -> Joint:
        """That of what follows `emitted` in at most `rounds` rounds and then plainly."""
        if len(emitted) > self.config.length or self._ended(emitted):
            return {((), emitted[: self.config.length + 1]): Fraction(1)}
        key = emitted, rounds
        if key not in self._rests:
            remaining = self.config.budget + 1 - len(emitted)
            steps = (
                (counts, emitted + closed.kept_of(licensed, self._stops, remaining), mass)
                for (counts, licensed), mass in self._step(emitted, rounds, remaining).items()
            )
            self._rests[key] = joined(steps, lambda after: self._rest(after, max(rounds - 1, 0)))
        return self._rests[key]

    def _step(self, emitted: Tokens, rounds: int, remaining: int) -> Joint:
        """One round: its count and licensed tokens; or one plain token, without a count."""
        if not rounds:
            return {((), (token,)): p for token, p in self.row(emitted).items()}
        extent = closed.extent_of(self.profile.axes["extent"], self.config.drafts, remaining)
        is_independent = self.backend.verify == "law.match" or self.backend.drafter == "any"
        rule = "match" if is_independent else "corrected"
        round_ = closed.round_law(
            rule, extent, lambda prefix: self.row(emitted + prefix), lambda prefix: self.offered(emitted, prefix)
        )
        return {((count,), licensed): mass for (count, licensed), mass in round_.items()}


def joined(steps: Iterable[tuple[Tokens, State, Fraction]], rest: Callable[[State], Joint]) -> Joint:
    """The law of what a step and the rest after it say together: (counts, state after, mass) of each step's outcome."""
    found: dict[tuple[Tokens, Tokens], Fraction] = defaultdict(Fraction)
    for counts, state, mass in steps:
        for (later, tokens), share in rest(state).items():
            found[counts + later, tokens] += mass * share
    return dict(found)


def marginal(joint: Joint) -> dict[Tokens, Fraction]:
    """The law of the tokens alone."""
    found: dict[Tokens, Fraction] = defaultdict(Fraction)
    for (_, tokens), mass in joint.items():
        found[tokens] += mass
    return dict(found)


def _law(ids: list[int], weights: list[Fraction]) -> closed.Law:
    return {token: weight for token, weight in zip(ids, weights, strict=True) if weight}
