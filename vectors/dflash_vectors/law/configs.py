"""The requests whose law is enumerated: a code over nine axes, any two words of which differ on two axes or more.

A change of one axis alone is what a fault can hide behind: two requests that differ in the temperature only share
whatever else goes wrong. So the numbers of a word's levels add up to a multiple of a modulus that no axis reaches, as
in a checksum; whoever changes one level must change another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from functools import cache
from typing import NamedTuple

from dflash_vectors import inputs


class Backend(NamedTuple):
    """Who proposes and who judges: `verify` names the op.

    `drafter`: argmax; rows, each slot's own law; selector, a law given the token before; or any, every chain there is.
    """

    profile: str
    drafter: str
    verify: str


class Filter(NamedTuple):
    top_k: int
    min_p: float
    top_p: float


class Penalty(NamedTuple):
    """`mask`: none, fixed (one id is never allowed) or moving (which id is forbidden depends on the text so far)."""

    presence: float
    frequency: float
    mask: str = "none"


BACKENDS = {
    "ninfer-dflash": Backend("ninfer", "argmax", "law.one_hot"),
    "ninfer-dflash2": Backend("ninfer", "selector", "law.sparse"),
    "zlab-dflash": Backend("zlab", "rows", "law.sparse"),
    "zlab-dflash2": Backend("zlab", "selector", "law.sparse"),
    "zlab-2026-04": Backend("zlab-2026-04", "argmax", "law.match"),
    "zlab-2026-04-drawn": Backend("zlab-2026-04", "rows", "law.match"),
    "ninfer-dflash-any": Backend("ninfer", "any", "law.one_hot"),
    "ninfer-greedy": Backend("ninfer", "argmax", "law.greedy"),
    "ninfer-greedy-any": Backend("ninfer", "any", "law.greedy"),
    "zlab-greedy": Backend("zlab", "argmax", "law.greedy"),
    "zlab-2026-04-greedy": Backend("zlab-2026-04", "argmax", "law.greedy"),
}
"""zlab-2026-04-drawn is z-lab/dflash@e763f23, whose proposals are drawn and still verified by sample-and-match."""
FILTERS = {
    "none": Filter(0, 0.0, 1.0),
    "top-k": Filter(3, 0.0, 1.0),
    "min-p": Filter(0, 0.25, 1.0),
    "top-p": Filter(0, 0.0, 0.5),
    "top-k min-p": Filter(2, 0.125, 1.0),
    "top-k top-p": Filter(4, 0.0, 0.875),
    "min-p top-p": Filter(0, 0.0625, 0.9375),
    "all three": Filter(19, 2.0**-12, 1 - 2.0**-9),
}
PENALTIES = {
    "none": Penalty(0.0, 0.0),
    "presence": Penalty(0.75 + 2.0**-9, 0.0),
    "frequency": Penalty(0.0, 0.375 + 2.0**-10),
    "both": Penalty(0.5 + 2.0**-8, 0.625),
    "negative": Penalty(-0.25, -0.5 - 2.0**-11),
    "mask": Penalty(0.0, 0.0, "fixed"),
    "moving mask": Penalty(0.0, 0.0, "moving"),
    "all": Penalty(1.0, -0.375, "moving"),
}
"""A penalised logit does not fit into BF16."""
TEMPERATURES = {
    "2.5": 2.5, "1.3": inputs.fp32(1.3), "1": 1.0, "0.7": inputs.fp32(0.7), "0.1": inputs.fp32(0.1), "2^-8": 2.0**-8,
    "2^-18": 2.0**-18, "2^-19": 2.0**-19, "0": 0.0, "-0.5": -0.5,
}  # fmt: skip
"""At the low ones a row is all but certain, or a tie. 2^-18 and 2^-19 are below the 1e-5 of zlab-2026-04."""
STOPS = ("none", "first", "last", "ending", "two")
"""Where a stop id stands: nowhere, in the first or last proposal, never in a proposal, or two of them anywhere."""
LENGTHS = {3: 5, 5: 4, 6: 4, 7: 3, 11: 3, 23: 2}
"""Vocabulary -> how many tokens of a text are compared at most."""
UNCUT = 100
BUDGETS = (1, 2, 3, 4, 6, 9)
"""Tokens that the request may still emit. Where a text is cut before, the last round is one of many."""
ROUNDS = (1, 2, 3)
"""Rounds until the rest of the text is decoded plainly."""
DRAFTS = (1, 2, 3, 5)

MODULUS = 13
"""More than any axis has levels."""
DRAWN, GREEDY = 42, 24
"""How many requests of each backend that draws, and of each that does not."""
ATTEMPTS = 90_000
COST = 9000
MATCH_COST = 4
"""How much longer one way of sample-and-match takes."""


@dataclass(frozen=True)
class Config:
    """One request. Every field is an axis, and holds a level's name or number."""

    backend: str
    drafts: int
    vocabulary: int
    filter: str
    penalty: str
    temperature: str
    stop: str
    budget: int
    rounds: int

    @property
    def name(self) -> str:
        """All levels in one line."""
        return (
            f"{self.backend} K={self.drafts} V={self.vocabulary} filter={self.filter} penalty={self.penalty} "
            f"T={self.temperature} stop={self.stop} budget={self.budget} rounds={self.rounds}"
        )

    @property
    def length(self) -> int:
        """How many tokens after the anchor are compared.

        A text whose budget ends before is compared whole, and so is a greedy one, of which there is one alone.
        """
        longest = LENGTHS[self.vocabulary]
        return longest if self.budget > longest and BACKENDS[self.backend].verify != "law.greedy" else UNCUT


LEVELS: dict[str, tuple[str | int, ...]] = {
    "backend": tuple(BACKENDS), "drafts": DRAFTS, "vocabulary": tuple(LENGTHS), "filter": tuple(FILTERS),
    "penalty": tuple(PENALTIES), "temperature": tuple(TEMPERATURES), "stop": STOPS, "budget": BUDGETS, "rounds": ROUNDS,
}  # fmt: skip
AXES = tuple(field.name for field in fields(Config))


def numbers(config: Config) -> tuple[int, ...]:
    """The number of each axis's level."""
    return tuple(LEVELS[axis].index(level) for axis, level in zip(AXES, astuple(config), strict=True))


def is_word(config: Config) -> bool:
    """Whether the levels' numbers satisfy the checksum."""
    return sum(numbers(config)) % MODULUS == 0


def allowed(backend: str) -> dict[str, tuple[str | int, ...]]:
    """The levels of each axis that mean something to a backend: what its profile has, and what its draws need."""
    profile, _, verify = BACKENDS[backend]
    greedy = {"ninfer": ("0", "-0.5"), "zlab": ("0",), "zlab-2026-04": ("0", "2^-18", "2^-19")}[profile]
    cold = tuple(level for level in TEMPERATURES if 0 < TEMPERATURES[level] < 0.1 and level not in greedy)
    drawn = 2 * tuple(level for level in TEMPERATURES if TEMPERATURES[level] >= inputs.fp32(0.1)) + cold
    fitting: dict[str, tuple[str | int, ...]] = LEVELS | {"backend": (backend,)}
    fitting["temperature"] = greedy if verify == "law.greedy" else drawn
    if profile != "ninfer":
        fitting["penalty"] = ("none", "mask", "moving mask")
        fitting["filter"] = ("none", "top-k", "top-p", "top-k top-p") if profile == "zlab" else ("none",)
    return fitting


def is_telling(config: Config) -> bool:
    """Whether every level makes a difference beside the others."""
    cuts = config.filter == "all three" or FILTERS[config.filter].top_k < config.vocabulary
    has_last = config.stop != "last" or config.drafts > 1
    return cuts and has_last and config.rounds <= min(config.budget, config.length)


def cost(config: Config) -> float:
    """About how many ways a verify can go, over all rounds that the request can have."""
    backend, size = BACKENDS[config.backend], config.vocabulary
    drafts = min(config.drafts, config.budget)
    starts = sum(size**depth for depth in range(min(config.budget, config.length))) if config.rounds > 1 else 1
    chains = 1 if backend.drafter == "argmax" else choices(config) ** config.drafts
    if backend.verify == "law.greedy":
        return float(chains)
    matched = MATCH_COST * size ** (config.drafts + 1)  # every row draws, whether the rows before it matched or not
    return float(starts * chains * (matched if backend.verify == "law.match" else size * (drafts + 1)))


def choices(config: Config) -> int:
    """How many tokens a proposal that is drawn can be."""
    if BACKENDS[config.backend].drafter == "any":
        return config.vocabulary
    return {1: 5, 2: 3, 3: 2, 5: 2}[config.drafts] if config.vocabulary > 3 else 2


def _drawn() -> Iterator[Config]:
    """Settings with keyed levels, backend after backend."""
    keys = inputs.hashes("law/configs", (ATTEMPTS, len(AXES)))
    fitting = [allowed(backend) for backend in BACKENDS]
    for turn, row in enumerate(keys.tolist()):
        levels = fitting[turn % len(fitting)]
        yield Config(*(levels[axis][key % len(levels[axis])] for axis, key in zip(AXES, row, strict=True)))


@cache
def configs() -> tuple[Config, ...]:
    """All requests, backend after backend."""
    shares = {name: GREEDY if backend.verify == "law.greedy" else DRAWN for name, backend in BACKENDS.items()}
    found: dict[str, list[Config]] = {backend: [] for backend in BACKENDS}
    for config in _drawn():
        chosen = found[config.backend]
        fits = len(chosen) < shares[config.backend] and is_word(config) and is_telling(config) and cost(config) <= COST
        if fits and config not in chosen:
            chosen.append(config)
    return tuple(config for chosen in found.values() for config in chosen)
