"""check_vectors: run implementations against the vectors and say which clause each failure breaks."""

from __future__ import annotations

import argparse
import difflib
import json
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from dflash_spec.errors import DFlashError, TensorFileError
from dflash_spec.files import canonical_json
from dflash_spec.registry import PROFILES

from dflash_vectors.cases import Entry, Selection, default_folder, read_index
from dflash_vectors.checker import check
from dflash_vectors.commands.progress import Progress
from dflash_vectors.differences import read_differences
from dflash_vectors.report import LikelyFaults, failures
from dflash_vectors.runners import open_runner
from dflash_vectors.style import Style
from dflash_vectors.table import closing, remarks, table
from dflash_vectors.verdict import (
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


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="dflash-check-vectors",
        description="Run implementations of DFlash against the vectors, and say which clause each failure breaks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--implementation", action="append", required=True, metavar="HOW", help="what to check; may be repeated")
    add("--profile", choices=PROFILES, help="check this profile only (default: each that the implementation speaks)")
    add("--op", action="append", default=[], help="check this op only; may be repeated")
    add("--chapter", action="append", default=[], help="check this chapter only, such as CTX; may be repeated")
    add("--id", action="append", default=[], help="check this vector only; may be repeated")
    add("--vectors", type=Path, metavar="DIR", help="a folder of vectors (default: those of this package)")
    add("--json", action="store_true", help="print one JSON object instead of the table")
    add("--out", type=Path, metavar="FILE", help="write each verdict to FILE as it comes, one JSON object a line")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds that a stdio program has to answer (60)")
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
    """FILE of --out: a line per verdict, on disk before the next vector starts."""

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = None
        self._seen: set[int] = set()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")

    def add(self, column: Column, result: Result) -> None:
        if id(column) not in self._seen:
            self._seen.add(id(column))
            self._line({"kind": "implementation", **header_record(column)})
        self._line({"kind": "result", **result_record(column, result)})

    def close(self, run: Run) -> None:
        self._line({"kind": "summary", **summary_record(run)})
        if self._file is not None:
            self._file.close()

    def _line(self, record: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(canonical_json(record) + "\n")
            self._file.flush()


def fault_namer() -> LikelyFaults | None:
    """What names the known fault that an output looks like; None where the reference is not installed."""
    try:
        from dflash_vectors.lookalikes import Guesser
    except ImportError:
        return None
    return Guesser()


def show(run: Run, seconds: float, as_json: bool) -> None:
    """Print the run on stdout: table, remarks, failures and verdict, or one JSON object."""
    if as_json:
        print(json.dumps(machine_form(run), ensure_ascii=False, indent=1, allow_nan=False))
        return
    style = Style.of(sys.stdout)
    likely = None if run.interrupted else fault_namer()
    parts: Iterable[str] = [
        table(run, style) if run.columns else "",
        remarks(run, style),
        failures(run, style, likely),
        closing(run, seconds, style),
    ]
    print("\n\n".join(part for part in parts if part))


def main(argv: list[str] | None = None) -> int:
    """Parse, check, print; returns the exit code that `--help` documents."""
    options = parser().parse_args(argv)
    chosen = Selection(
        options.profile, tuple(options.op), tuple(chapter.upper() for chapter in options.chapter), tuple(options.id)
    )
    folder = options.vectors or default_folder()
    try:
        runners = [open_runner(spec, options.timeout) for spec in dict.fromkeys(options.implementation)]
        run = Run(str(folder), select(read_index(folder), chosen))
        known = read_differences()
        ledger = Ledger(options.out)
    except (DFlashError, OSError) as error:
        print(f"dflash-check-vectors: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    progress = Progress(len(run.entries) * len(runners), sys.stderr)

    def sink(column: Column, result: Result) -> None:
        ledger.add(column, result)
        progress.step(f"{column.description.name} {result.entry.id}")

    start = time.perf_counter()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        check(run, runners, known, sink)
    finally:
        signal.signal(signal.SIGTERM, before)
        progress.close()
        ledger.close(run)
    show(run, time.perf_counter() - start, options.json)
    return run.exit_code
