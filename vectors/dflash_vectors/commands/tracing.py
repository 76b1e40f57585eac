"""A whole replay: the command line, the walk, and where its verdict goes."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from dflash_spec.errors import DFlashError, TraceError

from dflash_vectors.commands.output import Parser, printed, writable_file, write_file
from dflash_vectors.commands.progress import Progress
from dflash_vectors.replay import Pair, Replay, Report, picture, telling
from dflash_vectors.replay.loading import load_pair, parameters
from dflash_vectors.style import Style, complain
from dflash_vectors.trace import Trace, same
from dflash_vectors.verdict import EXIT_FAILED, EXIT_PASSED, EXIT_UNUSABLE

PROGRAM = "dflash-check-trace"
MANY = 50_000_000
"""Parameters from which on the reference's cost is told before it begins."""

EPILOG = """\
what a trace is:
  A folder that an engine has written while it served one request: start.safetensors, prefill.safetensors, one
  round-NNNNNN.safetensors for each round, end.safetensors. docs/traces.md has the format; from Python,
  dflash_vectors.trace.Recorder writes it in five lines.

what is checked:
  Every round is computed again by the reference, along the tokens that the trace itself has committed: a token that
  differs at a near tie does not end the check. Whole numbers (frontiers, anchors, extents, counts) must be exact.
  Each recorded tensor is computed from the tensor recorded just before it, so the first stage that differs is the one
  that is wrong, and must lie within its bound. What is not recorded is not checked: record more stages to learn more.
  Without --target and --draft only what needs no weights is checked: numbers, copies, choices by recorded numbers.

bug or near tie:
  Where a token differs, the gap of the two logits is compared with the doubt: how far roundings can move it. Within
  it, a right engine may decide so (near tie); beyond it, none does (bug). Numbers that are recorded have no doubt.

examples:
  dflash-check-trace trace --target pair/target --draft pair/draft
  dflash-check-trace trace --target pair/target --draft pair/draft --round 37 --plot trace.svg
  dflash-check-trace trace --json > verdict.json
  dflash-check-trace restored --same-as fresh

exit code:
  0    no bug: every round judged agrees with the reference, but for near ties that are told
  1    a bug; or with --same-as, two traces that differ
  2    wrong usage, a damaged trace, folders of another pair, or nothing to judge
  130  interrupted; what was found until then is told
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog=PROGRAM,
        description="Replay an engine's trace with the reference, and say in which round, stage and row it first goes "
        "wrong.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("trace", type=Path, metavar="TRACE", help="the folder of the trace")
    add("--target", type=Path, metavar="DIR", help="the target's folder: config.json and model.safetensors")
    add("--draft", type=Path, metavar="DIR", help="the draft's folder")
    add("--round", type=int, action="append", metavar="N", help="judge this round only; may be repeated")
    add("--same-as", type=Path, metavar="OTHER", help="compare with another trace of the same implementation, bit by "
        "bit, state digests included, and replay nothing")  # fmt: skip
    add("--plot", type=Path, metavar="FILE.svg", help="also draw accepted counts, near ties and the first bug")
    add("--json", action="store_true", help="print one JSON object instead of the report")
    return made


def run(argv: Sequence[str] | None = None) -> int:
    """Parse, replay, print; returns the exit code that `--help` documents."""
    made = parser()
    options = made.parse_args(argv)
    if (options.target is None) != (options.draft is None):
        made.error("--target and --draft go together")
    if options.same_as is not None and (options.target or options.round or options.plot):
        made.error("--same-as replays nothing: give it alone, or with --json")
    if options.plot is not None and options.plot.suffix != ".svg":
        made.error(f"--plot {options.plot}: expected a name that ends in .svg")
    try:
        if options.same_as is not None:
            return _compared(options)
        return _replayed(options)
    except (DFlashError, OSError) as error:
        complain(error, PROGRAM)
        return EXIT_UNUSABLE


def _replayed(options: argparse.Namespace) -> int:
    if options.plot is not None:
        writable_file(options.plot)
    trace = Trace.open(options.trace)
    for number in options.round or ():
        if not 0 <= number < len(trace):
            raise TraceError(f"--round {number}: the trace has rounds 0 to {len(trace) - 1}")
    replay = Replay(trace, _pair(options, trace), options.round)
    progress = Progress(len(trace), sys.stderr)
    try:
        report = replay.run(lambda number: progress.step(f"round {number}"))
    finally:
        progress.close()
    if options.plot is not None:
        write_file(options.plot, picture.svg(report))
    return _tell(report, options)


def _pair(options: argparse.Namespace, trace: Trace) -> Pair | None:
    """The weights, if they were given; tells first what large ones cost."""
    if options.target is None:
        return None
    count = parameters(options.target, options.draft)
    if count > MANY:
        complain(
            f"{count / 1e9:.2f} billion parameters, which the reference holds as float64: {count * 8 / 2**30:.0f} GiB, "
            "and minutes a round. Without --target and --draft, numbers and choices are checked at once",
            PROGRAM,
        )
    return load_pair(trace.configuration, options.target, options.draft)


def _tell(report: Report, options: argparse.Namespace) -> int:
    words = [PROGRAM, str(options.trace)]
    if options.target is not None:
        words += ["--target", str(options.target), "--draft", str(options.draft)]
    if options.json:
        shown = json.dumps(telling.machine_form(report), indent=1, allow_nan=False) + "\n"
    else:
        shown = telling.text(report, Style.of(sys.stdout), shlex.join(words))
    return _printed(shown, telling.exit_code(report))


def _compared(options: argparse.Namespace) -> int:
    done = same.compare(Trace.open(options.trace), Trace.open(options.same_as))
    code = EXIT_PASSED if done.difference is None else EXIT_FAILED
    facts = f"{done.rounds} rounds, {done.tensors} tensors and {done.digests} digests compared"
    if options.json:
        found = None if done.difference is None else vars(done.difference)
        record = {"format": 1, "rounds": done.rounds, "tensors": done.tensors, "digests": done.digests}
        return _printed(json.dumps({**record, "difference": found, "exit_code": code}, indent=1) + "\n", code)
    style = Style.of(sys.stdout)
    if done.difference is None:
        return _printed(f"{style.paint('SAME', 'green')}  {facts}\n", code)
    at = done.difference
    lines = [
        f"first difference: {telling.where(at.round)}, {at.place}",
        f"    {options.trace}: {at.left}",
        f"    {options.same_as}: {at.right}",
        f"{style.paint('DIFFERENT', 'red')}  {facts}",
    ]
    return _printed("\n".join(lines) + "\n", code)


def _printed(text: str, code: int) -> int:
    return printed(text, code, PROGRAM, "the verdict is not printed")
