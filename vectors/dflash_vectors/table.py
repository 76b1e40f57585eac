"""A run at a glance: the table of implementations and chapters, the known differences, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from dflash_spec.registry import ALL_PROFILES, ROOT, read_yaml

from dflash_vectors.style import Style
from dflash_vectors.verdict import (
    DAMAGED,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PASSED,
    FAILED,
    PASSED,
    UNSUPPORTED,
    Column,
    Result,
    Run,
)  # fmt: skip

CHAPTERS = ("NUM", "RNG", "CFG", "TAP", "CTX", "BLK", "MASK", "DRAFT", "HEAD", "PROC", "LAW", "COMMIT", "STOP", "TGT")
"""In the order of a round, so that what may be a cause stands before what may be its effect."""
GAP = 3


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


def _known(column: Column, chapter: str) -> list[Result]:
    return [result for result in column.of(FAILED, chapter=chapter) if result.difference is not None]


def _noted(run: Run) -> list[tuple[Column, str]]:
    """The cells with known differences, in the order of their numbers."""
    return [(column, chapter) for column in run.columns for chapter in _chapters(run) if _known(column, chapter)]


def _cell(run: Run, column: Column | None, chapter: str | None) -> Cell:
    """`12`: all that ran passed. `3/12 FAILED`: three of twelve failed. `–`: not supported. `·`: not reached."""
    if column is None:
        return Cell("–", "dim")
    ran, failed = column.of(PASSED, FAILED, chapter=chapter), column.of(FAILED, chapter=chapter)
    damaged = len(column.of(DAMAGED, chapter=chapter))
    if failed:
        noted = [cell[0] is column and cell[1] == chapter for cell in _noted(run)]
        mark = f" [{noted.index(True) + 1}]" if True in noted else ""
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
    profiles = [name for name in ALL_PROFILES if any(entry.profile.name == name for entry in run.entries)]
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
    head = [Cell(description.name, "bold"), Cell(f"({description.note})" if description.note else description.version)]
    return head + [_cell(run, columns.get(profile), chapter) for profile, chapter in rows]


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
    """The known differences of each cell that has some, and what else a reader of the table must know."""
    blocks = []
    for number, (column, chapter) in enumerate(_noted(run), 1):
        known = _known(column, chapter)
        head = f"[{number}] {column.label}, {chapter}: {len(known)} known difference{'s' if len(known) > 1 else ''}"
        blocks.append("\n".join([style.paint(head, "yellow"), *_difference_lines(known, style)]))
    lines: list[str] = []
    for mark, colour, texts in (
        ("–   ", "dim", run.silent),
        ("!   ", "yellow", run.stale),
        ("!   ", "red", run.broken),
        ("!   ", "red", [f"damaged vector: {reason}" for reason in run.damaged.values()]),
    ):
        for text in texts:
            lines += style.wrap(mark, text, colour)
    return "\n\n".join([*blocks, "\n".join(lines)] if lines else blocks)


def _difference_lines(known: list[Result], style: Style) -> Iterator[str]:
    """One line per clause and reason: how many vectors, whether the peer may differ, and why it does."""
    groups: dict[tuple[str, str, str], int] = {}
    for result in known:
        if result.difference is not None:
            key = (result.clause, result.difference.verdict, result.difference.why)
            groups[key] = groups.get(key, 0) + 1
    for (clause, verdict, why), count in sorted(groups.items()):
        yield from style.wrap(f"    {clause:<10} {count:>3}  {verdict:<10}  ", why, "dim" if verdict != "wrong" else "")


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
