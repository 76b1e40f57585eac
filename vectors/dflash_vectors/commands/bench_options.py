"""The command line of the measurement, read before any library starts its threads."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from dflash_vectors.commands.output import Parser
from dflash_vectors.verdict import EXIT_INTERRUPTED

__all__ = ["EXIT_INTERRUPTED", "PROGRAM", "parsed", "parser"]

PROGRAM = "dflash-bench"
PARTS = ("step", "round", "prefill", "batch", "slope", "memory", "speedup")
CHARTED = {"step", "round", "slope", "speedup"}
BACKENDS = ("dflash", "dflash2")
KERNELS = ("auto", "torch", "native", "triton")
MOST = 1 << 20
FULL = {"turns": 12, "calls": 4, "rounds": 5000, "context": (256, 2048, 6000), "batch": (1, 4, 8)}
QUICK = {"turns": 2, "calls": 1, "rounds": 20, "context": (96, 288), "batch": (1, 2)}

EPILOG = """\
what is measured (docs/speed.md says how to read it):
  step      a plain decoding step: one token of the target alone
  round     a block round: draft, verify, accept, commit
  prefill   a prompt's token, the draft's context included
  batch     steps and rounds of several requests in joint forwards, beside their bare matrix products
  slope     how both grow with the context, beside what attention reads; and a draft whose layers are all local
  memory    peak and growth of a fresh process, beside weights and planned buffers
  speedup   tokens a second over plain decoding's, by what is accepted, with the break-even point
The authors' package, the engine and the engine's matrix products alone take turns on the same pair, prompt and threads.
Without --pair a planted pair is written to a temporary folder: hidden 512, 8 layers, 8/2 heads of 64, vocabulary
32,000, drafts of 3 layers, block 16, BF16.

examples:
  dflash-bench
  dflash-bench --only step,round --context 256,6000 --turns 20
  dflash-bench --target Qwen3-0.6B --draft Qwen3-0.6B-DFlash --context 256 --json > speed.json
  dflash-bench --quick

exit code:
  0    measured; with --strict: and every target is met
  1    with --strict: a target is missed
  2    wrong usage, folders that are no pair, a device or a package that is not there
  130  interrupted; what was measured until then is printed
"""


def _number(text: str) -> int:
    digits = text.replace("_", "")
    if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits) <= MOST:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number from 1 to {MOST:,}")
    return int(digits)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({_number(part) for part in text.split(",")}))


def _batches(text: str) -> tuple[int, ...]:
    sizes = _numbers(text)
    if sizes[-1] > 8:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected batches of at most 8 requests")
    return sizes


def _among(known: Sequence[str], text: str) -> tuple[str, ...]:
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"found {name!r}, expected some of {','.join(known)}")
    return tuple(name for name in known if name in names)


def _parts(text: str) -> tuple[str, ...]:
    return _among(PARTS, text)


def _backends(text: str) -> tuple[str, ...]:
    return _among(BACKENDS, text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog=PROGRAM,
        description="Measure the engine, the authors' package and bare matrix products in turns, in one run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--pair", type=Path, metavar="DIR", help="a folder that holds target and draft, instead of a planted pair")
    add("--target", type=Path, metavar="DIR", help="the target's folder; goes with --draft")
    add("--draft", type=Path, metavar="DIR", help="the draft's folder")
    add("--backend", type=_backends, metavar="NAMES", help="planted drafts to measure (dflash,dflash2)")
    add("--only", type=_parts, default=PARTS, metavar="PARTS", help="some of " + ",".join(PARTS))
    add("--context", type=_numbers, metavar="N,..", help="tokens before what is timed (256,2048,6000)")
    add("--batch", type=_batches, metavar="N,..", help="requests in a joint forward (1,4,8)")
    add("--turns", type=_number, metavar="N", help="turns of each party (12)")
    add("--calls", type=_number, metavar="N", help="timed calls of a turn (4)")
    add("--rounds", type=_number, metavar="N", help="rounds over which memory is watched (5000)")
    add("--threads", type=_number, default=os.cpu_count() or 1, metavar="N", help="threads of everyone (all cores)")
    add("--kernels", choices=KERNELS, default="auto", help="what the engine runs (auto)")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    add("--prefill-chunk", type=_number, metavar="N", help="rows of a prompt that the engine reads at a time")
    add("--no-peer", action="store_true", help="leave the authors' package out")
    add("--quick", action="store_true", help="a tiny pair and few turns: whether the tool works, not how fast")
    add("--strict", action="store_true", help="exit with 1 where a target is missed; they are the planted pair's, "
        "at full size")  # fmt: skip
    add("--json", action="store_true", help="print one JSON object instead of the tables")
    add("--plot", type=Path, metavar="FILE.svg", help="also draw steps, rounds and speed-up")
    return made


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The options, all filled in. Ends the program with 2 for wrong usage."""
    made = parser()
    options = made.parse_args(argv)
    if (options.target is None) != (options.draft is None):
        made.error("--target and --draft go together")
    if options.pair is not None and options.target is not None:
        made.error("--pair and --target: one of them says where the pair is")
    options.planted = options.pair is None and options.target is None
    if options.backend is not None and not options.planted:
        made.error("--backend chooses planted drafts; a pair on disk says itself what it is")
    if options.plot is not None and options.plot.suffix != ".svg":
        made.error(f"--plot {options.plot}: expected a name that ends in .svg")
    chosen = QUICK if options.quick else FULL
    options.judged = options.planted and not options.quick
    for name, value in chosen.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.strict and not options.judged:
        made.error(
            "--strict: only the planted pair at full size has targets; with --quick or a pair on disk it cannot fail"
        )
    if "slope" in options.only and options.only is not PARTS and len(options.context) < 2:
        made.error(f"--only slope: growth needs two contexts, found --context {options.context[0]}")
    alone = "batch" in options.only and 1 in options.batch
    if options.plot is not None and not alone and not CHARTED & set(options.only):
        asked = ",".join(options.only)
        made.error(f"--plot: {asked}: nothing here has a chart; step, round, slope, speedup and a batch of 1 have one")
    options.backend = options.backend or BACKENDS
    if options.pair is not None:
        options.target, options.draft = options.pair / "target", options.pair / "draft"
    return options
