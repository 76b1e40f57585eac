"""What rounds came to: accepted counts, acceptance by position, tokens a round and a second, times by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import add
from typing import Any

from dflash_spec.errors import RequestError

from dflash_accelerated.requests import Generation, Round
from dflash_accelerated.timing import StageTimes

BAR = 30
NO_TIME = StageTimes()
NAMES = ("propose", "verify", "decide", "commit")


@dataclass(frozen=True)
class Statistics:
    """Counts and times of some answers. Two of them add up.

    `answers` prompts were read and `tokens` emitted, the first of each answer by its prefill and the others in `rounds`
    rounds. `accepted[n]` of these accepted n proposals, n from 0 to K. `tested[i]` of them had their proposal i + 1
    tested, which is so where all before it were accepted, and `stood[i]` accepted it.

    `seconds` are sums of the host's clock. A joint round's time is divided among its requests, so that the sums of
    requests that ran together are the time that the engine took. `prefill` has the whole first round of each answer.

        answers = engine.generate_batch(requests)
        print(Statistics.of(answers))
    """

    answers: int = 0
    rounds: int = 0
    tokens: int = 0
    accepted: tuple[int, ...] = ()
    tested: tuple[int, ...] = ()
    stood: tuple[int, ...] = ()
    seconds: StageTimes = NO_TIME

    @staticmethod
    def of(made: Generation | Round | Iterable[Generation | Round]) -> Statistics:
        """The statistics of an answer, of several, or of the rounds of `stream` or `step`. Raises RequestError."""
        tally = Tally()
        if isinstance(made, Generation | Round):
            made = [made]
        if not isinstance(made, Iterable):
            raise RequestError(f"statistics of {type(made).__name__}, expected answers or rounds")
        for each in made:
            if isinstance(each, Generation):
                tally.add_answer(each)
            elif isinstance(each, Round):
                tally.add(each)
            else:
                raise RequestError(f"statistics of {type(each).__name__}, expected answers or rounds")
        return tally.read()

    def __add__(self, other: Statistics) -> Statistics:
        """Both together."""
        if not isinstance(other, Statistics):
            return NotImplemented
        return Statistics(
            self.answers + other.answers,
            self.rounds + other.rounds,
            self.tokens + other.tokens,
            _sums(self.accepted, other.accepted),
            _sums(self.tested, other.tested),
            _sums(self.stood, other.stood),
            StageTimes._make([*map(add, self.seconds[:-1], other.seconds[:-1]), 1]),
        )

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that a round emits; None without a round. Plain decoding has 1."""
        return (self.tokens - self.answers) / self.rounds if self.rounds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens that rounds emit in a second, without the reading of prompts; None where no time was taken."""
        decoding = self.seconds.total - self.seconds.prefill
        return (self.tokens - self.answers) / decoding if self.rounds and decoding > 0 else None

    @property
    def acceptance(self) -> tuple[float | None, ...]:
        """By position, the share of the rounds that tested a proposal there which accepted it; None if none did."""
        return tuple(stood / tested if tested else None for stood, tested in zip(self.stood, self.tested, strict=True))

    def record(self) -> dict[str, Any]:
        """All of it as JSON has it: numbers, lists, and seconds by stage."""
        seconds = self.seconds._asdict()
        del seconds["requests"]
        return {
            "answers": self.answers,
            "rounds": self.rounds,
            "tokens": self.tokens,
            "accepted": list(self.accepted),
            "tested": list(self.tested),
            "stood": list(self.stood),
            "acceptance": list(self.acceptance),
            "tokens_per_round": self.tokens_per_round,
            "tokens_per_second": self.tokens_per_second,
            "seconds": seconds,
        }

    def __str__(self) -> str:
        """A headline, the histogram of accepted counts, acceptance by position, and times."""
        lines = [f"{_count(self.answers, 'answer')}, {_count(self.tokens, 'token')} in {_count(self.rounds, 'round')}"]
        for value, unit in ((self.tokens_per_round, "a round"), (self.tokens_per_second, "a second")):
            lines[0] += "" if value is None else f", {value:.2f} tokens {unit}"
        if self.tested:
            lines += ["accepted  rounds"]
            lines += _histogram(self.accepted)
            lines += ["position  tested  accepted"]
            lines += [
                f"{at:8d}  {tested:6d}  {stood / tested:7.1%}  {_bar(stood, tested)}".rstrip()
                for at, (tested, stood) in enumerate(zip(self.tested, self.stood, strict=True), 1)
                if tested
            ]
        return "\n".join([*lines, *self._times()])

    def _times(self) -> list[str]:
        if not self.seconds.total:
            return []
        lines = ["stage           ms a round   share"]
        if self.answers:
            lines.append(f"prefill   {1000 * self.seconds.prefill / self.answers:16.3f}       –  a prompt")
        decoding = self.seconds.total - self.seconds.prefill
        for name in NAMES if self.rounds and decoding else ():
            spent = getattr(self.seconds, name)
            lines.append(f"{name:8}  {1000 * spent / self.rounds:16.3f}  {spent / decoding:6.1%}")
        return lines


class Tally:
    """Statistics as they grow: memory for K + 1 counts, however many rounds."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._answers = self._tokens = 0
        self._outcomes: Counter[tuple[int, int]] = Counter()
        self._seconds = [0.0] * len(NO_TIME[:-1])
        self._shared, self._parts = NO_TIME, 0
        """What the latest rounds shared, and how many of them; not yet among the seconds."""

    def add(self, latest: Round) -> None:
        """A round; one that ended with an error decided nothing, and adds its time alone."""
        self._tokens += len(latest.tokens)
        if latest.accepted is None:
            self._add_prompt(latest.times)
            return
        if not latest.error:
            self._add_outcome(len(latest.proposals), latest.accepted)
        self._spend(latest.times)

    def add_answer(self, made: Generation) -> None:
        """All rounds of an answer."""
        times = made.times or (NO_TIME,) * (1 + len(made.accepted))
        self._tokens += len(made.tokens)
        self._add_prompt(times[0])
        for proposals, accepted, spent in zip(made.proposals, made.accepted, times[1:], strict=True):
            self._add_outcome(len(proposals), accepted)
            self._spend(spent)

    def read(self) -> Statistics:
        """What was added so far. Beside a thread that adds, tokens and times may be a round ahead of the counts."""
        outcomes = dict(self._outcomes)  # at once, whoever adds meanwhile
        most = max((proposals for proposals, _ in outcomes), default=0)
        tested, stood, accepted = [0] * most, [0] * most, [0] * (most + 1)
        for (proposals, count), rounds in outcomes.items():
            accepted[count] += rounds
            for at in range(min(count + 1, proposals)):
                tested[at] += rounds
                stood[at] += rounds * (at < count)
        counts = tuple(accepted) if outcomes else ()
        seconds = StageTimes._make([*self._spent(), 1])
        return Statistics(self._answers, sum(accepted), self._tokens, counts, tuple(tested), tuple(stood), seconds)

    def _add_prompt(self, times: StageTimes) -> None:
        self._answers += 1
        self._spend(StageTimes(prefill=times.total, requests=times.requests))

    def _add_outcome(self, proposals: int, accepted: int) -> None:
        self._outcomes[proposals, accepted] += 1

    def _spend(self, times: StageTimes) -> None:
        """A request's part of the seconds that it shared with others, most often with those that come next."""
        if times is not self._shared:
            self._add_shared()
            self._shared = times
        self._parts += 1

    def _add_shared(self) -> None:
        self._seconds, self._parts = self._spent(), 0

    def _spent(self) -> list[float]:
        """All seconds so far, those that the latest rounds shared included."""
        share = self._parts / self._shared.requests
        return [spent + share * more for spent, more in zip(self._seconds, self._shared[:-1], strict=True)]


def _sums(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    longer, shorter = sorted((one, other), key=len, reverse=True)
    return tuple(a + b for a, b in zip(longer, shorter + (0,) * (len(longer) - len(shorter)), strict=True))


def _histogram(counts: Sequence[int]) -> Iterator[str]:
    """A line for each accepted count that occurred; those between them that did not share one."""
    for none, group in groupby(range(len(counts)), key=lambda count: not counts[count]):
        held = list(group)
        if none:
            yield f"{held[0] if len(held) == 1 else f'{held[0]}–{held[-1]}':>8}       0"
        else:
            yield from (
                f"{count:8d}  {counts[count]:6d}  {_bar(counts[count], max(counts))}".rstrip() for count in held
            )


def _bar(part: int, whole: int) -> str:
    return "█" * round(BAR * part / whole) if whole else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
