"""A trace at a glance: what each round accepted, where the near ties are, and where the first bug is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape

from dflash_vectors.replay.findings import Report
from dflash_vectors.style import Style

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
TENS = 10
BAR, HEIGHT, LEFT, TOP = 9, 150, 52, 34


def digit(count: int) -> str:
    """A count in one character: 0 to 9, then a to z, then +."""
    return DIGITS[count] if count < len(DIGITS) else "+"


def marks(report: Report) -> dict[int, str]:
    """What stands under a round: ~ for a near tie, ^ for the first bug."""
    found = {finding.round: "~" for finding in report.ties}
    if report.bug is not None:
        found[report.bug.round] = "^"
    return found


def lines(report: Report, style: Style) -> Iterator[str]:
    """One character a round, in rows as wide as fit, and how often each count came."""
    head, marked = 16, marks(report)
    width = (style.width - head) // TENS * TENS
    for start in range(0, len(report.accepted), width):
        row = range(start, min(start + width, len(report.accepted)))
        ruler = "".join(f"{number:<{TENS}}" for number in range(row.start, row.stop, TENS))
        yield style.paint(f"{'  round' if not start else '':<{head}}{ruler.rstrip()}", "dim")
        yield f"{'  accepted' if not start else '':<{head}}" + "".join(digit(report.accepted[n]) for n in row)
        under = "".join(marked.get(n, " ") for n in row).rstrip()
        if under:
            yield " " * head + style.paint(under, "red" if "^" in under else "yellow")
    counts = Counter(report.accepted)
    told = "  ".join(f"{count}: {counts[count]}" for count in sorted(counts))
    mean = sum(report.accepted) / max(1, len(report.accepted))
    yield from style.wrap("  how often     ", f"{told}   mean {mean:.2f}", "dim")


def svg(report: Report) -> str:
    """The same as a drawing: a bar a round, up to the draft count; near ties and the first bug marked and named."""
    asked = report.trace.configuration
    drafts, rounds = max(1, asked.drafts), len(report.accepted)
    width, unit = LEFT + max(rounds * BAR, 430) + 20, HEIGHT / drafts
    bottom, marked = TOP + HEIGHT, marks(report)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 62}" font-family="sans-serif">',
        f'<rect width="{width}" height="{bottom + 62}" fill="white"/>',
        _text(LEFT, 20, f"{asked.name} {asked.version} ({asked.profile}): accepted proposals of each round", 13),
    ]
    for count in sorted({0, drafts // 2, drafts}):
        y = bottom - count * unit
        parts.append(f'<line x1="{LEFT}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 4, str(count), 11, "end"))
    for number, accepted in enumerate(report.accepted):
        x, height = LEFT + number * BAR, accepted * unit
        colour = {"^": "#c0392b", "~": "#e0a800"}.get(marked.get(number, ""), "#4878a8")
        top = bottom - height
        parts.append(f'<rect x="{x}" y="{top:.1f}" width="{BAR - 2}" height="{height:.1f}" fill="{colour}"/>')
        if number in marked:
            parts.append(f'<path d="M{x - 1} {bottom + 9} l{BAR / 2} -8 l{BAR / 2} 8 z" fill="{colour}"/>')
    for number in range(0, rounds, TENS):
        parts.append(_text(LEFT + number * BAR, bottom + 22, str(number), 11))
    parts.append(_text(LEFT, bottom + 46, _legend(report), 12))
    return "\n".join([*parts, "</svg>", ""])


def _legend(report: Report) -> str:
    ties = f"{len(report.ties)} near ties"
    if report.bug is None:
        return f"no bug in {report.judged} rounds; {ties}"
    return f"first bug: round {report.bug.round}, {report.bug.place}, {report.bug.clause}; {ties} before it"


def _text(x: float, y: float, text: str, size: int, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
