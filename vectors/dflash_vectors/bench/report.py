"""What a run measured, for people."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_vectors.bench.figures import BARE, OURS, PEER, Figure, Level, Memory, Report, Slope, Speedup, Target
from dflash_vectors.bench.harness import Spread
from dflash_vectors.bench.machine import several
from dflash_vectors.style import Style

BAR = 24
MILLI, MICRO = 1e3, 1e6
HEAD = ("", "context", "batch", "peer", "engine", "bare", "over peer", "over bare")


def text(report: Report, style: Style) -> str:
    """Every table, and which targets were met."""
    parts = [_machine(report, style)]
    if report.figures:
        parts.append(_table(report.figures, style))
    if report.slopes or report.locals:
        parts.append(_slopes(report, style))
    parts += [_speedup(each, style) for each in report.speedups]
    if report.memory:
        parts.append(lines("memory", (line for each in report.memory for line in _memory(each)), style))
    if report.remarks:
        parts.append(lines("remarks", report.remarks, style))
    targets = report.targets()
    if targets:
        parts.append(lines("targets", (_target(each, style) for each in targets), style))
    if report.interrupted:
        parts.append(style.paint("interrupted: what was measured until then", "yellow"))
    return "\n\n".join(parts) + "\n"


def lines(title: str, body: Iterator[str] | list[str], style: Style) -> str:
    """A title and lines under it."""
    return "\n".join([style.paint(title, "bold"), *(f"  {line}" for line in body)])


def _machine(report: Report, style: Style) -> str:
    told = report.machine
    packages = ", ".join(f"{name} {version}" for name, version in told["packages"].items())
    return lines(
        f"{told['processor']}, {several(told['threads'], 'thread')} of {several(told['cores'], 'core')}, "
        f"load {told['load']} at the start",
        [f"{packages}; kernels {told['kernels']}, device {told['device']}", *told["pairs"]],
        style,
    )


def _table(figures: list[Figure], style: Style) -> str:
    rows = [_row(each) for each in figures]
    widths = [max(len(row[column]) for row in (HEAD, *rows)) for column in range(len(HEAD))]
    head = "   ".join(name.ljust(width) if not at else name.rjust(width) for at, (name, width) in
                      enumerate(zip(HEAD, widths, strict=True)))  # fmt: skip
    body = [
        "   ".join(cell.ljust(width) if not at else cell.rjust(width) for at, (cell, width) in
                   enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]  # fmt: skip
    note = "medians of turns; a ratio is the median of turns that followed each other, with its quartiles"
    return "\n".join([style.paint(head, "bold"), *body, style.paint(note, "dim")])


def _row(figure: Figure) -> tuple[str, ...]:
    spreads, ratios, batch = figure.spreads, figure.ratios, str(figure.batch)
    scale, unit = (MICRO, "µs/token") if figure.what == "prefill" else (MILLI, "ms")
    times = (f"{spreads[party].median * scale:.2f}" if party in spreads else "–" for party in (PEER, OURS, BARE))
    over = (_ratio(ratios[party]) if party in ratios else "–" for party in (PEER, BARE))
    return (f"{figure.backend} {figure.what}, {unit}", f"{figure.context:,}", batch, *times, *over)


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f}–{spread.high:.2f})"


def _slopes(report: Report, style: Style) -> str:
    body = [line for each in report.slopes for line in _slope(each)]
    for local in report.locals:
        timed = ", ".join(f"{c:,}: {Spread.of(s).median * MILLI:.2f} ms" for c, s in local.seconds.items())
        body.append(f"{local.backend} draft alone, every layer sees {local.window} rows, by context: {timed}")
    return lines("growth with the context", body, style)


def _slope(slope: Slope) -> Iterator[str]:
    begin, end = slope.contexts
    grown = ", ".join(f"{party} {seconds * MILLI:+.2f} ms" for party, seconds in slope.grown.items())
    yield f"{slope.backend} {slope.what}, {begin:,} to {end:,}: {grown}"
    yield (
        f"  attention reads {slope.read / 1e6:.1f} MB more, {slope.reading * MILLI:.2f} ms at this machine's "
        f"{slope.read / slope.reading / 1e9:.1f} GB/s, and computes {slope.flops / 1e9:.2f} GFLOP more, "
        f"{slope.attending * MILLI:.2f} ms as bare products"
    )


def _speedup(speedup: Speedup, style: Style) -> str:
    title = (
        f"{speedup.backend}: speed-up over plain decoding at {speedup.context:,}; a round costs {speedup.cost:.2f} "
        f"steps, so it pays from {speedup.break_even:.2f} accepted on"
    )
    return lines(title, [line for level in speedup.levels for line in _level(level, speedup)], style)


def _level(level: Level, speedup: Speedup) -> Iterator[str]:
    yield (
        f"prompt {level.text:>5}: {level.accepted:5.2f} accepted, {_ratio(level.speedup)} × as fast; "
        f"{speedup.model(level.accepted):.2f} by the model"
    )
    most = max(level.counts.values(), default=1)
    for count, times in sorted(level.counts.items()):
        yield f"       {count:3d}  {'█' * max(1, round(BAR * times / most))} {times}"


def _memory(memory: Memory) -> Iterator[str]:
    parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in memory.planned.items())
    yield f"{memory.backend}: peak {memory.peak / 2**20:.1f} MiB; planned {memory.total / 2**20:.1f} MiB ({parts})"
    held = ", ".join(f"{rounds:,}: {size / 2**20:.1f}" for rounds, size in memory.held)
    yield f"  held after rounds, MiB: {held}"


def _target(target: Target, style: Style) -> str:
    word = style.paint("met   ", "green") if target.met else style.paint("MISSED", "red")
    return f"{word}  {target.found:6.2f}  at most {target.limit:.2f}  {target.what}"
