"""Prove the law of whole requests by enumeration, or show what a known fault does to it."""

from __future__ import annotations

import argparse
import difflib
import time
from collections.abc import Sequence

from dflash_spec.errors import DFlashError, OutputError

from dflash_vectors.commands.output import Parser, say, unsaid
from dflash_vectors.faults import Fault, all_faults
from dflash_vectors.law.configs import BACKENDS, Config, configs
from dflash_vectors.law.enumerated import law_of
from dflash_vectors.law.expected import Expected, marginal
from dflash_vectors.law.kept import reason
from dflash_vectors.law.trials import ACCEPTANCE, CRASH, OUTPUT, UNREADABLE, judged, requests_of, tried
from dflash_vectors.style import complain
from dflash_vectors.verdict import EXIT_INTERRUPTED, EXIT_UNUSABLE

PROGRAM = "dflash-enumerate-law"
SAID = {
    OUTPUT: "moves the law of the tokens", ACCEPTANCE: "keeps the law of the tokens and moves that of the counts",
    CRASH: "ends a request", UNREADABLE: "cannot be enumerated",
}  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--backend", action="append", metavar="NAME", help="only this one; may be given again")
    parser.add_argument("--fault", metavar="NAME", help="try this fault on the requests instead")
    return parser


def _chosen(names: Sequence[str] | None) -> list[str]:
    for name in names or ():
        if name not in BACKENDS:
            raise DFlashError(f"backend {name!r}, expected one of {', '.join(BACKENDS)}")
    return [name for name in BACKENDS if not names or name in names]


def _fault(name: str) -> Fault:
    known = {fault.name: fault for fault in all_faults()}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise DFlashError(f"fault {name!r} is not known" + (f"; did you mean {near[0]!r}?" if near else ""))
    return known[name]


def wrong(config: Config) -> tuple[str, int]:
    """What is wrong with the law of a request, empty if nothing is, and how many outcomes it has."""
    found, must = law_of(config), Expected(config)
    if marginal(found) != must.plain():
        return "tokens have another law than plain decoding's", len(found)
    return "" if found == must.joint() else "counts go with other tokens than they must", len(found)


def _prove(backends: Sequence[str]) -> int:
    failed, total = 0, 0
    say(f"{'backend':<20} {'requests':>8} {'outcomes':>9} {'seconds':>8}")
    start = time.perf_counter()
    for backend in backends:
        begun, outcomes = time.perf_counter(), 0
        asked = [config for config in configs() if config.backend == backend]
        for config in asked:
            problem, count = wrong(config)
            outcomes += count
            failed += bool(problem)
            if problem:
                say(f"  {config.name}: {problem}")
        total += len(asked)
        say(f"{backend:<20} {len(asked):>8} {outcomes:>9} {time.perf_counter() - begun:>8.1f}")
    say(f"\n{total - failed} of {total} requests have exactly the law that they must, in {_since(start)}")
    return 1 if failed else 0


def _try(fault: Fault) -> int:
    start = time.perf_counter()
    why = reason(fault.name)
    trial = tried(fault, requests_of(fault)) if why else judged(fault)
    say(f"{fault.name}: {' '.join(fault.story.split())}")
    say(f"  {SAID.get(trial.effect, 'keeps every law')}{f': {why}' if why else ''}, found in {_since(start)}")
    if trial.config and trial.effect in (OUTPUT, ACCEPTANCE):
        say(f"  a probability moves by {float(trial.moved):.3g} in: {trial.config.name}")
    return 0


def _since(start: float) -> str:
    return f"{time.perf_counter() - start:.1f} s"


def main(argv: Sequence[str] | None = None) -> int:
    """0: every law holds, or the fault was tried. 1: one does not. 2: nothing could be run. 130: interrupted."""
    try:
        options = _parser().parse_args(argv)
        return _try(_fault(options.fault)) if options.fault else _prove(_chosen(options.backend))
    except OutputError as error:
        return unsaid(error, PROGRAM)
    except DFlashError as error:
        complain(error, PROGRAM)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        complain("interrupted", PROGRAM)
        return EXIT_INTERRUPTED
