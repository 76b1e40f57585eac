"""Generate golden vectors: the committed set, a part of it, or inputs alone for a blind check."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash_spec.errors import DFlashError
from dflash_spec.registry import PROFILES

from dflash_vectors.build import Vector
from dflash_vectors.cases import default_folder
from dflash_vectors.commands.progress import Progress
from dflash_vectors.index import build_all, check_size, differences, extend_ledger, read_ledger, write_set
from dflash_vectors.suite import Case, all_cases


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gen_vectors", description=__doc__)
    parser.add_argument("--suite", metavar="CHAPTER|OP", help="only one chapter (CTX) or op (context.key)")
    parser.add_argument("--profile", choices=PROFILES, help="only one profile")
    parser.add_argument("--geometry", help="only cases of one geometry")
    parser.add_argument("--no-expected", action="store_true", help="write inputs alone, for a blind check")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write; the committed set if absent")
    parser.add_argument("--accept-new", action="store_true", help="freeze ids that the ledger does not have yet")
    parser.add_argument("--check", action="store_true", help="compare with the set in --out and write nothing")
    return parser


def select(suite: str | None, profile: str | None, geometry: str | None) -> list[Case]:
    """The cases asked for. Raises DFlashError if there are none."""
    cases = [
        case
        for case in all_cases(profile)
        if suite in (None, case.op, case.chapter, case.chapter.lower()) and geometry in (None, case.geometry)
    ]
    if not cases:
        known = sorted({case.chapter for case in all_cases()} | {case.op for case in all_cases()})
        geometries = sorted({case.geometry for case in all_cases()})
        raise DFlashError(
            f"no case of suite {suite}, profile {profile}, geometry {geometry}; "
            f"suites: {', '.join(known)}; geometries: {', '.join(geometries)}"
        )
    return cases


def _built(cases: list[Case], expected: bool) -> Iterator[Vector]:
    """The vectors, with a bar on a terminal."""
    progress = Progress(len(cases), sys.stderr)
    try:
        for vector in build_all(cases, expected):
            progress.step(vector.id)
            yield vector
    finally:
        progress.close()


def _summary(cases: Sequence[Case], vectors: Sequence[Vector], seconds: float) -> str:
    counts: Counter[str] = Counter(case.chapter for case in cases)
    sizes: Counter[str] = Counter()
    for case, vector in zip(cases, vectors, strict=True):
        sizes[case.chapter] += len(vector.content)
    lines = [
        f"{chapter:<8}{counts[chapter]:>5} vectors {sizes[chapter] / 1024:>9.1f} KiB" for chapter in sorted(counts)
    ]
    total = sum(sizes.values()) / 1024
    return "\n".join([*lines, f"{'all':<8}{len(vectors):>5} vectors {total:>9.1f} KiB in {seconds:.1f} s"])


def _run(options: argparse.Namespace) -> int:
    partial = options.suite or options.profile or options.geometry or options.no_expected
    folder = options.out or default_folder()
    if partial and options.out is None and not options.check:
        raise DFlashError("a part of the set, or a blind one, does not replace the committed set: give --out DIR")
    cases, start = select(options.suite, options.profile, options.geometry), time.perf_counter()
    vectors = list(_built(cases, not options.no_expected))
    check_size(vectors)
    print(_summary(cases, vectors, time.perf_counter() - start))
    if options.check:
        lines = differences(folder, vectors)
        if partial:
            lines = [line for line in lines if "no case generates it" not in line and "index.json" not in line]
        print("\n".join(lines) or f"equal to {folder}")
        return 1 if lines else 0
    ledger = None
    if options.out is None:
        ledger = extend_ledger(read_ledger(folder / "ledger.json"), vectors, options.accept_new)
    write_set(folder, vectors, ledger)
    print(f"written to {folder}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """0: written, or equal with --check. 1: differs, or a case, the ledger or an argument breaks a rule."""
    options = _parser().parse_args(argv)
    try:
        return _run(options)
    except DFlashError as error:
        print(f"gen_vectors: {error}", file=sys.stderr)
        return 1
