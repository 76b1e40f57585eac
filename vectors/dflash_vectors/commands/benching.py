"""A whole measurement: the pairs, the parties, and where the figures go."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from dflash_spec.errors import DFlashError, OutputError, UnsupportedError

from dflash_vectors.bench import machine, pairs, picture, report
from dflash_vectors.bench.figures import Report
from dflash_vectors.bench.harness import Plan
from dflash_vectors.bench.pairs import Pair
from dflash_vectors.bench.run import Asked, jobs
from dflash_vectors.commands.bench_options import PROGRAM
from dflash_vectors.commands.output import printed, writable_file, write_file
from dflash_vectors.commands.progress import Progress
from dflash_vectors.style import Style, complain
from dflash_vectors.verdict import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PASSED, EXIT_UNUSABLE


def run(options: argparse.Namespace) -> int:
    """Measure and print; returns the exit code that `--help` documents."""
    try:
        if options.plot is not None:
            writable_file(options.plot)
        asked = _asked(options)
        torch.set_num_threads(options.threads)
        made = Report(machine.described(options.threads, asked.device, options.kernels), judged=options.judged)
        made.machine["pairs"] = []
        with tempfile.TemporaryDirectory(prefix="dflash-bench-") as scratch:
            _measure(asked, options, Path(scratch), made)
    except (DFlashError, OSError) as error:
        complain(error, PROGRAM)
        return EXIT_UNUSABLE
    return _tell(made, options)


def device(name: str) -> torch.device:
    """The device of that name. Raises UnsupportedError where it is not there."""
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise UnsupportedError(f"--device {name!r}, expected cpu, cuda or cuda:N") from error
    if found.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"--device {name!r}, expected cpu, cuda or cuda:N")
    if found.type == "cuda" and not torch.cuda.is_available():
        built = "this torch was built without CUDA" if torch.version.cuda is None else "no GPU can be reached"
        raise UnsupportedError(f"--device {name}: {built}, so nothing is measured there")
    return found


def _asked(options: argparse.Namespace) -> Asked:
    return Asked(
        parts=options.only, contexts=options.context, batches=options.batch, plan=Plan(options.turns, options.calls),
        rounds=options.rounds, kernels=options.kernels, device=device(options.device), threads=options.threads,
        chunk=options.prefill_chunk, peer=not options.no_peer, geometry="tiny" if options.quick else "bench",
    )  # fmt: skip


def _measure(asked: Asked, options: argparse.Namespace, scratch: Path, made: Report) -> None:
    """Every job of every pair. What fails is told among the remarks, and an interrupt leaves what was measured."""
    progress = Progress(_count(asked) * len(options.backend if options.planted else "1"), sys.stderr)
    warnings.filterwarnings("ignore", module="transformers")
    try:
        for pair in _pairs(options, asked, scratch):
            made.machine["pairs"].append(f"{pair.backend}: {pair.origin}")
            for label, job in jobs(asked, pair, scratch if options.planted else None, made):
                progress.step(f"{pair.backend}: {label}")
                try:
                    job()
                except DFlashError as error:
                    made.failed = True
                    made.remarks.append(f"{pair.backend}: {label}: {error}")
    except KeyboardInterrupt:
        made.interrupted = True
    finally:
        progress.close()


def _count(asked: Asked) -> int:
    """About how many jobs a pair has."""
    each = sum(
        asked.wants(name) or (asked.wants("slope") and name != "prefill") for name in ("step", "round", "prefill")
    )
    return each * len(asked.contexts) + 2 * asked.wants("slope") + sum(
        asked.wants(name) for name in ("batch", "speedup", "memory")
    )  # fmt: skip


def _pairs(options: argparse.Namespace, asked: Asked, scratch: Path) -> Iterator[Pair]:
    if not options.planted:
        yield pairs.on_disk(options.target, options.draft)
        return
    for backend in options.backend:
        yield pairs.make(scratch / backend, backend, asked.geometry)


def _tell(made: Report, options: argparse.Namespace) -> int:
    code = _code(made, options.strict)
    if options.plot is not None:
        try:
            write_file(options.plot, picture.svg(made))
        except OutputError as error:
            complain(error, PROGRAM)
            code = code if made.interrupted else EXIT_UNUSABLE
    if options.json:
        text = json.dumps(made.record(), indent=1, allow_nan=False) + "\n"
    else:
        text = report.text(made, Style.of(sys.stdout))
    return printed(text, code, PROGRAM, "the figures are not printed")


def _code(made: Report, strict: bool) -> int:
    if made.interrupted:
        return EXIT_INTERRUPTED
    if made.failed:
        return EXIT_UNUSABLE
    if not strict:
        return EXIT_PASSED
    targets = made.targets()
    if not targets:
        complain("--strict: nothing was measured that has a target", PROGRAM)
        return EXIT_UNUSABLE
    return EXIT_PASSED if all(target.met for target in targets) else EXIT_FAILED
