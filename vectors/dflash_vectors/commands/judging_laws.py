"""A whole check of laws: the command line, the run, and where its verdicts go."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from dflash_spec.errors import DFlashError, ImplementationError, UnsupportedError
from dflash_spec.registry import ALL_PROFILES, load_profile

from dflash_vectors.commands.checking import fault_namer, seconds
from dflash_vectors.commands.output import Parser, printed
from dflash_vectors.commands.progress import Progress
from dflash_vectors.differences import read_differences
from dflash_vectors.law import controls, judging, report
from dflash_vectors.law.judging import SAMPLED_OPS, Law, Options
from dflash_vectors.law.verdicts import LawRun
from dflash_vectors.runners import open_runner
from dflash_vectors.runners.files import FilesRunner
from dflash_vectors.runners.protocol import Description, Runner
from dflash_vectors.style import Style, complain
from dflash_vectors.verdict import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PASSED, EXIT_UNUSABLE

PROG = "dflash-check-law"
LONGEST = 100_000_000
"""Draws of a law that --samples takes at most."""
TRIAL = 200
"""Draws of the trial that the cost is told from."""

EPILOG = """\
The question: is what comes out still the target's distribution, and is what gets accepted what p and q share?

how it is answered, by what the implementation declares:
  law.one_hot, law.sparse, law.match, proc.draw, proc.propose
      take uniforms, so their law is measured, not sampled: each is asked on both sides of every place where its answer
      should change, and bisected wherever it changes elsewhere. A probability is known to a few units of 2^-24; an
      acceptance inflated by a hundred-thousandth is seen.
  proc.filter
      answers probabilities, which are compared with exact ones.
  proc.sample_tokens, law.sample_rounds
      draw with your own randomness, so draws are counted and tested: exactly for two outcomes or few samples, else
      with the likelihood ratio and a bound on its tail that holds for every sample size. A right implementation fails
      one run in a million. What the sample size is able to see is printed; --samples changes it.
  Either kind is enough. What is declared is judged; what is not declared is left out.

ways of plugging in (docs/protocol.md has the whole protocol):
  stdio:CMD              CMD reads JSON lines (start, smoke, run, stop); tensors travel in files.
  python:MODULE:FACTORY  FACTORY(profile) returns an object with describe() and run(op, inputs).
  files:DIR cannot be judged here: which question comes next depends on the answer before.

examples:
  dflash-check-law --implementation python:my_port.oracle:create
  dflash-check-law --implementation 'stdio:./my-port --device 0' --profile zlab --op law.one_hot
  dflash-check-law --implementation python:my_port.oracle:create --op law.sample_rounds --samples 1000000
  dflash-check-law --controls                 wrong engines on purpose: see that the check can fail

exit code:
  0    every law holds, or is a known difference of a published implementation; with --controls: each is caught
  1    a law is broken, or a declared op gives no usable answer; with --controls: one is not caught
  2    wrong usage, an implementation that could not be run, or one that declares nothing that can be judged
  130  interrupted; the verdicts gathered until then are printed all the same
"""


def _samples(text: str) -> int:
    """A number of draws. Raises ArgumentTypeError unless it is from 1 to LONGEST."""
    digits = text.replace("_", "").replace(",", "")
    if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits) <= LONGEST:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number from 1 to {LONGEST:,}")
    return int(digits)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog=PROG,
        description="Say whether the draws and verifies of an implementation of DFlash have the law they must have.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--implementation", action="append", default=[], metavar="HOW", help="what to judge; may be repeated")
    add("--profile", choices=ALL_PROFILES, help="judge this profile only (default: each that it speaks)")
    add("--op", action="append", default=[], choices=judging.OPS, metavar="OP", help="judge this op only; may repeat")
    add("--samples", type=_samples, metavar="N", help="draws of each law that is sampled (100000)")
    add("--seed", type=int, default=0, help="another number gives other seeds to draw with (0)")
    add(
        "--controls",
        action="store_true",
        help="judge engines that are wrong on purpose instead, and say what caught each",
    )
    add("--json", action="store_true", help="print one JSON object instead of the tables")
    add("--timeout", type=seconds, default=60.0, metavar="S", help="seconds that a stdio program has to answer (60)")
    return made


class Cost(judging.Begin):
    """Tells what an implementation's laws will cost before they are asked, and draws the progress of them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._progress: Progress | None = None

    def begin(self, runner: Runner, description: Description, asked: Sequence[Law]) -> None:
        """One line, from a trial of a few draws where there is something to sample."""
        self.close()
        sampled = [law for law in asked if law.op in SAMPLED_OPS]
        text = f"{description.name} ({description.profile}): {len(asked)} laws"
        if sampled:
            text += f", {len(sampled)} of them sampled with {self._options.samples:,} draws each"
            text += f", about {self._guess(runner, description, sampled):.0f} s for these (--samples changes it)"
        complain(text, PROG)
        self._progress = Progress(sum(law.steps for law in asked), sys.stderr)

    def step(self, label: str) -> None:
        """One part more is done."""
        if self._progress is not None:
            self._progress.step(label)

    def close(self) -> None:
        """Leave a clean line behind."""
        if self._progress is not None:
            self._progress.close()

    def _guess(self, runner: Runner, description: Description, sampled: Sequence[Law]) -> float:
        """Seconds that the sampled laws will take."""
        total, profile = 0.0, load_profile(description.profile)
        trial = min(TRIAL, self._options.samples)
        for op in dict.fromkeys(law.op for law in sampled):
            next(judging.laws(op, profile, 1, self._options.seed)).judge(
                runner, lambda _: None
            )  # what is slow but once
            start = time.perf_counter()
            next(judging.laws(op, profile, trial, self._options.seed)).judge(runner, lambda _: None)
            rate = (time.perf_counter() - start) / trial
            total += rate * self._options.samples * sum(law.op == op for law in sampled)
        return total


def opened(specs: Sequence[str], timeout: float) -> list[Runner]:
    """The runners of a command line. Raises ImplementationError for none, or one that cannot answer in turn."""
    if not specs:
        raise ImplementationError("nothing to judge: give --implementation HOW, or --controls; --help has examples")
    runners = [open_runner(spec, timeout) for spec in dict.fromkeys(specs)]
    for runner in runners:
        if isinstance(runner, FilesRunner):
            raise ImplementationError(
                f"{runner.spec}: files cannot be judged here: which question comes next depends on the answer before, "
                "and files hold answers to questions that were asked beforehand; plug in as stdio:CMD or "
                "python:MODULE:FACTORY"
            )
    return runners


def shown(run: LawRun, taken: float, as_json: bool) -> str:
    """The run for stdout: tables, failures, what would have been seen, and the verdict; or one JSON object."""
    if as_json:
        return json.dumps(report.machine_form(run), indent=1, allow_nan=False) + "\n"
    style, level = Style.of(sys.stdout), report.level_of(run)
    parts = [report.table(judged, level, style) for judged in run.judged]
    parts += [report.known(run, style), report.failures(run, style, None if run.interrupted else fault_namer())]
    parts += [report.summary(run, style), report.closing(run, taken, style)]
    return "\n\n".join(part for part in parts if part) + "\n"


def run(argv: Sequence[str] | None = None) -> int:
    """Parse, judge, print; returns the exit code that `--help` documents."""
    given = parser().parse_args(argv)
    options = Options(given.profile, tuple(given.op), given.samples or Options.samples, given.seed)
    try:
        if given.controls:
            return _controls(given)
        runners, known = opened(given.implementation, given.timeout), read_differences()
    except DFlashError as error:
        complain(error, PROG)
        return EXIT_UNUSABLE
    made, cost, start = LawRun(), Cost(options), time.perf_counter()
    try:
        judging.check(made, runners, options, known, cost)
    except KeyboardInterrupt:  # a second one, while the check was ending for the first
        made.interrupted = True
    finally:
        cost.close()
    return _print(shown(made, time.perf_counter() - start, given.json), made.exit_code)


def _print(text: str, code: int) -> int:
    return printed(text, code, PROG, "the verdicts are not printed")


def _controls(given: argparse.Namespace) -> int:
    """Judge every control, and right engines beside them."""
    if given.implementation:
        raise UnsupportedError("--controls judges engines of its own; give no --implementation with it")
    chosen = [one for name, one in controls.CONTROLS.items() if given.profile in (None, one.profile)]
    progress = Progress(len(chosen), sys.stderr)
    caught, start = [], time.perf_counter()
    try:
        for control in chosen:
            caught.append(controls.tried(control, given.samples, given.seed))
            progress.step(control.name)
    except KeyboardInterrupt:
        progress.close()
        complain("interrupted", PROG)
        return EXIT_INTERRUPTED
    finally:
        progress.close()
    text = controls.table(caught, time.perf_counter() - start, Style.of(sys.stdout), given.json)
    return _print(text, EXIT_PASSED if all(one.right for one in caught) else EXIT_FAILED)
