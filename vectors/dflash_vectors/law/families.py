"""Small laws to ask an implementation about: dyadic and not, with zeros, equal, disjoint, and with nothing left.

Ids, order and width of a row are those of the profile: with a sampling cap the largest weight stands first, without one
every id stands in ascending order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product

import numpy as np
from dflash_spec.registry import Profile

IDS = (19, 3, 11, 7, 23, 5, 13)
"""The ids of a capped support; their order is not that of any row."""
OUTSIDE = 29
"""An id that no capped support holds."""


@dataclass(frozen=True)
class Row:
    """One distribution as an implementation is given it: ids in draw order and FP32 weights, which may not sum to 1."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]

    @cached_property
    def raw(self) -> dict[int, Fraction]:
        """The weights as the numbers that they are, by id."""
        return {id_: Fraction(weight) for id_, weight in zip(self.ids, self.weights, strict=True) if id_ >= 0}

    @cached_property
    def law(self) -> dict[int, Fraction]:
        """The weights divided by their exact sum, by id."""
        total = sum(self.raw.values())
        return {id_: weight / total for id_, weight in self.raw.items()}

    @cached_property
    def is_exact(self) -> bool:
        """Whether the weights sum to 1 and every sum of them is a number of FP32: then no rounding moves a draw."""
        return sum(self.raw.values()) == 1 and all((weight * 2**24).denominator == 1 for weight in self.raw.values())

    def wide(self, width: int) -> Row:
        """The same row with ids of -1 and weights of 0 up to `width`."""
        more = width - len(self.ids)
        return Row(self.ids + (-1,) * more, self.weights + (0.0,) * more)


@dataclass(frozen=True)
class Round:
    """What one verify is given: the target's P + 1 rows, and the law of each of P proposals.

    Without `q` every proposal is certain, and `proposals` are those to try in each slot.
    """

    name: str
    p: tuple[Row, ...]
    q: tuple[Row, ...] = ()
    proposals: tuple[tuple[int, ...], ...] = ()

    @property
    def slots(self) -> int:
        return len(self.p) - 1

    def choices(self) -> Iterator[tuple[tuple[int, ...], Fraction]]:
        """Every choice of proposals, with its probability; certain ones count alike."""
        if self.q:
            laws = [[(id_, mass) for id_, mass in row.law.items() if mass] for row in self.q]
        else:
            laws = [[(id_, Fraction(1, len(slot))) for id_ in slot] for slot in self.proposals]
        for chosen in product(*laws):
            mass = Fraction(1)
            for _, share in chosen:
                mass *= share
            yield tuple(id_ for id_, _ in chosen), mass

    def q_laws(self, proposals: Sequence[int]) -> list[Mapping[int, Fraction]]:
        """The law that each proposal was drawn from."""
        return [row.law for row in self.q] if self.q else [{id_: Fraction(1)} for id_ in proposals]


def fp32(value: float) -> float:
    return float(np.float32(value))


BELOW = 1.0 - 2.0**-24
"""The largest FP32 number below 1."""
HALF = 0.5 - 2.0**-25
"""The largest FP32 number below 1/2."""

WEIGHTS: dict[str, tuple[float, ...]] = {
    "dyadic": (8, 4, 2, 2),
    "thirds": (1, 1, 1),
    "twenty-eighths": (5, 1, 9, 4, 2, 6, 1),
    "zeros": (0, 3, 0, 2, 0),
    "certain": (0, 1, 0),
    "faint": (2.0**24 - 3, 2, 1),
    "one left over": (0, BELOW, 0),
}
"""Name -> weights by place; they are divided by their sum, but for those that are below 1 already."""
PAIRS: dict[str, tuple[tuple[float, ...], dict[int, float]]] = {
    "equal, thirds": ((1, 1, 1), {0: 1, 1: 1, 2: 1}),
    "equal, dyadic": ((4, 2, 1, 1), {0: 4, 1: 2, 2: 1, 3: 1}),
    "disjoint": ((3, 2, 0, 0), {2: 1, 3: 4}),
    "crossed": ((1, 2, 4), {0: 4, 1: 2, 2: 1}),
    "twenty-eighths": ((5, 1, 9, 4, 2, 6, 1), {0: 2, 1: 7, 2: 3, 3: 3, 4: 9, 5: 1, 6: 3}),
    "narrow": ((4, 0, 3, 2, 1), {2: 3, 1: 1}),
    "certain": ((3, 1, 3), {2: 1}),
    "one left over": ((HALF, HALF), {0: 0.5, 1: 0.5}),
}
"""Name -> the target's weights by place, and the draft's by place, in candidate order."""


def capped(profile: Profile) -> bool:
    return bool(profile.axes["sampling_cap"])


def token(place: int, profile: Profile) -> int:
    """The id at a place of a law: ids are scattered where supports are capped, else they are the places themselves."""
    return IDS[place] if capped(profile) else place


def target_row(weights: Sequence[float], profile: Profile) -> Row:
    """Weights by place as a row of the target."""
    held = _shares(weights)
    places = list(range(len(held)))
    if capped(profile):
        places.sort(key=lambda place: (-held[place], token(place, profile)))
    return Row(tuple(token(place, profile) for place in places), tuple(held[place] for place in places))


def draft_row(weights: Mapping[int, float], profile: Profile) -> Row:
    """Weights by place as a row of the draft, in the order given."""
    return Row(tuple(token(place, profile) for place in weights), _shares(list(weights.values())))


def _shares(weights: Sequence[float]) -> tuple[float, ...]:
    total = sum(weights)
    return tuple(weights) if total <= 1 and max(weights) < 1 else tuple(fp32(weight / total) for weight in weights)


def rows(profile: Profile) -> dict[str, Row]:
    """The laws of one token."""
    return {name: target_row(weights, profile) for name, weights in WEIGHTS.items()}


def round_of(name: str, p: Sequence[Row], profile: Profile, q: Sequence[Row] = (), tries: int = 0) -> Round:
    """A round over rows of one width. Certain proposals are the first `tries` ids of each row, turned by its slot.

    With 0 they are all of them, and one that no row holds.
    """
    width, drawn = max(len(row.ids) for row in p), max((len(row.ids) for row in q), default=0)
    outside = OUTSIDE if capped(profile) else width
    slots = []
    for number, row in enumerate(p[:-1]):
        turned = row.ids[number % len(row.ids) :] + row.ids[: number % len(row.ids)]
        slots.append(turned[:tries] if tries else (*turned, outside))
    if capped(profile):
        rows_ = tuple(row.wide(width) for row in p)
    else:  # every row of a vocabulary has every id
        rows_ = tuple(Row(tuple(range(width + 1)), row.weights + (0.0,) * (width + 1 - len(row.ids))) for row in p)
    return Round(name, rows_, tuple(row.wide(drawn) for row in q), () if q else tuple(slots))


def certain_rounds(profile: Profile) -> list[Round]:
    """Rounds of certain proposals: each law with every proposal, its bonus from another law; then several slots."""
    one = rows(profile)
    bonus = one["dyadic"]
    found = [round_of(name, (row, bonus), profile) for name, row in one.items()]
    found.append(round_of("two slots", (one["thirds"], one["zeros"], one["dyadic"]), profile, tries=2))
    found.append(
        round_of("three slots", (one["thirds"], one["dyadic"], one["zeros"], one["thirds"]), profile, tries=1)
    )  # fmt: skip
    return found


def matched_rounds(profile: Profile) -> list[Round]:
    """Rounds of certain proposals for sample-and-match, where every row has its draw: fewer proposals of each."""
    one = rows(profile)
    found = [round_of(name, (row, one["dyadic"]), profile, tries=2) for name, row in one.items()]
    found.append(round_of("outside", (one["thirds"], one["thirds"]), profile))
    return [*found, round_of("two slots", (one["thirds"], one["zeros"], one["dyadic"]), profile, tries=1)]


def drawn_rounds(profile: Profile) -> list[Round]:
    """Rounds whose proposals have a law of their own; then two slots of different laws."""
    pairs = {name: (target_row(p, profile), draft_row(q, profile)) for name, (p, q) in PAIRS.items()}
    bonus = rows(profile)["thirds"]
    found = [round_of(name, (p, bonus), profile, (q,)) for name, (p, q) in pairs.items()]
    (first, q_first), (second, q_second) = pairs["narrow"], pairs["crossed"]
    found.append(round_of("two slots", (first, second, bonus), profile, (q_first, q_second)))
    return found
