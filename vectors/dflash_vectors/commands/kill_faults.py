"""Run every known fault against the vectors: each must die of a vector that blames the right clause."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_spec.errors import DFlashError, OutputError

from dflash_vectors.cases import default_folder
from dflash_vectors.commands.output import Parser, say, unsaid
from dflash_vectors.faults import all_faults
from dflash_vectors.kill import Death, kill_all
from dflash_vectors.style import complain
from dflash_vectors.verdict import EXIT_INTERRUPTED, EXIT_UNUSABLE

PROGRAM = "dflash-kill-faults"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--vectors", type=Path, metavar="DIR", help="the vector set; the committed one if absent")
    parser.add_argument("--fault", action="append", metavar="NAME", help="only this fault; may be given again")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    return parser


def record(death: Death) -> dict[str, Any]:
    """A death as JSON holds it."""
    fault = death.fault
    return {
        "fault": fault.name, "story": fault.story, "target": fault.target, "clauses": list(fault.clauses),
        "effect": fault.effect, "report": fault.report, "reached": death.reached, "killer": death.killer,
        "blamed": death.blamed, "at": death.at, "problem": death.problem,
    }  # fmt: skip


def table(deaths: Sequence[Death]) -> str:
    """One line for each fault: its killer, the clause blamed, the tensor that gave it away."""
    name = max(len(death.fault.name) for death in deaths)
    killer = max(len(death.killer) for death in deaths)
    lines = [f"{'fault':<{name}}  {'killed by':<{killer}}  {'blamed':<11} at"]
    for death in deaths:
        lines.append(
            f"{death.fault.name:<{name}}  {death.killer or '-':<{killer}}  {death.blamed or '-':<11} {death.at or '-'}"
        )
    return "\n".join(lines)


def _run(options: argparse.Namespace) -> int:
    faults = all_faults()
    if options.fault:
        known = {fault.name for fault in faults}
        for name in options.fault:
            if name not in known:
                raise DFlashError(f"fault {name!r}, expected one of {', '.join(sorted(known))}")
        faults = [fault for fault in faults if fault.name in options.fault]
    start = time.perf_counter()
    deaths = list(kill_all(options.vectors or default_folder(), faults))
    seconds = time.perf_counter() - start
    failed = [death for death in deaths if death.problem]
    if options.json:
        summary = {"faults": [record(death) for death in deaths], "failed": len(failed), "seconds": round(seconds, 1)}
        say(json.dumps(summary, indent=1))
    else:
        say(table(deaths))
        say(f"\n{len(deaths) - len(failed)} of {len(deaths)} faults die of the right clause, in {seconds:.1f} s")
        for death in failed:
            say(f"  {death.fault.name}: {death.problem}")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """0: every fault dies of one of its clauses. 1: one does not. 2: nothing could be run. 130: interrupted."""
    try:
        return _run(_parser().parse_args(argv))
    except OutputError as error:
        return unsaid(error, PROGRAM)
    except DFlashError as error:
        complain(error, PROGRAM)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        complain("interrupted", PROGRAM)
        return EXIT_INTERRUPTED
