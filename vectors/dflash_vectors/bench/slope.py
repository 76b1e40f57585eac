"""How time grows with the context, beside what attention must read and compute."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from functools import partial

import torch
from dflash_spec.config import DraftConfig, TargetConfig, read_draft_config, read_target_config
from dflash_spec.registry import load_profile
from torch import Tensor

from dflash_vectors.bench import ours
from dflash_vectors.bench.figures import BARE, Figure, Local, Slope
from dflash_vectors.bench.harness import Call, Clock, Plan, Turns, quiet
from dflash_vectors.bench.timing import Party

BUFFER = 1 << 28
"""Bytes of the buffer that is read to measure the memory: far more than any cache holds."""
BYTES = 2
"""Of a key's or value's number, in BF16."""
CACHED = 1024
"""Rows whose keys and values stay in the caches of a CPU."""


def bandwidth(plan: Plan, clock: Clock, device: torch.device) -> float:
    """Bytes a second that a sum over a large buffer reads."""
    buffer = torch.ones(BUFFER // 8, dtype=torch.int64, device=device)
    return BUFFER / statistics.median(Turns({"sum": buffer.sum}, plan, clock).all()["sum"])


def seen(windows: Iterable[int], context: int) -> int:
    """Rows that the layers of such windows read at a context, all together; 0 is a full layer."""
    return sum(min(window, context) if window else context for window in windows)


def slopes(party: Party, figures: Iterable[Figure], plan: Plan) -> list[Slope]:
    """The growth of what was timed at more than one context, from the shortest to the longest."""
    grown: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        if figure.batch == 1 and figure.what in ("step", "round") and figure.backend == party.pair.backend:
            grown.setdefault((figure.what, figure.backend), []).append(figure)
    speed = bandwidth(plan, party.clock, party.device)
    ends = [(min(each, key=_context), max(each, key=_context)) for each in grown.values()]
    made = [_slope(party, short, long, speed, plan) for short, long in ends if short.context < long.context]
    return [each for each in made if each is not None]


def _context(figure: Figure) -> int:
    return figure.context


def _slope(party: Party, short: Figure, long: Figure, speed: float, plan: Plan) -> Slope | None:
    """None where the longer context reads no more: windows that are full at the shorter one."""
    target, draft = _configs(party)
    begin, end = short.context, long.context
    rows = party.engine.draft_tokens + 1 if long.what == "round" else 1
    more = seen(target.windows, end) - seen(target.windows, begin)
    if long.what == "round":
        more += seen(draft.windows, end) - seen(draft.windows, begin)
    if not more:
        return None
    read = more * 2 * target.kv_heads * target.head_dim * BYTES
    flops = 4 * more * rows * target.heads * target.head_dim
    before, after = short.spreads, long.spreads
    grown = {party: after[party].median - before[party].median for party in after if party != BARE}
    attending = _attending(party, rows, more, plan)
    return Slope(long.what, long.backend, (begin, end), grown, read, flops, read / speed, attending)


def _configs(party: Party) -> tuple[TargetConfig, DraftConfig]:
    target = read_target_config(party.pair.target)
    return target, read_draft_config(party.pair.draft, load_profile("zlab"), target)


def _attending(party: Party, rows: int, more: int, plan: Plan) -> float:
    """Seconds of attention's two products alone, over `more` stored rows, as this machine's library is fastest.

    In BF16 or in FP32, which a CPU without BF16 instructions multiplies many times faster; all rows at once, or some
    after others, so that they stay in its caches.
    """
    target, _ = _configs(party)
    heads, group, dim = target.kv_heads, target.heads // target.kv_heads, target.head_dim
    pieces: dict[str, float] = {}
    calls: dict[str, Call] = {}
    for dtype in (torch.bfloat16, torch.float32):
        queries = torch.randn(heads, rows * group, dim, device=party.device).to(dtype)
        keys, values = (torch.randn(heads, more, dim, device=party.device).to(dtype) for _ in range(2))
        for piece in (more, min(more, CACHED)):
            name = f"{dtype}, {piece}"
            pieces[name], calls[name] = more / piece, partial(_products, queries, keys[:, :piece], values[:, :piece])
    seconds = Turns(calls, plan, party.clock).all()
    return min(pieces[name] * statistics.median(each) for name, each in seconds.items())


def _products(queries: Tensor, keys: Tensor, values: Tensor) -> None:
    torch.bmm(torch.bmm(queries, keys.mT), values)


def local(party: Party, window: int, contexts: tuple[int, ...], plan: Plan) -> Local:
    """Seconds of the draft alone, of a pair all of whose draft layers see `window` rows, by context."""
    seconds: dict[int, list[float]] = {context: [] for context in contexts}
    with ours.alone(party.engine, [party.pair.prompt(context) for context in contexts]) as requests, quiet():
        for _ in range(plan.turns):
            for advance, spent in zip(requests, seconds.values(), strict=True):
                advance()
                spent.append(statistics.median(advance()[0].times.propose for _ in range(plan.calls)))
    return Local(party.pair.backend, window, seconds)
