"""A run as a drawing: times by context beside the peer and the bare products, and speed-up by what is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dflash_spec.errors import OutputError

from dflash_vectors.bench.figures import BARE, OURS, PEER, Figure, Report, Speedup
from dflash_vectors.bench.machine import several

WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 210, 56, 64, 74
COLOURS = {PEER: "#b5562f", OURS: "#2f6db5", BARE: "#8a8a8a"}
Point = tuple[float, float]


def svg(report: Report) -> str:
    """A panel for every step and round of each backend, and one for each speed-up; two panels a row.

    Raises OutputError where nothing was measured that has a panel.
    """
    groups: dict[tuple[str, str], list[Figure]] = {}
    for figure in report.figures:
        if figure.batch == 1 and figure.what in ("step", "round"):
            groups.setdefault((figure.backend, figure.what), []).append(figure)
    panels = [_times(name, figures) for name, figures in groups.items()]
    panels += [_speedup(each) for each in report.speedups]
    if not panels:
        raise OutputError("nothing was measured that has a chart, so none is drawn")
    rows = -(-len(panels) // 2)
    width, height = 2 * (LEFT + WIDTH + 40), TOP + rows * (HEIGHT + GAP)
    told = f"{report.machine['processor']}, {several(report.machine['threads'], 'thread')}, BF16"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>', _text(LEFT, 22, told, 13), *_legend(),
    ]  # fmt: skip
    for number, panel in enumerate(panels):
        x, y = LEFT + number % 2 * (LEFT + WIDTH + 40), TOP + 22 + number // 2 * (HEIGHT + GAP)
        parts.append(f'<g transform="translate({x} {y})">{panel}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    names = {PEER: "the authors' package", OURS: "this engine", BARE: "its matrix products alone"}
    parts, x = [], LEFT
    for party, name in names.items():
        parts.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{COLOURS[party]}"/>')
        parts.append(_text(x + 18, 46, name, 12))
        x += 40 + 7 * len(name)
    return parts


def _times(name: tuple[str, str], figures: Sequence[Figure]) -> str:
    lines: dict[str, list[Point]] = {}
    for figure in sorted(figures, key=lambda each: each.context):
        for party, spread in figure.spreads.items():
            lines.setdefault(party, []).append((float(figure.context), spread.median * 1e3))
    high = _ceiling(max(y for points in lines.values() for _, y in points))
    wide = max(x for points in lines.values() for x, _ in points)
    body = _frame(f"{name[0]} {name[1]}, ms, by context", (0.0, wide), high, [x for x, _ in lines[OURS]])
    for party, points in lines.items():
        body += _line([(x / wide * WIDTH, HEIGHT - y / high * HEIGHT) for x, y in points], COLOURS[party])
    return "".join(body)


def _speedup(speedup: Speedup) -> str:
    wide = max(1.0, *(each.accepted for each in speedup.levels))
    high = _ceiling(max(speedup.model(wide), *(each.speedup.high for each in speedup.levels)))
    ticks = sorted({0.0, *(float(round(each.accepted)) for each in speedup.levels)})
    body = _frame(f"{speedup.backend}, speed-up over plain decoding, by mean accepted", (0.0, wide), high, ticks)

    def at(x: float, y: float) -> Point:
        return x / wide * WIDTH, HEIGHT - y / high * HEIGHT

    even = at(0, 1)[1]
    body.append(f'<line x1="0" x2="{WIDTH}" y1="{even:.1f}" y2="{even:.1f}" stroke="#444" stroke-dasharray="4 3"/>')
    (x1, y1), (x2, y2) = at(0, speedup.model(0)), at(wide, speedup.model(wide))
    body.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#9bb8da" stroke-width="2"/>')
    for level in speedup.levels:
        x, y = at(level.accepted, level.speedup.median)
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[OURS]}"/>')
    if 0 <= speedup.break_even <= wide:
        x, y = at(speedup.break_even, 1)
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="#b5562f" stroke-width="2"/>')
        body.append(_text(x + 10, y + 16, f"break-even {speedup.break_even:.2f}", 11))
    return "".join(body)


def _frame(title: str, span: tuple[float, float], high: float, ticks: Sequence[float]) -> list[str]:
    """Title, grid and labels of a panel whose axes begin at 0."""
    parts = [_text(0, -12, title, 12)]
    for part in range(5):
        y = HEIGHT - part * HEIGHT / 4
        parts.append(f'<line x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(-8, y + 4, f"{high * part / 4:g}", 11, "end"))
    drawn = -100.0
    for tick in ticks:
        x = (tick - span[0]) / (span[1] - span[0]) * WIDTH
        if x - drawn >= 30:  # a label's width
            parts.append(_text(x, HEIGHT + 16, f"{tick:,.0f}", 11, "middle"))
            drawn = x
    return parts


def _line(points: Sequence[Point], colour: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def _ceiling(value: float) -> float:
    """A round number from `value` on, that four parts divide well."""
    scale = 1.0
    while scale * 10 <= value:
        scale *= 10
    while scale > value:
        scale /= 10
    return next(scale * step for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if scale * step >= value)


def _text(x: float, y: float, text: str, size: int, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
