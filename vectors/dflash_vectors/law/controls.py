"""Engines that are wrong on purpose, one rule each, and right ones: a check that cannot fail proves nothing.

Each is a factory as well, so `dflash-check-law --implementation python:dflash_vectors.law.controls:coin_reused` tells
all that the command says of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dflash_spec.errors import UnsupportedError
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array

from dflash_vectors.law import judging
from dflash_vectors.law.engines import DRAFT, Engine
from dflash_vectors.law.verdicts import BROKEN, HOLDS, SAMPLING, Finding, Judged, LawRun
from dflash_vectors.runners import open_runner
from dflash_vectors.style import Style

ENOUGH, MANY = 20_000, 100_000
"""Draws that show a gross fault, and those that show one of 1 %."""


class Inflated(Engine):
    """Accepts what has a probability at all with one that is 0.0001 too high."""

    more = 1e-4

    def accepts(self, p: Array, q: Array, u: Array) -> Array:
        return np.asarray(u * q < p.astype(np.float64) + self.more * q * (p > 0))


class InflatedALittle(Inflated):
    """Accepts what has a probability at all with one that is 0.00001 too high."""

    more = 1e-5


class InflatedByOnePercent(Inflated):
    """Accepts what has a probability at all with one that is 0.01 too high."""

    more = 1e-2


class CorrectedFromP(Engine):
    """Draws the correction from p itself, the rejected token included."""

    def rest(self, ids: Array, p: Array, law: dict[int, float], rejected: int) -> Array:
        return np.asarray(p, np.float64)


class CoinReused(Engine):
    """Draws the token that ends a round with the coin that rejected the proposal."""

    def last_coin(self, coins: Array, last: Array, slot: int) -> Array:
        return np.asarray(coins[:, slot]) if slot < coins.shape[1] else last


class Unclamped(Engine):
    """Leaves negative weights in what p has more than q."""

    def rest(self, ids: Array, p: Array, law: dict[int, float], rejected: int) -> Array:
        q = np.array([law.get(int(id_), 0.0) for id_ in ids])
        left = p.astype(np.float64) - q
        return np.abs(left) if left.any() else super().rest(ids, p, law, rejected)


class OneCoin(Engine):
    """Tests every slot of a round with the coin of the first."""

    def coin(self, coins: Array, slot: int) -> Array:
        return np.asarray(coins[:, 0])


class BiasedBonus(Engine):
    """Leaves the last proposal out of the bonus, as if it had been rejected there."""

    def bonus(self, ids: Array, p: Array, last: int) -> Array:
        left = np.where(ids == last, 0.0, p.astype(np.float64))
        return left if left.sum() > 0 else p.astype(np.float64)


class NextRank(Engine):
    """Draws the rank after the one that the uniform asks for."""

    def draw(self, ids: Array, weights: Array, u: Array) -> Array:
        sums = np.cumsum(weights)
        ranks = np.searchsorted(sums, u * sums[-1], side="right") + 1
        return np.asarray(ids[np.minimum(ranks, np.flatnonzero(weights > 0)[-1])])


class OnTheEdge(Engine):
    """Draws the token whose cumulative weight a uniform equals, and not the one after it."""

    def draw(self, ids: Array, weights: Array, u: Array) -> Array:
        sums = np.cumsum(weights)
        return np.asarray(ids[np.searchsorted(sums, u * sums[-1], side="left")])


class TopPFirst(Engine):
    """Applies top-p before top-k: its share is one of every candidate."""

    def mass(self, ranked: Array, left: Array) -> float:
        return float(ranked.sum())


class TopPLast(Engine):
    """Applies top-p after min-p: its share is one of what that left."""

    def proc_filter(
        self, adjusted: Array, temperature: Array, top_k: Array, min_p: Array, top_p: Array
    ) -> dict[str, Any]:
        if not min_p:
            return super().proc_filter(adjusted, temperature, top_k, min_p, top_p)
        first = super().proc_filter(adjusted, temperature, top_k, min_p, np.array(1, np.float32))
        left = np.full_like(adjusted, -np.inf)
        for row, (ids, p) in enumerate(zip(first["support"], first["p"], strict=True)):
            left[row, ids[p > 0]] = adjusted[row, ids[p > 0]]
        return super().proc_filter(left, temperature, top_k, np.array(0, np.float32), top_p)


class AsCertain(Engine):
    """Verifies proposals that were drawn from q as if they were certain: tokens keep their law, acceptance does not."""

    def accepts(self, p: Array, q: Array, u: Array) -> Array:
        return np.asarray(u < p)

    def rest(self, ids: Array, p: Array, law: dict[int, float], rejected: int) -> Array:
        return super().rest(ids, p, {rejected: 1.0}, rejected)


class NoiseReused(Engine):
    """Ends a round with the uniform that drew its first proposal."""

    def last_uniform(self, seeds: Array) -> Array:
        return self.uniform(seeds, DRAFT)


class SharedDraws(Engine):
    """Gives two requests that come together one and the same stream."""

    def uniform(self, seeds: Array, purpose: int) -> Array:
        return super().uniform(seeds[np.arange(len(seeds)) // 2 * 2], purpose)


class SecondDraw(Engine):
    """Draws again, with the uniform of the next row, where a draw differs from its proposal."""

    def law_match(self, proposals: Array, support: Array, p: Array, u: Array) -> dict[str, Any]:
        answer = super().law_match(proposals, support, p, u)
        accepted = answer["accepted"]
        if accepted < len(proposals):
            answer["licensed"][accepted] = self.draw(support[accepted], p[accepted], u[accepted + 1 : accepted + 2])[0]
        return answer


@dataclass(frozen=True)
class Control:
    """One engine: what it does, where, and the clauses one of which must be called broken; none if it is right."""

    name: str
    engine: Callable[[str, tuple[str, ...]], Engine]
    profile: str
    ops: tuple[str, ...]
    clauses: tuple[str, ...] = ()
    samples: int = ENOUGH

    @property
    def story(self) -> str:
        return str(self.engine.__doc__ or "").strip().splitlines()[0] if self.clauses else "A right engine."


VERIFIES = ("law.one_hot", "law.sparse")
ROUNDS, DRAWS = ("law.sample_rounds",), ("proc.sample_tokens",)
_ALL = (
    Control("right", Engine, "ninfer", ("proc.filter", "proc.draw", *VERIFIES)),
    Control("right_zlab", Engine, "zlab", ("proc.filter", "proc.draw", *VERIFIES)),
    Control("right_matching", Engine, "zlab-2026-04", ("law.match",)),
    Control("right_sampled", Engine, "zlab", (*ROUNDS, *DRAWS), samples=MANY),
    Control("inflated", Inflated, "zlab", VERIFIES, ("LAW-003", "LAW-010")),
    Control("inflated_a_little", InflatedALittle, "ninfer", VERIFIES, ("LAW-003", "LAW-009")),
    Control("corrected_from_p", CorrectedFromP, "zlab", VERIFIES, ("LAW-004", "LAW-011")),
    Control("coin_reused", CoinReused, "ninfer", VERIFIES, ("LAW-004", "LAW-011")),
    Control("unclamped", Unclamped, "zlab", ("law.sparse",), ("LAW-011",)),
    Control("one_coin", OneCoin, "ninfer", VERIFIES, ("LAW-003", "LAW-009")),
    Control("biased_bonus", BiasedBonus, "zlab", VERIFIES, ("LAW-007",)),
    Control("next_rank", NextRank, "ninfer", ("proc.draw",), ("PROC-005",)),
    Control("on_the_edge", OnTheEdge, "ninfer", ("proc.draw",), ("PROC-005",)),
    Control("top_p_first", TopPFirst, "zlab", ("proc.filter",), ("PROC-015",)),
    Control("top_p_first_of_twenty", TopPFirst, "ninfer", ("proc.filter",), ("PROC-015",)),
    Control("top_p_last", TopPLast, "ninfer", ("proc.filter",), ("PROC-015",)),
    Control("second_draw", SecondDraw, "zlab-2026-04", ("law.match",), ("LAW-012",)),
    Control("inflated_sampled", InflatedByOnePercent, "zlab", ROUNDS, ("LAW-014",), MANY),
    Control("as_certain", AsCertain, "zlab", ROUNDS, ("LAW-014",)),
    Control("corrected_from_p_sampled", CorrectedFromP, "ninfer", ROUNDS, ("LAW-014",)),
    Control("coin_reused_sampled", CoinReused, "zlab", ROUNDS, ("LAW-014",)),
    Control("noise_reused", NoiseReused, "ninfer", ROUNDS, ("LAW-014",)),
    Control("unclamped_sampled", Unclamped, "ninfer", ROUNDS, ("LAW-014",)),
    Control("one_coin_sampled", OneCoin, "zlab", ROUNDS, ("LAW-014",)),
    Control("biased_bonus_sampled", BiasedBonus, "ninfer", ROUNDS, ("LAW-014",)),
    Control("next_rank_sampled", NextRank, "zlab", DRAWS, ("LAW-015",)),
    Control("shared_draws", SharedDraws, "ninfer", DRAWS, ("LAW-015",)),
    Control("shared_rounds", SharedDraws, "zlab", ROUNDS, ("LAW-014",)),
)
CONTROLS = {control.name: control for control in _ALL}
"""Name -> control. `clauses` are those that the control breaks."""


def __getattr__(name: str) -> Any:
    """The factory of a control: `dflash_vectors.law.controls:<name>`."""
    if name not in CONTROLS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_create, CONTROLS[name])


def _create(control: Control, profile: str) -> Engine:
    if profile != control.profile:
        raise UnsupportedError(f"the control follows profile {control.profile}, not {profile}")
    return control.engine(profile, control.ops)


@dataclass(frozen=True)
class Tried:
    """What the check said of a control: the finding that caught it, or None where every law holds."""

    control: Control
    finding: Finding | None
    laws: int

    @property
    def right(self) -> bool:
        """Whether a wrong engine was called broken by one of its clauses, and a right one not."""
        if not self.control.clauses:
            return self.finding is None
        return self.finding is not None and self.finding.clause in self.control.clauses


def tried(control: Control, samples: int | None = None, seed: int = 0) -> Tried:
    """Judge a control as the command judges any implementation; a wrong one until a measured law has caught it."""
    profile, options = load_profile(control.profile), judging.Options(samples=samples or control.samples, seed=seed)
    runner = open_runner(f"python:{__name__}:{control.name}", 60.0)
    description = runner.start(profile.name)
    run = LawRun([Judged(runner.spec, description)])
    findings = run.judged[0].findings
    for law in judging.asked_of(description, profile, options):
        findings.append(law.judge(runner, lambda _: None))
        if findings[-1].status == BROKEN and findings[-1].clause in control.clauses:
            break
    run.settle()
    wrong = [finding for finding in findings if finding.status != HOLDS]
    named = [finding for finding in wrong if finding.status == BROKEN and finding.clause in control.clauses]
    return Tried(control, min(named or wrong, key=lambda one: one.size, default=None), len(findings))


def table(given: Sequence[Tried], seconds: float, style: Style, as_json: bool) -> str:
    """What became of every control, a line each, or one JSON object."""
    if as_json:
        return json.dumps({"format": 1, "controls": [_record(one) for one in given]}, indent=1) + "\n"
    width = max(len(one.control.name) for one in given)
    lines = []
    for one in given:
        finding = one.finding
        verdict = style.paint("as it must be" if one.right else "NOT AS IT MUST BE", "green" if one.right else "red")
        lines.append(f"{one.control.name:<{width}}  {verdict}  {one.control.story}")
        if finding is None:
            said = f"{one.laws} laws hold"
        else:
            how = "sampled" if finding.method == SAMPLING else "measured"
            said = f"{finding.clause}, {finding.op}, {finding.law} ({how}): {finding.reason}"
        lines += style.wrap(" " * (width + 2), said)
    wrong = sum(bool(one.control.clauses) for one in given)
    caught = sum(one.right for one in given if one.control.clauses)
    held = sum(one.right for one in given if not one.control.clauses)
    lines += [
        "",
        f"{caught} of {wrong} wrong engines caught, {held} of {len(given) - wrong} right ones hold, {seconds:.1f} s",
    ]
    return "\n".join(lines) + "\n"


def _record(one: Tried) -> dict[str, Any]:
    finding = one.finding
    record: dict[str, Any] = {
        "control": one.control.name, "story": one.control.story, "profile": one.control.profile,
        "clauses": list(one.control.clauses), "as_it_must_be": one.right,
    }  # fmt: skip
    if finding is not None:
        record |= {"op": finding.op, "law": finding.law, "clause": finding.clause, "reason": finding.reason}
    return record
