"""A run of the law check for people and machines: a table, what is broken and how, and what would have been seen."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from dflash_spec.registry import load_clauses
from dflash_spec.tensors import Tensor

from dflash_vectors.cases import GoldenCase
from dflash_vectors.law import statistics
from dflash_vectors.law.statistics import FALSE_ALARM, POWER
from dflash_vectors.law.verdicts import (
    BREAKPOINTS,
    BROKEN,
    HOLDS,
    SAMPLING,
    UNANSWERED,
    Example,
    Finding,
    Judged,
    LawRun,
)  # fmt: skip
from dflash_vectors.report import LikelyFaults
from dflash_vectors.runners.protocol import Answer
from dflash_vectors.style import Style
from dflash_vectors.verdict import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PASSED, digits

COLOURS = {HOLDS: "green", BROKEN: "red", UNANSWERED: "red"}
GUESSES = 3
"""Known faults that are named of one example; several may give one and the same answer."""
RISE = 0.01
"""The rise of an acceptance probability whose power is told."""


def table(judged: Judged, level: float, style: Style) -> str:
    """The laws of one implementation, a line each."""
    rows = [("op", "law", "asked", "seen", "limit", "verdict")]
    for finding in judged.findings:
        rows.append((finding.op, finding.law, *_cells(finding, level), finding.status))
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        left = [f"{text:<{width}}" for text, width in zip(row[:2], widths, strict=False)]
        right = [f"{text:>{width}}" for text, width in zip(row[2:-1], widths[2:-1], strict=True)]
        verdict = style.paint(row[-1], "dim" if not number else _colour(judged.findings[number - 1]))
        lines.append("  ".join([*left, *right, verdict]))
        lines += [style.paint("─" * (sum(widths) + 2 * (len(widths) - 1)), "dim")] if not number else []
    return "\n".join([style.paint(judged.label, "bold"), *lines])


def _colour(finding: Finding) -> str:
    return "yellow" if finding.difference is not None else COLOURS[finding.status]


def _cells(finding: Finding, level: float) -> tuple[str, str, str]:
    """How much was asked, the worst that was seen, and what is called broken."""
    if finding.method == SAMPLING:
        least = min((test.p for test in finding.tests), default=1.0)
        return f"{finding.samples:,} draws", f"p {least:.1e}" if finding.tests else "–", f"p {level:.1e}"
    asked = f"{finding.questions:,} question{'' if finding.questions == 1 else 's'}"
    return asked, f"{finding.deviation:.1e}", f"{finding.limit:.1e}"


def level_of(run: LawRun) -> float:
    """The p-value that one test must stay above, where no other test of the run fails."""
    return FALSE_ALARM / max(len(run.tests), 1)


def failures(run: LawRun, style: Style, likely: LikelyFaults | None = None) -> str:
    """Each clause that is broken: the smallest law that shows it in full, the others in a line."""
    blocks = []
    for judged in run.judged:
        broken = sorted(
            (finding for finding in judged.findings if finding.status != HOLDS and finding.difference is None),
            key=lambda one: (one.status == UNANSWERED, one.clause, one.op, one.size),
        )
        if broken:
            blocks.append(
                style.paint(f"{judged.label}: {len(broken)} of {len(judged.findings)} laws do not hold", "bold")
            )
        for (clause, op, _), same in groupby(broken, key=lambda one: (one.clause, one.op, one.status)):
            first, *others = same
            blocks.append("\n".join(_told(judged, first, clause, style, likely)))
            lines = [f"    also       {op}, {other.law}: {other.reason}" for other in others]
            blocks += ["\n".join(style.clip(line) for line in lines)] if lines else []
    return "\n\n".join(blocks)


def _told(judged: Judged, finding: Finding, clause: str, style: Style, likely: LikelyFaults | None) -> Iterator[str]:
    body = load_clauses()[clause]
    yield from style.wrap(f"{clause}  ", body.statement, "red")
    indent = " " * (len(clause) + 2)
    yield from style.wrap(f"{indent}Without it: ", body.without, "dim")
    yield from style.wrap(f"{indent}Source: ", body.source, "dim")
    yield f"  {style.paint(f'{finding.op}, {finding.law}', 'bold')}"
    yield from style.wrap(f"    {finding.status:<10} ", finding.reason, "dim")
    if finding.method == BREAKPOINTS and finding.status == BROKEN and finding.op.startswith("law."):
        kept = "is plain decoding's" if finding.tokens <= finding.limit else f"is off by {finding.tokens:.3g}"
        count = "is right" if finding.accepted <= finding.limit else f"is off by {finding.accepted:.3g}"
        yield from style.wrap(
            "    so         ", f"the law of the tokens {kept}, that of the accepted count {count}", "dim"
        )
    example = finding.example
    for guess in _guesses(likely, example.wrong) if example is not None and likely is not None else ():
        yield from style.wrap("    looks like ", guess, "yellow")
    command = ["dflash-check-law", "--implementation", judged.spec, "--profile", judged.description.profile]
    command += ["--samples", str(finding.samples)] if finding.samples else []
    yield style.paint("    reproduce  ", "dim") + shlex.join([*command, "--op", finding.op])
    if example is not None:
        yield from _example_lines(finding, example, style)


def _guesses(likely: LikelyFaults, wrong: Sequence[tuple[GoldenCase, Answer]]) -> Sequence[str]:
    """The known faults that give all of the wrong answers. A guess that goes wrong is told, not the report lost."""
    try:
        found = [{guess.name: guess.text for guess in likely(case, answer)} for case, answer in wrong]
    except Exception as error:
        return (f"no guess: {type(error).__name__}: {error}",)
    common = set.intersection(*map(set, found)) if found else set()
    return [text for name, text in (found[0] if found else {}).items() if name in common][:GUESSES]


def _example_lines(finding: Finding, example: Example, style: Style) -> Iterator[str]:
    """One question and its answer, in ten lines at most, and the outcomes that are off most."""
    outcomes = example.outcomes
    for case, answer in example.wrong[:1]:
        yield style.paint("    the smallest failing example:", "dim")
        rows = [(f"in.{name}", tensor) for name, tensor in case.inputs.items()]
        rows += [(f"expected {item.label}", item.tensor) for item in case.expected]
        rows += [(f"got {name}", tensor) for name, tensor in answer.tensors.items()]
        width = max(len(name) for name, _ in rows)
        for name, tensor in rows:
            values = " ".join(digits(tensor.dtype, value) for value in tensor.values.reshape(-1))
            yield style.clip(f"      {name:<{width}}  {_kind(tensor):<12} {values}")
    if outcomes:
        found = "seen" if finding.method == SAMPLING else "measured"
        width = max(len(one.name) for one in outcomes)
        yield style.paint(f"      {'outcome':<{width}}  {'expected':>12}  {found:>12}", "dim")
        for one in outcomes:
            yield f"      {one.name:<{width}}  {one.expected:>12.9f}  {one.found:>12.9f}"


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def known(run: LawRun, style: Style) -> str:
    """The laws that do not hold and are known not to."""
    lines: list[str] = []
    for judged in run.judged:
        for finding in judged.findings:
            if finding.difference is not None:
                head = f"    {finding.clause:<10} {finding.difference.verdict:<10}  "
                lines += style.wrap(head, f"{finding.op}, {finding.law}: {finding.difference.why}", "dim")
    lines = [style.paint("known differences", "yellow"), *lines] if lines else []
    for mark, colour, texts in (("–   ", "dim", run.silent), ("!   ", "red", run.broken)):
        for text in texts:
            lines += style.wrap(mark, text, colour)
    return "\n".join(lines)


def powers(run: LawRun) -> dict[str, Any]:
    """What the tests of a run see, in numbers; empty where nothing was sampled."""
    level, found = level_of(run), [finding for finding in run.findings() if finding.tests]
    if not found:
        return {}
    seen: dict[str, float] = {}
    for finding in found:
        for test in finding.tests:
            key = "accepted" if test.name == "accepted" else "tokens" if test.name.startswith("token") else ""
            if key and test.samples == finding.samples and test.cells > 1:  # of what every round has
                step = statistics.detectable_variation(test.samples, test.cells, level)
                seen[key] = max(seen.get(key, 0.0), min(step, 1.0))
    rises = [
        statistics.binomial_power(test.samples, chance, chance + RISE, level)
        for finding in found
        for test in finding.tests
        if test.samples and (chance := finding.chances.get(test.name, 1.0)) <= 1 - RISE
    ]
    return {"level": level, "total_variation": seen, "acceptance_rise": RISE, "power": max(rises, default=0.0)}


def summary(run: LawRun, style: Style) -> str:
    """Which laws were measured and which were counted, and what deviation would have been seen."""
    lines: list[str] = []
    measured = [finding for finding in run.findings() if finding.method != SAMPLING and finding.status != UNANSWERED]
    if measured:
        limits = sorted(finding.limit for finding in measured)
        worst = max((finding.deviation for finding in measured if finding.status == HOLDS), default=0.0)
        text = (
            f"{len(measured)} laws of ops that take uniforms, from {sum(f.questions for f in measured):,} questions. "
            "Each place where an answer changes is known to one step of FP32 (6.0e-08 at most), so a probability is "
            "known to 1.2e-07 for each uniform that it rests on. Called broken is a deviation above "
            f"{limits[0]:.1e} to {limits[-1]:.1e}, by law, which FP32 roundings cannot reach. The largest seen where a "
            f"law holds is {worst:.1e}."
        )
        lines += style.wrap("measured  ", text, "bold")
    sampled = [finding for finding in run.findings() if finding.tests]
    if sampled:
        lines += style.wrap("sampled   ", _sampled(run, sampled), "bold")
    return "\n".join(lines)


def _sampled(run: LawRun, sampled: Sequence[Finding]) -> str:
    told, methods = powers(run), Counter(test.method for test in run.tests)
    used = ", ".join(f"{count} {method}" for method, count in methods.items())
    sizes = sorted({finding.samples for finding in sampled})
    text = (
        f"{len(sampled)} laws of ops with randomness of their own, {' or '.join(f'{size:,}' for size in sizes)} draws "
        f"each, {len(run.tests)} tests ({used}): exact where there are two outcomes or few samples. A right "
        f"implementation fails one run in {round(1 / FALSE_ALARM):,} at most (Holm)."
    )
    seen = [
        f"a total variation of {value:.4f} in {'a token' if key == 'tokens' else 'the accepted count'}"
        for key, value in told["total_variation"].items()
        if value < 1
    ]
    if seen:
        text += f" Seen with a probability of {POWER:.0%}: {', '.join(seen)}, whatever its direction."
    if told["power"]:
        text += f" An acceptance that is {RISE:g} too high would be seen with a probability of {told['power']:.5f}."
    return text


def closing(run: LawRun, seconds: float, style: Style) -> str:
    """The verdict in a line."""
    status = Counter(finding.status for finding in run.findings())
    explained = sum(finding.difference is not None for finding in run.findings())
    facts = f"{status[HOLDS]} laws hold, {status[BROKEN]} broken"
    facts += f", {status[UNANSWERED]} without an answer" if status[UNANSWERED] else ""
    facts += f" ({explained} known differences)" if explained else ""
    word, colour = {
        EXIT_PASSED: ("HOLDS", "green"),
        EXIT_FAILED: ("BROKEN", "red"),
        EXIT_INTERRUPTED: ("INTERRUPTED", "yellow"),
    }.get(run.exit_code, ("UNUSABLE", "red"))
    return f"{style.paint(word, colour)}  {facts}, {seconds:.1f} s"


def machine_form(run: LawRun) -> dict[str, Any]:
    """The run as one JSON object."""
    level = level_of(run)
    return {
        "format": 1,
        "implementations": [
            {
                "implementation": judged.spec, "name": judged.description.name, "version": judged.description.version,
                "profile": judged.description.profile, "laws": [_record(finding, level) for finding in judged.findings],
            }
            for judged in run.judged
        ],
        "holds": sum(finding.status == HOLDS for finding in run.findings()),
        "broken": sum(finding.status == BROKEN for finding in run.findings()),
        "no_answer": sum(finding.status == UNANSWERED for finding in run.findings()),
        "known_differences": sum(finding.difference is not None for finding in run.findings()),
        "false_alarm": FALSE_ALARM,
        "sampling": powers(run),
        "could_not_run": run.broken,
        "does_not_speak": run.silent,
        "interrupted": run.interrupted,
        "exit_code": run.exit_code,
    }  # fmt: skip


def _record(finding: Finding, level: float) -> dict[str, Any]:
    record: dict[str, Any] = {
        "op": finding.op, "law": finding.law, "method": finding.method, "status": finding.status,
        "clause": finding.clause,
    }  # fmt: skip
    if finding.reason:
        record["reason"] = finding.reason
    if finding.method == SAMPLING:
        record |= {"samples": finding.samples, "level": level}
        record["tests"] = [
            {"name": t.name, "method": t.method, "samples": t.samples, "outcomes": t.cells, "p": t.p}
            for t in finding.tests
        ]
    else:
        record |= {
            "questions": finding.questions, "deviation": finding.deviation, "limit": finding.limit,
            "tokens": finding.tokens, "accepted": finding.accepted,
        }  # fmt: skip
    if finding.example is not None:
        record["outcomes"] = [
            {"outcome": one.name, "expected": one.expected, "found": one.found} for one in finding.example.outcomes
        ]
    if finding.difference is not None:
        record["known_difference"] = {"verdict": finding.difference.verdict, "why": finding.difference.why}
    return record
