"""The laws of draws that an implementation makes with its own randomness: counted, and tested against closed forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
from dflash_spec.errors import ImplementationError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.law import closed, rule, statistics
from dflash_vectors.law.asking import Question, ask
from dflash_vectors.law.families import WEIGHTS, Round, Row, draft_row, round_of, target_row
from dflash_vectors.law.seeds import hashes
from dflash_vectors.law.uniforms import unanswered
from dflash_vectors.law.verdicts import SAMPLING, Finding, Told
from dflash_vectors.law.verify import counts
from dflash_vectors.runners.protocol import Runner

CHUNK = 10_000
"""Seeds of one call."""
Weights = Mapping[Any, Fraction]
Step = Callable[[str], None]

TOKENS = ("dyadic", "twenty-eighths", "zeros")
"""The laws of one token that are sampled."""


def token_rows(profile: Profile) -> dict[str, Row]:
    """The laws of one token that are sampled."""
    return {name: target_row(WEIGHTS[name], profile) for name in TOKENS}


def sampled_rounds(profile: Profile) -> list[Round]:
    """The rounds that are sampled: certain proposals; a law over every id; one over few candidates, as a selector's."""
    likely, uneven, last = (19, 1, 0, 0, 0), (3, 1, 4, 2, 6), (1, 5, 2, 0, 8)
    rows = [target_row(weights, profile) for weights in (likely, uneven, last)]
    certain = round_of("certain proposals", [*rows, rows[0]], profile, tries=1)
    full = [draft_row(dict(enumerate(weights)), profile) for weights in ((5, 2, 1, 1, 1), (1, 2, 3, 4, 6))]
    few = [draft_row(weights, profile) for weights in ({4: 5, 0: 2, 2: 1}, {0: 9, 3: 2, 1: 5})]
    return [
        certain,
        round_of("proposals from every id", rows, profile, full),
        round_of("proposals from few candidates", [rows[1], rows[0], rows[2]], profile, few),
    ]


@dataclass(frozen=True)
class Table:
    """One table of counts: how often each outcome was seen, and the law that it should have."""

    name: str
    counts: Mapping[Any, int]
    law: Weights

    def test(self) -> statistics.Test:
        keys = [*self.law, *(key for key in self.counts if key not in self.law)]
        law = [float(self.law.get(key, 0)) for key in keys]
        return statistics.compared(self.name, [self.counts.get(key, 0) for key in keys], law)

    def told(self) -> tuple[Told, ...]:
        """The outcomes that are off most, for their size; impossible ones first."""
        total = max(sum(self.counts.values()), 1)

        def off(key: Any) -> float:
            expected = float(self.law.get(key, 0)) * total
            return abs(self.counts.get(key, 0) - expected) / expected**0.5 if expected else float("inf")

        keys = sorted({*self.counts, *self.law}, key=lambda key: (-off(key), str(key)))
        return tuple(Told(words(key), float(self.law.get(key, 0)), self.counts.get(key, 0) / total) for key in keys[:4])


def judge_tokens(runner: Runner, step: Step, name: str, row: Row, profile: Profile, samples: int, seed: int) -> Finding:
    """The law of single draws, and that the draws of two seeds have nothing to do with each other.

    Clause: LAW-015
    Source: arXiv 2302.01318.
    """
    made = Finding("proc.sample_tokens", name, SAMPLING, "LAW-015", samples=samples, size=len(row.ids))
    question = Question.of("proc.sample_tokens", profile, ("LAW-015",), support=row.ids, p=row.weights)
    drawn: list[int] = []
    try:
        for seeds in seeds_of(f"{made.op}/{name}/{profile.name}", seed, samples):
            drawn += ask(runner, question.case(seeds=seeds))["tokens"].tolist()
            step(f"{made.op} {name}")
    except ImplementationError as error:
        return unanswered(made, error)
    pairs = {(a, b): p * r for (a, p), (b, r) in product(row.law.items(), repeat=2)}
    neighbours = Counter(zip(drawn[::2], drawn[1::2], strict=False))
    note(made, [Table("tokens", Counter(drawn), row.law), Table("tokens of two seeds", neighbours, pairs)])
    return made


def judge_rounds(runner: Runner, step: Step, given: Round, profile: Profile, samples: int, seed: int) -> Finding:
    """The law of whole rounds: proposals, each test, the accepted count, each token, and all of it together."""
    made = Finding("law.sample_rounds", given.name, SAMPLING, "LAW-014", samples=samples)
    made.size = sum(len(row.ids) for row in (*given.p, *given.q))
    proposals = [row.ids[0] for row in given.q] or [slot[0] for slot in given.proposals]
    question = Question.of(
        made.op, profile, ("LAW-014",), own_law=int(bool(given.q)), proposals=proposals,
        candidates=[row.ids for row in given.q] or [[id_] for id_ in proposals],
        q=[row.weights for row in given.q] or [[1.0]] * len(proposals),
        support=[row.ids for row in given.p], p=[row.weights for row in given.p],
    )  # fmt: skip
    seen: list[tuple[tuple[int, ...], rule.Outcome]] = []
    try:
        for seeds in seeds_of(f"{made.op}/{given.name}/{profile.name}", seed, samples):
            seen += rounds_of(ask(runner, question.case(seeds=seeds)), seeds)
            step(f"{made.op} {given.name}")
    except ImplementationError as error:
        return unanswered(made, error)
    q = [row.law for row in given.q] or [{id_: Fraction(1)} for id_ in proposals]
    note(made, list(tables(seen, [row.law for row in given.p], q)))
    return made


def seeds_of(key: str, seed: int, samples: int) -> Iterator[Array]:
    """Distinct seeds, CHUNK at a time, that are keyed by the law and by the run's own seed."""
    whole = hashes(f"{key}/{seed}", samples)
    for start in range(0, samples, CHUNK):
        yield whole[start : start + CHUNK]


def rounds_of(answer: Mapping[str, Array], seeds: Array) -> list[tuple[tuple[int, ...], rule.Outcome]]:
    """(proposals, (accepted, tokens)) of each round. Raises ImplementationError where they cannot be read as such."""
    drawn, accepted, licensed = answer["proposals_drawn"], answer["accepted"], answer["licensed"]
    slots = np.arange(licensed.shape[1])
    wrong = (accepted < 0) | (accepted > drawn.shape[1])
    after = ((slots > accepted[:, np.newaxis]) & (licensed != 0)).any(axis=1)
    for bad, told in ((wrong, f"expected 0 to {drawn.shape[1]}"), (after, "expected 0 in the slots after its tokens")):
        for place in np.flatnonzero(bad)[:1]:
            raise ImplementationError(
                f"the round of seed {int(seeds[place])} has {int(accepted[place])} accepted and licensed "
                f"{licensed[place].tolist()}, {told}"
            )
    return [
        (tuple(d), (a, tuple(tokens[: a + 1])))
        for d, a, tokens in zip(drawn.tolist(), accepted.tolist(), licensed.tolist(), strict=True)
    ]


def tables(
    seen: Sequence[tuple[tuple[int, ...], rule.Outcome]], p: Sequence[rule.Weights], q: Sequence[rule.Weights]
) -> Iterator[Table]:
    """What is counted of rounds, and the law of each in closed form."""
    law = closed.round_law("corrected", len(q), lambda before: p[len(before)], lambda before: q[len(before)])
    joint = Counter(outcome for _, outcome in seen)
    accepted = counts(law)
    for slot, offered in enumerate(q):
        reached = [(d[slot], outcome) for d, outcome in seen if outcome[0] >= slot]
        if len(offered) > 1:
            yield Table(f"proposal {slot + 1}", Counter(d[slot] for d, _ in seen), offered)
        shared = sum((min(p[slot].get(id_, rule.NONE), mass) for id_, mass in offered.items()), rule.NONE)
        passed = Counter(outcome[0] > slot for _, outcome in reached)
        yield Table(f"slot {slot + 1} accepted", passed, {True: shared, False: 1 - shared})
        verdicts = Counter((id_, outcome[0] > slot, outcome[1][slot]) for id_, outcome in reached)
        yield Table(f"slot {slot + 1}", verdicts, slot_law(p[slot], offered))
    yield Table("accepted", Counter(accepted_ for _, (accepted_, _) in seen), accepted)
    for place, row in enumerate(p):
        found = Counter(tokens[place] for _, (_, tokens) in seen if len(tokens) > place)
        yield Table(f"token {place + 1}", found, row)
    yield Table("accepted and tokens", joint, law)
    if len(q) > 1:
        drawn = {ids: _product(shares) for ids, shares in _together(q)}
        yield Table("all proposals", Counter(d for d, _ in seen), drawn)
    pairs = {(a, b): x * y for (a, x), (b, y) in product(accepted.items(), repeat=2)}
    both = [outcome[0] for _, outcome in seen]
    yield Table("accepted, of two seeds", Counter(zip(both[::2], both[1::2], strict=False)), pairs)


def _together(q: Sequence[rule.Weights]) -> Iterator[tuple[tuple[int, ...], tuple[Fraction, ...]]]:
    for chosen in product(*(row.items() for row in q)):
        yield tuple(id_ for id_, _ in chosen), tuple(share for _, share in chosen)


def _product(values: Sequence[Fraction]) -> Fraction:
    total = Fraction(1)
    for value in values:
        total *= value
    return total


def slot_law(p: rule.Weights, q: rule.Weights) -> dict[tuple[int, bool, int], Fraction]:
    """The law of (proposal, whether it is accepted, the token that comes of it) in a slot that is reached."""
    rest = rule.left(p, q)
    total = sum(rest.values())
    law = {}
    for id_, mass in q.items():
        shared = min(p.get(id_, rule.NONE), mass)
        law[id_, True, id_] = shared
        for token, weight in rest.items() if total else ():
            law[id_, False, token] = (mass - shared) * weight / total
    return {key: mass for key, mass in law.items() if mass}


def note(made: Finding, given: Sequence[Table]) -> None:
    """Test every table, and keep what a report says of it."""
    for table in given:
        made.tests.append(table.test())
        made.outcomes[table.name] = table.told()
        if set(table.law) == {True, False}:
            made.chances[table.name] = float(table.law[True])


def words(key: Any) -> str:
    """An outcome of a table in words."""
    match key:
        case bool():
            return "accepted" if key else "rejected"
        case (int(id_), bool(passed), int(token)):
            return f"{id_} proposed, {'accepted' if passed else f'rejected, {token} in its place'}"
        case (int(accepted), tuple(tokens)):
            return f"{accepted} accepted, tokens {' '.join(map(str, tokens))}"
        case tuple():
            return " and ".join(map(str, key))
        case _:
            return str(key)
