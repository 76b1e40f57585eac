"""A run for people: the table, the known differences, and each failure with what to do next."""

from __future__ import annotations

import os
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TextIO

from dflash_spec.registry import ROOT, load_clauses, read_yaml
from dflash_spec.tensors import FLOATS, Tensor

from dflash_vectors.cases import GoldenCase, Loader, load_case
from dflash_vectors.runners.protocol import Answer
from dflash_vectors.verdict import (
    DAMAGED,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PASSED,
    FAILED,
    PASSED,
    UNSUPPORTED,
    Column,
    Divergence,
    Element,
    Result,
    Run,
)  # fmt: skip

LikelyFaults = Callable[[GoldenCase, Answer], Sequence[str]]

CHAPTERS = ("NUM", "RNG", "CFG", "TAP", "CTX", "BLK", "MASK", "DRAFT", "HEAD", "PROC", "LAW", "COMMIT", "STOP", "TGT")
NARROWEST, WIDEST = 80, 120
IN_FULL = 3  # failed vectors of one clause that are told in full; the others take a line each
DUMP_LINES = 10
CODES = {"red": "31;1", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}


@dataclass(frozen=True)
class Style:
    """How wide to write, and whether in colour."""

    width: int = 100
    colour: bool = False

    @staticmethod
    def of(stream: TextIO) -> Style:
        """Colour on a terminal only, and never where NO_COLOR is set or the terminal is dumb."""
        if not stream.isatty():
            return Style()
        width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
        return Style(width, not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if self.colour and colour else text

    def wrap(self, head: str, text: str, colour: str = "") -> Iterator[str]:
        """`text` after `head`, the lines after the first indented to the head's width."""
        lines = textwrap.wrap(text, self.width - len(head), break_long_words=False, break_on_hyphens=False) or [""]
        yield self.paint(head, colour) + lines[0]
        for line in lines[1:]:
            yield " " * len(head) + line


@dataclass(frozen=True)
class Cell:
    text: str
    colour: str = ""


@cache
def chapter_title(chapter: str) -> str:
    path = ROOT / "clauses" / f"{chapter.lower()}.yaml"
    return str(read_yaml(path)["title"]) if path.is_file() else ""


def _chapters(run: Run) -> list[str]:
    found = {entry.chapter for entry in run.entries}
    return sorted(found, key=lambda c: (CHAPTERS.index(c) if c in CHAPTERS else len(CHAPTERS), c))


@dataclass
class Notes:
    """Numbered known differences: one number per implementation, chapter and record."""

    lines: list[tuple[Column, str, Result]] = field(default_factory=list)

    def marks(self, column: Column, chapter: str) -> str:
        numbers = [
            number for number, (owner, place, _) in enumerate(self.lines, 1) if owner is column and place == chapter
        ]
        return f" [{','.join(map(str, numbers))}]" if numbers else ""

    @staticmethod
    def of(run: Run) -> Notes:
        notes, seen = Notes(), set()
        for column in run.columns:
            for chapter in _chapters(run):
                for result in column.of(FAILED, chapter=chapter):
                    key = (id(column), chapter, result.difference)
                    if result.difference is not None and key not in seen:
                        seen.add(key)
                        notes.lines.append((column, chapter, result))
        return notes


def _cell(column: Column, chapter: str | None, notes: Notes) -> Cell:
    """`12`: all that ran passed. `3/12 FAILED`: three of twelve failed. `–`: none is supported. `·`: not reached."""
    ran, failed = column.of(PASSED, FAILED, chapter=chapter), column.of(FAILED, chapter=chapter)
    damaged = len(column.of(DAMAGED, chapter=chapter))
    if failed:
        mark = notes.marks(column, chapter) if chapter else ""
        colour = "red" if any(result.unexplained for result in failed) else "yellow"
        return Cell(f"{len(failed)}/{len(ran)} FAILED{mark}", colour)
    if damaged:
        return Cell(f"{damaged} DAMAGED", "red")
    if ran:
        return Cell(str(len(ran)), "green")
    return Cell("–" if column.of(UNSUPPORTED, chapter=chapter) else "·", "dim")


def table(run: Run, style: Style) -> str:
    """Chapters down, implementations across; as many tables side by side as the width asks for."""
    notes, chapters = Notes.of(run), _chapters(run)
    profiles = sorted({entry.profile.name for entry in run.entries})
    left = [[Cell("", ""), Cell("", ""), Cell("chapter", "dim")]]
    left[0] += [Cell(f"{chapter:<7} {chapter_title(chapter)}") for chapter in chapters] + [Cell("all", "bold")]
    for profile in profiles:
        own = [entry for entry in run.entries if entry.profile.name == profile]
        counts = [sum(entry.chapter == chapter for entry in own) for chapter in chapters]
        head = [Cell("vectors", "dim"), Cell("in the set", "dim"), Cell(profile, "dim")]
        left.append(head + [Cell(str(count or "–"), "dim") for count in (*counts, len(own))])
    right = []
    for column in run.columns:
        d = column.description
        head = [Cell(d.name, "bold"), Cell(f"({d.note})" if d.note else d.version, "dim"), Cell(d.profile, "dim")]
        right.append(head + [_cell(column, chapter, notes) for chapter in chapters] + [_cell(column, None, notes)])
    return "\n\n".join(_grid([*left, *some], style) for some in _fitting(left, right, style.width))


def _width(column: list[Cell]) -> int:
    return max(len(cell.text) for cell in column)


def _fitting(left: list[list[Cell]], right: list[list[Cell]], width: int) -> Iterator[list[list[Cell]]]:
    """The right columns in groups that fit beside the left ones."""
    room = width - sum(_width(column) + 3 for column in left)
    group: list[list[Cell]] = []
    for column in right:
        if group and sum(_width(c) + 3 for c in [*group, column]) > room:
            yield group
            group = []
        group.append(column)
    yield group


def _grid(columns: list[list[Cell]], style: Style) -> str:
    widths = [_width(column) for column in columns]
    rule = style.paint("─" * (sum(widths) + 3 * (len(widths) - 1)), "dim")
    lines = []
    for number, row in enumerate(zip(*columns, strict=True)):
        cells = [
            style.paint(cell.text, cell.colour) + " " * (width - len(cell.text))
            if place == 0
            else " " * (width - len(cell.text)) + style.paint(cell.text, cell.colour)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("   ".join(cells).rstrip())
        if number in (2, len(columns[0]) - 2):
            lines.append(rule)
    return "\n".join(lines)


def remarks(run: Run, style: Style) -> str:
    """One line per known difference, and what else a reader of the table must know."""
    lines: list[str] = []
    for number, (column, chapter, result) in enumerate(Notes.of(run).lines, 1):
        difference = result.difference
        assert difference is not None
        same = [r for r in column.of(FAILED, chapter=chapter) if r.difference == difference]
        count = f"{len(same)} vector{'s' if len(same) > 1 else ''}"
        text = f"{column.label}, {result.clause}, {count}, {difference.verdict}: {difference.why}"
        lines += style.wrap(f"[{number}] ", text, "yellow")
    for text in run.silent:
        lines += style.wrap("–   ", text, "dim")
    for text in run.stale:
        lines += style.wrap("!   ", text, "yellow")
    for text in run.broken:
        lines += style.wrap("!   ", text, "red")
    for text in run.damaged.values():
        lines += style.wrap("!   ", f"damaged vector: {text}", "red")
    return "\n".join(lines)


def failures(run: Run, style: Style, likely: LikelyFaults | None = None, load: Loader = load_case) -> str:
    """Every failure that no record explains, by implementation and by the clause that is blamed first."""
    blocks = []
    for column in run.columns:
        failed = [result for result in column.results if result.unexplained]
        if not failed:
            continue
        ran = len(column.of(PASSED, FAILED))
        blocks.append(style.paint(f"{column.label}: {len(failed)} of {ran} vectors failed", "bold"))
        for clause in dict.fromkeys(result.clause for result in failed):
            own = sorted((r for r in failed if r.clause == clause), key=lambda r: (r.entry.size, r.entry.id))
            blocks.append("\n".join(_clause_lines(clause, style)))
            for result in own[:IN_FULL]:
                blocks.append(failure(column, result, run.folder, style, likely, load))
            rest = "\n".join(f"  also     {_one_line(result)}"[: style.width] for result in own[IN_FULL:])
            blocks += [rest] if rest else []
            blocks.append(_smallest(own[0], style, load))
    return "\n\n".join(blocks)


def _clause_lines(clause: str, style: Style) -> Iterator[str]:
    body = load_clauses()[clause]
    yield from style.wrap(f"{clause}  ", body.statement, "red")
    indent = " " * (len(clause) + 2)
    yield from style.wrap(f"{indent}Without it: ", body.without, "dim")
    yield from style.wrap(f"{indent}Source: ", body.source, "dim")


def failure(
    column: Column, result: Result, folder: str, style: Style,
    likely: LikelyFaults | None = None, load: Loader = load_case,
) -> str:  # fmt: skip
    """One failed vector: what diverges first, by how much, what it looks like, and how to see it again."""
    case = load(result.entry)
    lines = [f"  {style.paint(result.entry.id, 'bold')}  op {result.entry.op.name}"]
    effect = f" (effect: {case.metadata['effect']})" if case.metadata.get("effect") else ""
    if case.metadata.get("catches"):
        lines += style.wrap("    catches    ", f"{case.metadata['catches']}{effect}", "dim")
    if result.reason:
        lines += style.wrap("    no answer  ", result.reason, "dim")
    for number, divergence in enumerate(result.divergences[:IN_FULL]):
        lines += _divergence_lines(divergence, number == 0, style)
    if len(result.divergences) > IN_FULL:
        lines.append(f"    …          and {len(result.divergences) - IN_FULL} tensors more")
    guesses = likely(case, result.answer) if likely is not None and result.answer is not None else ()
    for guess in guesses:
        lines += style.wrap("    looks like ", guess, "yellow")
    command = ["dflash-check-vectors", "--implementation", column.spec, "--vectors", folder, "--id", result.entry.id]
    lines.append(style.paint("    reproduce  ", "dim") + shlex.join(command))
    return "\n".join(lines)


def _divergence_lines(divergence: Divergence, first: bool, style: Style) -> Iterator[str]:
    head = "    diverges   " if first else "    then       "
    if divergence.problem:
        yield from style.wrap(head, f"{divergence.label}: {divergence.problem}", "dim")
        return
    assert divergence.first is not None
    assert divergence.worst is not None
    count = f"{divergence.differing} of {divergence.total} wrong"
    if not first:
        yield from style.wrap(head, f"{divergence.label}{list(divergence.first.index)}, {count}", "dim")
        return
    yield style.paint(head, "dim") + f"first at {divergence.label}{list(divergence.first.index)}, {count}"
    yield from _element_lines(divergence.first)
    if divergence.worst.index != divergence.first.index:
        yield style.paint("    worst      ", "dim") + f"at {divergence.label}{list(divergence.worst.index)}"
        yield from _element_lines(divergence.worst)


def _element_lines(element: Element) -> Iterator[str]:
    indent = " " * 15
    yield f"{indent}expected {element.expected}"
    yield f"{indent}got      {element.got}"
    distances = []
    if element.ulps is not None:
        distances.append(f"{element.ulps} ulp{'' if element.ulps == 1 else 's'}")
    if element.bounds is not None:
        distances.append(f"{element.bounds:.3g} bounds (one is {element.bound:.3g})")
    if distances:
        yield f"{indent}distance {', '.join(distances)}"


def _one_line(result: Result) -> str:
    if result.reason:
        return f"{result.entry.id}: {result.reason}"
    first = result.divergences[0]
    if first.first is None:
        return f"{result.entry.id}: {first.label}: {first.problem}"
    where = f"{first.label}{list(first.first.index)}"
    return f"{result.entry.id}: {where} expected {first.first.expected}, got {first.first.got}"


def _smallest(result: Result, style: Style, load: Loader) -> str:
    """The vector in at most ten lines: inputs, and the tensor that diverges first as expected and as got."""
    case = load(result.entry)
    rows = [(f"in.{name}", tensor) for name, tensor in case.inputs.items()]
    label = result.divergences[0].label if result.divergences else ""
    shown = [(f"expected {e.label}", e.tensor) for e in case.expected if label in ("", e.label)]
    got = result.answer.tensors.get(label) if result.answer is not None else None
    shown += [(f"got {label}", got)] if got is not None else []
    room = DUMP_LINES - 1 - len(shown)
    hidden = len(rows) - room + 1 if len(rows) > room else 0
    lines = [style.paint(f"  Smallest failing vector of {result.clause}: {case.entry.id}", "dim")]
    lines += _rows(rows[: len(rows) - hidden] + ([] if hidden else shown), style)
    if hidden:
        lines.append(f"    … and {hidden} inputs more")
        lines += _rows(shown, style)
    return "\n".join(lines[:DUMP_LINES])


def _rows(rows: Iterable[tuple[str, Tensor]], style: Style) -> Iterator[str]:
    rows = list(rows)
    names = max((len(name) for name, _ in rows), default=0)
    for name, tensor in rows:
        head = f"    {name:<{names}}  {tensor.dtype:<4} {list(tensor.shape)!s:<12} "
        yield head + _values(tensor, style.width - len(head))


def _values(tensor: Tensor, room: int) -> str:
    """As many values in row-major order as fit."""
    text, flat = "", tensor.values.reshape(-1)
    for value in flat[:room]:
        word = f"{float(value):.6g}" if tensor.dtype in FLOATS else str(int(value))
        if len(text) + len(word) + 2 > room:
            return text + "…"
        text += f"{word} "
    return text.rstrip()


def closing(run: Run, seconds: float, style: Style) -> str:
    """The verdict in a line."""
    passed, failed = run.count(PASSED), run.count(FAILED)
    known = sum(result.status == FAILED and not result.unexplained for result in run.results())
    facts = f"{passed} passed, {failed} failed"
    facts += f" ({known} of them known differences)" if known else ""
    facts += f", {run.count(UNSUPPORTED)} not supported, {seconds:.1f} s"
    word, colour = {
        EXIT_PASSED: ("PASSED", "green"),
        EXIT_FAILED: ("FAILED", "red"),
        EXIT_INTERRUPTED: ("INTERRUPTED", "yellow"),
    }.get(run.exit_code, ("UNUSABLE", "red"))
    if run.exit_code == EXIT_INTERRUPTED:
        facts += ": the verdicts above are those gathered until then"
    return f"{style.paint(word, colour)}  {facts}"
