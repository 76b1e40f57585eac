"""A replay for people, and for machines: the first bug in full, the near ties, and how near everything else came."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dflash_vectors.replay import picture
from dflash_vectors.replay.findings import BUG, PREFILL_ROUND, Finding, Report
from dflash_vectors.report import clause_lines, divergence_lines
from dflash_vectors.style import Style, printable
from dflash_vectors.verdict import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PASSED, EXIT_UNUSABLE, divergence_record

TIES_TOLD = 5


def exit_code(report: Report) -> int:
    """0 without a bug, 1 with one, 2 where nothing was judged, 130 where the replay was interrupted."""
    if report.bug is not None:
        return EXIT_FAILED
    if report.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_PASSED if report.judged or (report.complete and not len(report.trace)) else EXIT_UNUSABLE


def where(number: int) -> str:
    """A round by its number."""
    return "prefill" if number == PREFILL_ROUND else f"round {number}"


def text(report: Report, style: Style, command: str) -> str:
    """The whole report. `command` is what judges a round again, once its number is added."""
    blocks = [_head(report, style), *_picture(report, style), _stages(report, style)]
    if report.ties:
        blocks.append("\n".join(_tie_lines(report.ties, style)))
    if report.bug is not None:
        blocks.append("\n".join(_bug_lines(report, report.bug, style, command)))
    if report.notes:
        blocks.append("\n".join(line for note in report.notes for line in style.wrap("note  ", note, "yellow")))
    return "\n\n".join([block for block in blocks if block] + [closing(report, style)]) + "\n"


def _head(report: Report, style: Style) -> str:
    asked = report.trace.configuration
    kind = "DFlash2" if asked.second else "DFlash"
    how = f"temperature {asked.temperature:g}, {asked.draws} draws" if asked.temperature > 0 else "greedy"
    title = f"{printable(asked.name)} {printable(asked.version)} ({asked.profile}), {kind}, K = {asked.drafts}, {how}"
    length = f"{len(report.trace)} rounds after a prompt of {len(asked.prompt)} tokens"
    return f"{style.paint(title, 'bold')}\n{length}, recorded in {printable(report.trace.folder)}"


def _picture(report: Report, style: Style) -> Iterator[str]:
    if report.accepted:
        yield "\n".join(picture.lines(report, style))


def _stages(report: Report, style: Style) -> str:
    if not report.furthest:
        return ""
    rows = [style.paint(f"{'stage':<18}{'compared':>9}   furthest off, in bounds", "dim")]
    for name in [name for name in report.trace.configuration.stages if name in report.furthest]:
        count, bounds = report.furthest[name]
        far = "beyond all bounds" if math.isinf(bounds) else f"{bounds:.3g}"
        rows.append(f"{name:<18}{count:>9}   {style.paint(far, 'red' if bounds > 1 else '')}")
    return "\n".join(rows)


def _tie_lines(ties: Sequence[Finding], style: Style) -> Iterator[str]:
    for finding in ties[:TIES_TOLD]:
        yield from style.wrap("near tie  ", f"{where(finding.round)}, {finding.place}: {finding.problem}", "yellow")
    if len(ties) > TIES_TOLD:
        yield f"          and {len(ties) - TIES_TOLD} more"


def _bug_lines(report: Report, bug: Finding, style: Style, command: str) -> Iterator[str]:
    yield style.paint(f"first bug: {where(bug.round)}, {bug.place}", "red")
    yield from clause_lines(bug.clause, style)
    if bug.problem:
        yield from style.wrap("    found      ", bug.problem, "dim")
    if bug.divergence is not None:
        yield from divergence_lines(bug.divergence, True, style)
    if bug.tie is not None and math.isfinite(bug.tie.gap):
        yield from style.wrap("    verdict    ", _reason(bug), "dim")
    for guess in bug.guesses:
        clauses = ", ".join(guess.clauses)
        yield from style.wrap("    looks like ", f"{guess.name} ({clauses}): {guess.story}", "yellow")
    before = f"all {bug.round} rounds before it" if bug.round > 0 else "nothing before it"
    if bug.round > 0 and report.judged <= bug.round:
        before = f"{max(0, report.judged - 1)} of the {bug.round} rounds before it"
    yield from style.wrap("    agrees     ", f"{before}, and what comes before {bug.place} in this one", "dim")
    if bug.round >= 0:
        yield style.paint("    reproduce  ", "dim") + f"{command} --round {bug.round}"


def _reason(bug: Finding) -> str:
    tie = bug.tie
    assert tie is not None
    if tie.doubt < 0:
        return "a bug: the numbers that decide are the trace's own, and they do not choose this"
    return f"a bug, not a near tie: the gap of {tie.gap:.4g} is more than the {tie.doubt:.4g} that roundings can make"


def closing(report: Report, style: Style) -> str:
    """The verdict in a line."""
    code = exit_code(report)
    word, colour = {
        EXIT_PASSED: ("PASSED", "green"), EXIT_FAILED: ("FAILED", "red"), EXIT_INTERRUPTED: ("INTERRUPTED", "yellow"),
    }.get(code, ("UNUSABLE", "red"))  # fmt: skip
    ties = f"{len(report.ties)} near tie{'' if len(report.ties) == 1 else 's'}"
    facts = f"{report.judged} of {len(report.trace)} rounds judged, {ties}"
    if report.bug is not None:
        facts += f", first bug in {where(report.bug.round)} at {report.bug.place} [{report.bug.clause}]"
    elif code == EXIT_UNUSABLE:
        facts += ": nothing to judge"
    return f"{style.paint(word, colour)}  {facts}"


def machine_form(report: Report) -> dict[str, Any]:
    """The report as one JSON object. Numbers that JSON has no word for are strings."""
    asked = report.trace.configuration
    return {
        "format": 1,
        "trace": str(report.trace.folder),
        "name": asked.name,
        "version": asked.version,
        "profile": asked.profile,
        "rounds": len(report.trace),
        "judged": report.judged,
        "accepted": report.accepted,
        "stages": {
            name: {"compared": count, "furthest_in_bounds": _number(bounds)}
            for name, (count, bounds) in report.furthest.items()
        },
        "near_ties": [finding_record(finding) for finding in report.ties],
        "first_bug": None if report.bug is None else finding_record(report.bug),
        "notes": report.notes,
        "interrupted": report.interrupted,
        "exit_code": exit_code(report),
    }


def finding_record(finding: Finding) -> dict[str, Any]:
    """A finding as JSON holds it; the prefill is round -1."""
    record: dict[str, Any] = {
        "round": finding.round, "place": finding.place, "clause": finding.clause, "verdict": finding.verdict,
    }  # fmt: skip
    if finding.problem:
        record["problem"] = finding.problem
    if finding.divergence is not None:
        record["divergence"] = divergence_record(finding.divergence)
        if finding.divergence.first is not None:
            record["row"] = finding.divergence.first.index[0]
    if finding.tie is not None:
        row, expected, got, gap, doubt = finding.tie
        record |= {"row": row, "expected": expected, "got": got, "gap": _number(gap), "doubt": _number(max(doubt, 0.0))}
    if finding.verdict == BUG and finding.guesses:
        record["looks_like"] = [
            {"name": guess.name, "clauses": list(guess.clauses), "story": guess.story} for guess in finding.guesses
        ]
    return record


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
