"""Faults against the enumeration: whether the law of the tokens moves, or that of the accepted counts alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from typing import Any

from dflash_vectors.faults import Fault, Function, all_faults, applied, patched
from dflash_vectors.law.configs import BACKENDS, Config, configs, cost
from dflash_vectors.law.enumerated import law_of, stream_law
from dflash_vectors.law.expected import Expected, Joint, marginal
from dflash_vectors.law.probes import PROBES, STREAMS

Request = tuple[Config, bool]
"""What is enumerated, and whether whole, with one uniform for each key."""
OUTPUT, ACCEPTANCE, KEPT, CRASH, UNREADABLE = "output", "acceptance", "kept", "crash", "unreadable"
"""The law of the tokens moves; that of the counts does; neither; a request fails; the fault cannot take Fractions."""
NOTICED = Fraction(1, 2**40)
"""Probabilities that differ by less are equal: a fault may compute in floats what the reference computes exactly."""
SCOPE = tuple(f"dflash_reference.{module}." for module in ("law", "processing", "filters", "penalties", "rng"))
"""Where a fault is that the enumeration must judge, one way or the other."""
KEYS = ("dflash_reference.rng.", "dflash_reference.engine.", "dflash_reference.law.match")
"""Where a fault can make two draws one."""
GRAVITY = (KEPT, UNREADABLE, ACCEPTANCE, CRASH, OUTPUT)


@dataclass(frozen=True)
class Trial:
    """What a fault does to requests. `effect` is the gravest that was found, `config` shows it."""

    effect: str
    config: Config | None = None
    moved: Fraction = Fraction(0)


def faults_in_scope() -> list[Fault]:
    """Every registered fault of the modules that decide which tokens come out."""
    return [fault for fault in all_faults() if fault.target.startswith(SCOPE)]


def largest_move(found: Mapping[Any, Fraction], expected: Mapping[Any, Fraction]) -> Fraction:
    """The largest difference of a probability."""
    none = Fraction(0)
    return max((abs(found.get(key, none) - expected.get(key, none)) for key in {*found, *expected}), default=none)


@cache
def expected_joint(config: Config, whole: bool) -> Joint:
    """What the reference without a fault must do. Worked out before a fault is applied."""
    return Expected(config).stream() if whole else Expected(config).joint()


def compared(config: Config, whole: bool, expected: Joint) -> Trial:
    """One request against its law, as the reference is at the moment. `whole` draws by key, from the first token on."""
    try:
        found = stream_law(config) if whole else law_of(config)
    except TypeError:
        return Trial(UNREADABLE, config)
    except Exception:
        return Trial(CRASH, config, Fraction(1))
    moved = largest_move(marginal(found), marginal(expected))
    if moved > NOTICED:
        return Trial(OUTPUT, config, moved)
    moved = largest_move(found, expected)
    return Trial(ACCEPTANCE if moved > NOTICED else KEPT, config, moved)


def tried(fault: Fault, requests: Iterable[Request]) -> Trial:
    """The gravest effect of a fault on requests; the first that moves the law of the tokens ends the search."""
    gravest = Trial(KEPT)
    for config, whole in requests:
        expected = expected_joint(config, whole)
        with applied(fault):
            trial = compared(config, whole, expected)
        gravest = max(gravest, trial, key=lambda one: GRAVITY.index(one.effect))
        if gravest.effect in (OUTPUT, CRASH):
            break
    return gravest


@cache
def reach() -> Mapping[Request, frozenset[str]]:
    """The functions that some fault replaces, and that each request of the probes and streams runs."""
    called: set[str] = set()
    found: dict[Request, frozenset[str]] = {}
    with ExitStack() as stack:
        for target in sorted({fault.target for fault in all_faults()}):
            stack.enter_context(patched(target, partial(_noted, target, called)))
        for request in _requests():
            called.clear()
            stream_law(request[0]) if request[1] else law_of(request[0])
            found[request] = frozenset(called)
    return found


def _noted(target: str, called: set[str], true: Function) -> Function:
    def noting(*given: Any, **named: Any) -> Any:
        called.add(target)
        return true(*given, **named)

    return noting


def _requests() -> Iterator[Request]:
    yield from ((config, False) for config in PROBES)
    yield from ((config, True) for config in STREAMS)


def requests_of(fault: Fault) -> Iterator[Request]:
    """The requests of the fault's profiles that run its function; whole streams only where keys are at stake."""
    for request, targets in reach().items():
        config, whole = request
        asked = not whole or fault.target.startswith(KEYS)
        if asked and fault.target in targets and BACKENDS[config.backend].profile in fault.profiles:
            yield request


def judged(fault: Fault) -> Trial:
    """What a fault does to the probes and streams; if that is nothing, the first effect that it has on any request."""
    trial = tried(fault, requests_of(fault))
    for config in sorted(configs(), key=cost):
        if trial.effect != KEPT:
            break
        if BACKENDS[config.backend].profile in fault.profiles:
            trial = tried(fault, [(config, False)])
    return trial
