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

from dflash_spec.registry import PROFILES, ROOT, load_clauses, read_yaml
from dflash_spec.tensors import Tensor

from dflash_vectors.cases import GoldenCase, Loader, default_folder, load_case
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
    digits,
)  # fmt: skip

LikelyFaults = Callable[[GoldenCase, Answer], Sequence[str]]

CHAPTERS = ("NUM", "RNG", "CFG", "TAP", "CTX", "BLK", "MASK", "DRAFT", "HEAD", "PROC", "LAW", "COMMIT", "STOP", "TGT")
NARROWEST, WIDEST = 80, 120
IN_FULL = 3  # diverging tensors of a vector that are told; the others are counted
MANY = 3  # vectors that fail for one and the same reason are told together from here on
DUMP_LINES = 10
GAP = 3
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

    def clip(self, line: str) -> str:
        return line if len(line) <= self.width else line[: self.width - 1] + "…"

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


def _chapters(run: Run, profile: str | None = None) -> list[str]:
    found = {entry.chapter for entry in run.entries if profile in (None, entry.profile.name)}
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


def _cell(column: Column | None, chapter: str | None, notes: Notes) -> Cell:
    """`12`: all that ran passed. `3/12 FAILED`: three of twelve failed. `–`: not supported. `·`: not reached."""
    if column is None:
        return Cell("–", "dim")
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
    """Chapters down, a block of rows for each profile; implementations across.

    The chapters' titles are left out where they do not fit; what still does not fit goes to a second table.
    """
    profiles = [name for name in PROFILES if any(entry.profile.name == name for entry in run.entries)]
    rows = [(profile, chapter) for profile in profiles for chapter in (*_chapters(run, profile), None)]
    right = [_implementation(run, spec, rows) for spec in dict.fromkeys(column.spec for column in run.columns)]
    for titles in (True, False):
        left = _left(run, rows, titles)
        groups = list(_fitting(left, right, style.width))
        if len(groups) == 1:
            break
    rules = [1, *(number + 2 for number, (_, chapter) in enumerate(rows) if chapter is None)]
    return "\n\n".join(_grid([*left, *group], rules[:-1], style) for group in groups)


Row = tuple[str, str | None]
"""Profile and chapter of a row of the table; no chapter for the row of sums."""


def _left(run: Run, rows: list[Row], titles: bool) -> list[list[Cell]]:
    """The columns that name the rows, and how many vectors the set has for each."""
    names, seen = [Cell(""), Cell("profile", "dim")], [Cell(""), Cell("chapter", "dim")]
    counts = [Cell("", "dim"), Cell("vectors", "dim")]
    previous = ""
    for profile, chapter in rows:
        own = [e for e in run.entries if e.profile.name == profile and chapter in (None, e.chapter)]
        names.append(Cell("" if profile == previous else profile, "bold"))
        title = f"{chapter:<7} {chapter_title(chapter)}" if chapter and titles else chapter
        seen.append(Cell((title or "").rstrip()) if chapter else Cell("all", "dim"))
        counts.append(Cell(str(len(own)), "dim"))
        previous = profile
    return [names, seen, counts]


def _implementation(run: Run, spec: str, rows: list[Row]) -> list[Cell]:
    columns = {column.description.profile: column for column in run.columns if column.spec == spec}
    description = next(iter(columns.values())).description
    notes = Notes.of(run)
    head = [Cell(description.name, "bold"), Cell(f"({description.note})" if description.note else description.version)]
    return head + [_cell(columns.get(profile), chapter, notes) for profile, chapter in rows]


def _width(column: list[Cell]) -> int:
    return max(len(cell.text) for cell in column)


def _fitting(left: list[list[Cell]], right: list[list[Cell]], width: int) -> Iterator[list[list[Cell]]]:
    """The right columns in groups that fit beside the left ones."""
    room = width - sum(_width(column) + GAP for column in left) + GAP
    group: list[list[Cell]] = []
    for column in right:
        if group and sum(_width(c) + GAP for c in [*group, column]) > room:
            yield group
            group = []
        group.append(column)
    yield group


def _grid(columns: list[list[Cell]], rules: list[int], style: Style) -> str:
    """Cells as text: the first two columns to the left, the others to the right, a rule after each row of `rules`."""
    widths = [_width(column) for column in columns]
    rule = style.paint("─" * (sum(widths) + GAP * (len(widths) - 1)), "dim")
    lines = []
    for number, row in enumerate(zip(*columns, strict=True)):
        cells = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space, text = " " * (width - len(cell.text)), style.paint(cell.text, cell.colour)
            cells.append(text + space if place < 2 else space + text)
        lines.append((" " * GAP).join(cells).rstrip())
        lines += [rule] if number in rules else []
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
    """Every failure that no record explains: by implementation, by the clause that is blamed first, and by op.

    Of each such group the smallest vector is told in full and the others take a line each.
    """
    blocks = []
    for column in run.columns:
        failed = [result for result in column.results if result.unexplained]
        if not failed:
            continue
        ran = len(column.of(PASSED, FAILED))
        blocks.append(style.paint(f"{column.label}: {len(failed)} of {ran} vectors failed", "bold"))
        unanswered = [same for same in _by_reason(failed) if len(same) >= MANY]
        blocks += ["\n".join(_unanswered_lines(column, same, run.folder, style)) for same in unanswered]
        told = {result.entry.id for same in unanswered for result in same}
        groups: dict[tuple[str, str], list[Result]] = {}
        for result in sorted(failed, key=lambda r: (r.entry.size, r.entry.id)):
            if result.entry.id not in told:
                groups.setdefault((result.clause, result.entry.op.name), []).append(result)
        for clause, op in sorted(groups, key=_in_order_of_the_round):
            first, *others = groups[clause, op]
            blocks.append("\n".join(_clause_lines(clause, style)))
            blocks.append(failure(column, first, run.folder, style, likely, load))
            if others:
                blocks.append("\n".join(style.clip(f"    also       {_one_line(other)}") for other in others))
    return "\n\n".join(blocks)


def _in_order_of_the_round(group: tuple[str, str]) -> tuple[int, str, str]:
    """What comes first in a round comes first in the report: it may be the cause of the rest."""
    chapter = group[0].partition("-")[0]
    return (CHAPTERS.index(chapter) if chapter in CHAPTERS else len(CHAPTERS), *group)


def _by_reason(failed: list[Result]) -> list[list[Result]]:
    """Failures without an answer, together where only the vector's id tells their reasons apart."""
    groups: dict[str, list[Result]] = {}
    for result in failed:
        if result.reason:
            groups.setdefault(result.reason.replace(result.entry.id, "<id>"), []).append(result)
    return list(groups.values())


def _unanswered_lines(column: Column, same: list[Result], folder: str, style: Style) -> Iterator[str]:
    first = same[0]
    yield from style.wrap(
        "  ", f"{len(same)} vectors without an answer: {first.reason.replace(first.entry.id, '<id>')}"
    )
    clauses = dict.fromkeys(result.clause for result in same)
    yield from style.wrap("    unproved   ", ", ".join(clauses), "dim")
    yield from style.wrap("    vectors    ", ", ".join(result.entry.id for result in same), "dim")
    yield style.paint("    reproduce  ", "dim") + _command(column, first, folder)


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
    answer = result.answer
    stages = [item.label for item in case.expected if item.role == "stages"]
    if answer is not None and stages and not any(label in answer.tensors for label in stages):
        lines += style.wrap("    hint       ", f"answer {', '.join(stages)} too, to see where it begins", "dim")
    for guess in likely(case, answer) if likely is not None and answer is not None else ():
        lines += style.wrap("    looks like ", guess, "yellow")
    lines.append(style.paint("    reproduce  ", "dim") + _command(column, result, folder))
    return "\n".join([*lines, *_contents(case, result, style)])


def _command(column: Column, result: Result, folder: str) -> str:
    words = ["dflash-check-vectors", "--implementation", column.spec]
    words += [] if folder == str(default_folder()) else ["--vectors", folder]
    return shlex.join([*words, "--id", result.entry.id])


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


def _contents(case: GoldenCase, result: Result, style: Style) -> Iterator[str]:
    """The vector in at most ten lines: inputs, and the tensor that diverges first as expected and as got."""
    rows = [(f"in.{name}", tensor) for name, tensor in case.inputs.items()]
    label = result.divergences[0].label if result.divergences else ""
    shown = [(f"expected {e.label}", e.tensor) for e in case.expected if e.label == label]
    got = result.answer.tensors.get(label) if result.answer is not None else None
    shown += [(f"got {label}", got)] if got is not None else []
    room = DUMP_LINES - 1 - len(shown)
    hidden = len(rows) - room + 1 if len(rows) > room else 0
    yield style.paint(f"    the smallest failing vector of {result.clause}:", "dim")
    yield from _rows([*rows[: len(rows) - hidden], *shown], style)
    if hidden:
        yield f"      … and {hidden} inputs more"


def _rows(rows: Iterable[tuple[str, Tensor]], style: Style) -> Iterator[str]:
    rows = list(rows)
    names = max((len(name) for name, _ in rows), default=0)
    for name, tensor in rows:
        head = f"      {name:<{names}}  {tensor.dtype:<4} {list(tensor.shape)!s:<12} "
        yield head + _values(tensor, style.width - len(head))


def _values(tensor: Tensor, room: int) -> str:
    """As many values in row-major order as fit."""
    text, flat = "", tensor.values.reshape(-1)
    for value in flat[:room]:
        word = digits(tensor.dtype, value)
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
