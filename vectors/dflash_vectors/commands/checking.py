"""A whole check: the command line, the run, and where its verdicts go."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dflash_spec.errors import DFlashError, OutputError, TensorFileError
from dflash_spec.files import canonical_json
from dflash_spec.registry import ALL_PROFILES

from dflash_vectors.cases import Entry, Selection, default_folder, read_index
from dflash_vectors.checker import check
from dflash_vectors.commands.output import Parser, printed, writable_file
from dflash_vectors.commands.progress import Progress
from dflash_vectors.differences import read_differences
from dflash_vectors.report import LikelyFaults, failures
from dflash_vectors.runners import open_runner
from dflash_vectors.style import Style, complain
from dflash_vectors.table import closing, remarks, table
from dflash_vectors.verdict import (
    EXIT_INTERRUPTED,
    EXIT_UNUSABLE,
    Column,
    Result,
    Run,
    header_record,
    machine_form,
    result_record,
    summary_record,
)  # fmt: skip

EPILOG = """\
ways of plugging in (docs/protocol.md has the whole protocol):
  files:DIR              DIR/<id>.safetensors, or DIR/<chapter>/<id>.safetensors, holds out.* of each vector, and
                         stage.* if you like. DIR/implementation.json says what you support; without it every
                         vector is required.
  stdio:CMD              CMD reads JSON lines (start, smoke, run, stop); tensors travel in files.
  python:MODULE:FACTORY  FACTORY(profile) returns an object with describe() and run(op, inputs).

examples:
  dflash-check-vectors --implementation files:my-answers --profile zlab
  dflash-check-vectors --implementation 'stdio:./my-port --device 0' --chapter CTX --chapter MASK
  dflash-check-vectors --implementation python:my_port.oracle:create --id zlab-tap-concat-recorded-order
  dflash-check-vectors --implementation files:mine --implementation python:my_port.oracle:create --out run.jsonl

a cell of the table:
  12             twelve vectors ran and all passed
  3/12 FAILED    three of twelve failed; [n] points to a known difference
  –              none of the chapter's ops is declared, so nothing ran; this never counts as passed
  ·              not reached, because the run was interrupted

exit code:
  0    every vector that ran passed, or its failure is a known difference of a published implementation
  1    a vector failed
  2    wrong usage, a damaged vector set, an implementation that could not be run, or nothing ran at all
  130  interrupted; the verdicts gathered until then are printed and written all the same
"""


LONGEST = 1e6
"""Seconds of --timeout, some eleven days: what the waiting functions of every system can count."""


def seconds(text: str) -> float:
    """A time to wait. Raises ArgumentTypeError unless it is above 0 and at most LONGEST."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value <= LONGEST:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected seconds above 0 and at most {LONGEST:.0f}")
    return value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog="dflash-check-vectors",
        description="Run implementations of DFlash against the vectors, and say which clause each failure breaks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--implementation", action="append", required=True, metavar="HOW", help="what to check; may be repeated")
    add("--profile", choices=ALL_PROFILES, help="check this profile only (default: each that it speaks)")
    add("--op", action="append", default=[], help="check this op only; may be repeated")
    add("--chapter", action="append", default=[], help="check this chapter only, such as CTX; may be repeated")
    add("--id", action="append", default=[], help="check this vector only; may be repeated")
    add("--vectors", type=Path, metavar="DIR", help="a folder of vectors (default: those of this package)")
    add("--json", action="store_true", help="print one JSON object instead of the table")
    add("--out", type=Path, metavar="FILE", help="write each verdict to FILE as it comes, one JSON object a line")
    add("--timeout", type=seconds, default=60.0, metavar="S", help="seconds that a stdio program has to answer (60)")
    return made


def select(entries: tuple[Entry, ...], selection: Selection) -> tuple[Entry, ...]:
    """The entries asked for. Raises TensorFileError for a name that no entry has, or when nothing is left."""
    for option, asked, known in (
        ("op", selection.ops, {entry.op.name for entry in entries}),
        ("chapter", selection.chapters, {entry.chapter for entry in entries}),
        ("id", selection.ids, {entry.id for entry in entries}),
    ):
        for name in asked:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.4)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {len(known)} others"
                raise TensorFileError(f"--{option} {name!r}: no such vector; {hint}")
    taken = tuple(entry for entry in entries if selection.takes(entry))
    if not taken:
        raise TensorFileError("no vector is left: the options exclude one another")
    return taken


class Ledger:
    """FILE of --out: a line per verdict, on disk before the next vector starts.

    What an earlier run left in it goes with the first verdict, not before. A file that takes no more ends the writing,
    not the run; a line that it took half of is taken back, where it can be.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises OutputError if the file cannot be written to."""
        self.broken = False
        self._path = path
        self._file = -1
        self._size = 0
        self._begun = False
        self._seen: set[int] = set()
        if path is not None:
            writable_file(path)
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
            except OSError as error:
                raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
            self._regular = stat.S_ISREG(os.fstat(self._file).st_mode)

    def add(self, column: Column, result: Result) -> None:
        if id(column) not in self._seen:
            self._seen.add(id(column))
            self._line({"kind": "implementation", **header_record(column)})
        self._line({"kind": "result", **result_record(column, result)})

    def close(self, run: Run) -> None:
        """Write the summary, unless there is no verdict to sum up but only those of an earlier run."""
        if self._file >= 0:
            if self._begun or not os.fstat(self._file).st_size:
                self._line({"kind": "summary", **summary_record(run)})
            os.close(self._file)
            self._file = -1

    def _line(self, record: dict[str, object]) -> None:
        if self._file < 0 or self.broken:
            return
        line = (canonical_json(record) + "\n").encode("utf-8", "backslashreplace")  # half a pair as JSON escapes it
        try:
            if not self._begun and self._regular:
                os.ftruncate(self._file, 0)
            self._begun = True
            done = 0
            while done < len(line):
                done += os.write(self._file, line[done:])
            self._size += len(line)
        except OSError as error:
            self.broken = True
            if self._regular:
                with suppress(OSError):
                    os.ftruncate(self._file, self._size)
            complain(f"{self._path}: {error.strerror}: the verdicts from here on are not in it")


def fault_namer() -> LikelyFaults | None:
    """What names the known fault that an output looks like; None where the reference is not installed."""
    try:
        from dflash_vectors.lookalikes import Guesser
    except ImportError:
        return None
    return Guesser()


def shown(run: Run, seconds: float, as_json: bool) -> str:
    """The run for stdout: table, remarks, failures and verdict, or one JSON object."""
    if as_json:
        return json.dumps(machine_form(run), indent=1, allow_nan=False) + "\n"
    style = Style.of(sys.stdout)
    try:
        told = failures(run, style, None if run.interrupted else fault_namer())
    except KeyboardInterrupt:  # guessing takes longest
        run.interrupted = True
        told = failures(run, style)
    parts = [table(run, style) if run.columns else "", remarks(run, style), told, closing(run, seconds, style)]
    return "\n\n".join(part for part in parts if part) + "\n"


def run(argv: Sequence[str] | None = None) -> int:
    """Parse, check, print; returns the exit code that `--help` documents."""
    options = parser().parse_args(argv)
    chosen = Selection(
        options.profile, tuple(options.op), tuple(chapter.upper() for chapter in options.chapter), tuple(options.id)
    )
    folder = options.vectors or default_folder()
    try:
        runners = [open_runner(spec, options.timeout) for spec in dict.fromkeys(options.implementation)]
        made = Run(str(folder), select(read_index(folder), chosen))
        known = read_differences()
        ledger = Ledger(options.out)
    except (DFlashError, OSError) as error:
        complain(error)
        return EXIT_UNUSABLE
    progress = Progress(len(made.entries) * len(runners), sys.stderr)

    def sink(column: Column, result: Result) -> None:
        ledger.add(column, result)
        progress.step(f"{column.description.name} {result.entry.id}")

    start = time.perf_counter()
    try:
        check(made, runners, known, sink)
    except KeyboardInterrupt:  # a second one, while the check was ending for the first
        made.interrupted = True
    finally:
        progress.close()
        ledger.close(made)
    code = EXIT_UNUSABLE if ledger.broken and made.exit_code != EXIT_INTERRUPTED else made.exit_code
    text = shown(made, time.perf_counter() - start, options.json)
    return printed(text, code, "dflash-check-vectors", "the verdicts are not printed")
