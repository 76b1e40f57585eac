"""The law of a request as the reference decides it: every outcome of every uniform, round after round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from dflash_reference import rng
from dflash_reference.names import Position
from dflash_spec.tensors import Array

from dflash_vectors.law import model
from dflash_vectors.law.configs import Config
from dflash_vectors.law.expected import Joint, Tokens, joined
from dflash_vectors.law.lanes import Lane, exact_rows, hashed, normalised, play_plain, play_round, remembered
from dflash_vectors.law.symbolic import Draws, Measure, length, outcomes, paths


class State(NamedTuple):
    """A request between rounds: what it has emitted, its token counts, and whether it has ended."""

    emitted: Tokens
    counts: Tokens
    ended: bool


def law_of(config: Config, measure: Measure = length, rows: Callable[[Any], Array] = normalised) -> Joint:
    """The joint law of every round's accepted count and the tokens that are compared, from the anchor on.

    Each round is enumerated on its own and with uniforms of its own: what follows depends on the state alone. That
    draws of different rounds are different draws, `stream_law` does not suppose. `rows` makes exact laws of FP32 ones.
    Raises what the reference raises.
    """
    counts = np.bincount([model.ANCHOR], minlength=config.vocabulary)
    with exact_rows(rows):
        return _Rounds(config, measure).rest(State((model.ANCHOR,), tuple(counts.tolist()), False), config.rounds)


class _Rounds:
    """The rounds of one request; what follows a state is worked out once."""

    def __init__(self, config: Config, measure: Measure) -> None:
        self._config, self._measure = config, measure
        self._identity = remembered(hashed)
        self._rests: dict[tuple[State, int], Joint] = {}

    def rest(self, state: State, rounds: int) -> Joint:
        """The law of what follows a state, in at most `rounds` rounds and then plainly."""
        compared = self._config.length + 1
        if state.ended or len(state.emitted) >= compared:
            return {((), state.emitted[:compared]): Fraction(1)}
        key = state, rounds
        if key not in self._rests:
            found = outcomes(lambda draws: self._step(draws, state, rounds), self._measure)
            steps = ((counts, after, mass) for (counts, after), mass in found.items())
            self._rests[key] = joined(steps, lambda after: self.rest(after, max(rounds - 1, 0)))
        return self._rests[key]

    def _step(self, draws: Draws, state: State, rounds: int) -> tuple[Tokens, State]:
        lane = Lane(self._config, self._identity, draws, state.emitted, np.array(state.counts, dtype=np.int64))
        counts = _play(lane, rounds > 0)
        emitted = tuple(int(token) for token in lane.tokens)
        return counts, State(emitted, tuple(lane.counts.tolist()), lane.ended)


def _play(lane: Lane, speculative: bool) -> Tokens:
    """One round, or one plain token: the accepted count, if there is one."""
    if speculative:
        return (play_round(lane),)
    play_plain(lane, rng.plain_keys(len(lane.prompt), lane.frontier, lane.profile).decode)
    return ()


def stream_paths(config: Config) -> Iterator[tuple[tuple[Tokens, Tokens], Draws]]:
    """Every way in which a whole request can go, its first token drawn too: (counts, all tokens) and the draws.

    One uniform per key for all rounds: where two draws share a key, they share their value.
    """
    identity = remembered(hashed)

    def run(draws: Draws) -> tuple[Tokens, Tokens]:
        lane = Lane(config, identity, draws, (), np.zeros(config.vocabulary, dtype=np.int64))
        lane.frontier = Position(len(lane.prompt))
        play_plain(lane, rng.plain_keys(len(lane.prompt), lane.frontier, lane.profile).prefill)
        counts: Tokens = ()
        while not lane.ended and len(lane.tokens) <= config.length:
            counts += _play(lane, len(counts) < config.rounds)
        return counts, tuple(int(token) for token in lane.tokens[: config.length + 1])

    with exact_rows(normalised):
        yield from paths(run)


def stream_law(config: Config, measure: Measure = length) -> Joint:
    """The joint law of the accepted counts and all tokens, of a request whose draws are those of its keys."""
    found: Joint = {}
    for outcome, draws in stream_paths(config):
        found[outcome] = found.get(outcome, Fraction(0)) + draws.mass(measure)
    return found
