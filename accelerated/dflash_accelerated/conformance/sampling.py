"""PROC ops, and what a whole request may be asked for: masks, penalties, filters and draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dflash_accelerated import coins, decisions, rounds
from dflash_accelerated.arguments import check_ids, check_integer
from dflash_accelerated.conformance.call import Answer, Call, refuse
from dflash_accelerated.counts import TokenCounts
from dflash_accelerated.ops import filters, head, penalties, sampling
from dflash_accelerated.settings import Sampling, SettingRows, is_greedy

CPU = torch.device("cpu")


def _rows(call: Call, count: int, settings: Sampling) -> SettingRows:
    return SettingRows.of([settings], [count], call.numerics.profile, CPU)


def _settings(call: Call, *names: str) -> Sampling:
    """The settings of one request, of which the op gives `names`. Raises RequestError for what the profile refuses."""
    given = {name: call.integer(name) if name == "top_k" else call.number(name) for name in names}
    return Sampling.checked(call.numerics.profile, **given)


def _distribution(call: Call) -> Answer:
    logits = call.act("logits")
    scores, refused = penalties.adjust(logits, call.public(logits))
    refuse(refused.any(), "a row of logits")
    rows = _rows(call, len(scores), _settings(call, "temperature"))
    return _shown(filters.distribution(scores, rows, call.numerics))


def _shown(law: filters.Distribution) -> Answer:
    every = torch.arange(law.p.shape[1]).expand(law.p.shape)
    return {"support": every if law.support is None else law.support, "p": law.p}


def _greedy_tokens(call: Call) -> Answer:
    logits = call.act("logits")
    public = call.public(logits)
    best = head.best(logits, public, call.numerics)
    refuse((~torch.isfinite(best.score)).any(), "a row of logits")
    return {"tokens": best.id}


def _draw(call: Call) -> Answer:
    tokens = sampling.draw(filters.Distribution(call.ids("support"), call.raw("p")), call.raw("u"), call.numerics)
    refuse((tokens < 0).any(), "a row of p")
    return {"tokens": tokens}


def _adjust(call: Call) -> Answer:
    logits = call.act("logits")
    public, every = call.public(logits), torch.arange(len(logits))
    weights = {f"{name}_penalty": call.raw(name) for name in ("presence", "frequency")}
    Sampling.checked(call.numerics.profile, **{name: float(weight) for name, weight in weights.items()})
    mask = penalties.Mask(every, call.raw("allowed")[:, :public].bool())
    counts = call.raw("counts")[:public].expand(len(logits), -1)
    penalised = penalties.Penalties(
        every, counts, call.ids("overlay"), *(weight.expand(len(logits)) for weight in weights.values())
    )
    adjusted = penalties.adjust(logits, public, mask, penalised)
    refuse(adjusted.refused.any(), "a row of logits")
    padding = (0, logits.shape[1] - public)
    return {"adjusted": torch.nn.functional.pad(adjusted.scores, padding, value=-torch.inf)}


def _overlay(call: Call) -> Answer:
    proposals = call.ids("proposals")
    rows = len(proposals) + 1
    return {"overlay": penalties.overlay(proposals[None], torch.zeros(rows, dtype=torch.int64), torch.arange(rows))}


def _count(call: Call) -> Answer:
    public, emitted, licensed = call.integer("public"), call.integers("emitted"), call.integers("licensed")
    kept = check_integer("kept", call.integer("kept"), 0, len(licensed))
    counted = rounds.counted(licensed, kept, bool(call.integer("own_law")))
    check_ids("tokens", (*emitted, *counted), public)
    counts = TokenCounts(public, CPU)
    lane = counts.take(emitted)
    counts.add([lane] * len(counted), counted)
    return {"counts": counts.rows([lane])[0]}


def _choose(call: Call) -> Answer:
    scores = call.raw("adjusted")
    adjusted = penalties.Adjusted(scores, penalties.unusable(scores))
    greedy = is_greedy(call.number("temperature"), call.numerics.profile)
    refuse(adjusted.refused.any(), "a row of adjusted logits")
    tokens = decisions.choose(adjusted, call.numerics)
    return {"greedy": int(greedy), "tokens": tokens if greedy else [-1] * len(tokens)}


def _filter(call: Call) -> Answer:
    scores = call.raw("adjusted")
    settings = _settings(call, "temperature", "top_k", "top_p", "min_p")
    refuse(not settings.temperature, "temperature 0")
    refuse(penalties.unusable(scores).any(), "a row of adjusted logits")
    made = filters.filtered(scores, _rows(call, len(scores), settings), call.numerics)
    return _shown(made.law) | {"weights": made.weights, "kept": made.kept}


def _propose(call: Call) -> Answer:
    logits, settings = call.act("logits"), _settings(call, "temperature", "top_k", "top_p")
    refuse(not settings.temperature, "temperature 0")
    rows = _rows(call, len(logits), settings)
    made = sampling.propose(logits, logits.shape[1], rows, call.raw("u"), call.numerics)
    refuse(torch.isnan(made.q).any(), "a row of logits")
    return {"proposals": made.tokens, "q": made.q}


def _sample_tokens(call: Call) -> Answer:
    """One plain decode step for each seed, all from the same row."""
    seeds = call.array("seeds")
    drawn = coins.of_single_draws(seeds.tolist(), [rounds.decode_key(1)] * len(seeds)).terminal[:, 0]
    support, p = (row.expand(len(seeds), -1) for row in (call.ids("support"), call.raw("p")))
    return {"tokens": sampling.draw(filters.Distribution(support, p), torch.from_numpy(drawn), call.numerics)}


def _batch_uniforms(call: Call) -> Answer:
    """How many were drawn before is no argument of the engine's: a uniform follows from its key."""
    lists = (call.array("seeds").tolist(), call.integers("frontiers"), call.integers("extents"))
    made, accepted = coins.of_rounds(*lists, call.integer("drafts")), call.integers("accepted")
    return {"accept": made.accept, "terminal": made.terminal[np.arange(len(accepted)), accepted]}


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "proc.distribution": _distribution,
    "proc.greedy": _greedy_tokens,
    "proc.draw": _draw,
    "proc.adjust": _adjust,
    "proc.overlay": _overlay,
    "proc.count": _count,
    "proc.choose": _choose,
    "proc.filter": _filter,
    "proc.propose": _propose,
    "proc.sample_tokens": _sample_tokens,
    "rng.batch_uniforms": _batch_uniforms,
}
