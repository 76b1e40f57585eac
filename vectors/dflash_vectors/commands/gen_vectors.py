"""Generate golden vectors: the committed set, a part of it, or inputs alone for a blind check."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dflash_spec.errors import DFlashError, OutputError
from dflash_spec.geometry import load_geometries
from dflash_spec.registry import ALL_PROFILES, PROFILES, load_ops, load_profile

from dflash_vectors.build import Vector
from dflash_vectors.cases import default_folder
from dflash_vectors.commands.output import Parser, made_folders, say, unsaid
from dflash_vectors.commands.progress import Progress
from dflash_vectors.errors import BuildError, LedgerError
from dflash_vectors.index import (
    INDEX,
    PROCESSES,
    build_all,
    check_size,
    differences,
    extend_ledger,
    read_ledger,
    writable,
    write_set,
)
from dflash_vectors.sized import cost, plan, sized_cases
from dflash_vectors.style import complain
from dflash_vectors.suite import Case, all_cases

PROGRAM = "dflash-gen-vectors"

TINY = "tiny"
"""The geometry of the committed set's cases."""

DIFFERS, REFUSED, INTERRUPTED = 1, 2, 130

EPILOG = """examples:
  dflash-gen-vectors --check                                     is the committed set what this code writes?
  dflash-gen-vectors --suite CTX --profile ninfer --out ctx      one chapter, to read or to check against
  dflash-gen-vectors --geometry qwen3.8-27b --suite context.materialize --profile ninfer --out big
  dflash-gen-vectors --no-expected --out blind                   inputs alone, for someone else's answers

exit code:
  0    written, or equal
  1    what is there differs from what this code writes
  2    refused: options that contradict each other, a frozen id that changed, a folder that cannot be written
  130  interrupted
"""

Sizes = dict[str, list[int]]
"""chapter -> bytes of each of its vectors."""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=PROGRAM,
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--suite", metavar="CHAPTER|OP", help="only one chapter (CTX) or op (context.key)")
    parser.add_argument("--profile", choices=ALL_PROFILES, help="only one profile")
    parser.add_argument(
        "--geometry",
        metavar="NAME",
        help="the draft's ops at the sizes of an official model; prints what it costs first",
    )
    parser.add_argument("--no-expected", action="store_true", help="write inputs alone, for a blind check")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write; the committed set if absent")
    parser.add_argument("--accept-new", action="store_true", help="freeze ids that the ledger does not have yet")
    parser.add_argument("--check", action="store_true", help="compare with the set in --out and write nothing")
    return parser


def _chosen(suite: str | None, op: str) -> bool:
    chapter = load_ops()[op].chapter
    return suite in (None, op, chapter, chapter.lower())


def select(suite: str | None, profile: str | None) -> list[Case]:
    """The committed set's cases of a chapter or op, and of a profile. Raises DFlashError if there are none."""
    cases = [case for case in all_cases(profile) if _chosen(suite, case.op)]
    if not cases:
        known = sorted({case.chapter for case in all_cases()} | {case.op for case in all_cases()})
        near = difflib.get_close_matches(suite or "", known, 3, 0.6)
        hint = f"did you mean {', '.join(near)}?" if near else f"chapters: {', '.join(filter(str.isupper, known))}"
        raise DFlashError(f"no case of suite {suite} in profile {profile or 'any'}; {hint}")
    return cases


def _built(cases: Iterable[Case], total: int, expected: bool, processes: int, sizes: Sizes) -> Iterator[Vector]:
    """The vectors, with a bar on a terminal; `sizes` collects what they hold."""
    progress = Progress(total, sys.stderr)
    try:
        for vector in build_all(cases, expected, processes):
            progress.step(vector.id)
            sizes.setdefault(load_ops()[vector.entry["op"]].chapter, []).append(len(vector.content))
            yield vector
    finally:
        progress.close()


def _summary(sizes: Sizes, seconds: float) -> str:
    lines = [
        f"{chapter:<8}{len(held):>5} vectors {sum(held) / 1024:>9.1f} KiB" for chapter, held in sorted(sizes.items())
    ]
    everything = [size for held in sizes.values() for size in held]
    total = sum(everything) / 1024
    return "\n".join([*lines, f"{'all':<8}{len(everything):>5} vectors {total:>9.1f} KiB in {seconds:.1f} s"])


def _sized(options: argparse.Namespace) -> tuple[Iterator[Case], int]:
    """The cases of a geometry, and how many they are; prints first what they cost."""
    geometries = load_geometries()
    if options.geometry not in geometries:
        known = ", ".join((TINY, *geometries))
        raise DFlashError(f"geometry {options.geometry!r}, expected one of {known}")
    geometry = geometries[options.geometry]
    profiles = [load_profile(name) for name in ([options.profile] if options.profile else PROFILES)]
    chosen = [sized for sized in plan(geometry) if _chosen(options.suite, sized.op)]
    if not chosen:
        known = ", ".join(dict.fromkeys(sized.op for sized in plan(geometry)))
        raise DFlashError(f"no case of suite {options.suite} at a geometry; ops: {known}")
    say(cost(geometry, chosen, profiles))
    cases = (case for profile in profiles for case in sized_cases(geometry, chosen, profile))
    return cases, sum(sized.holds(profile) for profile in profiles for sized in chosen)


def _refuse(options: argparse.Namespace, whole: bool) -> None:
    """Raise DFlashError for options that do not go together, and for a folder that must not be replaced."""
    if options.accept_new and (options.out or options.check):
        raise DFlashError("--accept-new freezes ids of the committed set: not with --out or --check")
    if options.check:
        if options.no_expected and options.out is None:
            raise DFlashError("--no-expected --check compares with a set without expected values: give --out DIR")
        if not ((options.out or default_folder()) / INDEX).is_file():
            raise DFlashError(f"{options.out or default_folder()}: has no {INDEX}, so there is no set to compare with")
        return
    committed = options.out is None or os.path.realpath(options.out) == os.path.realpath(default_folder())
    if committed and not whole:
        raise DFlashError("a part of the set, or a blind one, does not replace the committed set: give --out DIR")
    writable(options.out or default_folder())


def _run(options: argparse.Namespace) -> int:
    whole = not (options.suite or options.profile or options.geometry or options.no_expected)
    folder, start, sizes = options.out or default_folder(), time.perf_counter(), Sizes()
    _refuse(options, whole)
    cases: Iterable[Case]
    if options.geometry in (None, TINY):
        cases = listed = select(options.suite, options.profile)
        total, processes = len(listed), PROCESSES
    else:
        # One vector may take gigabytes while it is built: one at a time.
        (cases, total), processes = _sized(options), 1
    vectors: Iterable[Vector] = _built(cases, total, not options.no_expected, processes, sizes)
    if options.check:
        lines = differences(folder, vectors, whole)
        say("\n".join(lines) or f"equal to {folder}")
        return DIFFERS if lines else 0
    ledger = None
    if options.out is None:
        vectors = list(vectors)
        check_size(vectors)
        ledger = extend_ledger(read_ledger(folder / "ledger.json"), vectors, options.accept_new)
    with made_folders(folder):
        write_set(folder, vectors, ledger)
    say(_summary(sizes, time.perf_counter() - start))
    say(f"written to {folder}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """0: written, or equal with --check. 1: differs, or a vector breaks a rule. 2: cannot be done. 130: interrupted."""
    options = _parser().parse_args(argv)
    try:
        return _run(options)
    except OutputError as error:
        return unsaid(error, PROGRAM)
    except (BuildError, LedgerError) as error:
        complain(error, PROGRAM)
        return DIFFERS
    except (DFlashError, OSError) as error:
        complain(error, PROGRAM)
        return REFUSED
    except KeyboardInterrupt:
        complain("interrupted, nothing was written", PROGRAM)
        return INTERRUPTED
