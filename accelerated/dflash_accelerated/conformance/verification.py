"""LAW ops. Each is a batch of one request, but for whole rounds, which are a batch of one request a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dflash_accelerated import coins, decisions, rounds
from dflash_accelerated.conformance.call import Answer, Call, refuse
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import acceptance, filters, sampling
from dflash_accelerated.ops.acceptance import Chains, SparseLaw, Verdict


def _law(call: Call) -> filters.Distribution:
    return filters.Distribution(call.ids("support"), call.raw("p"))


def _answer(verdict: Verdict) -> Answer:
    """The only request's. A terminal token of -1 is a refused draw."""
    licensed, accepted = verdict.licensed[0], int(verdict.accepted[0])
    refuse(licensed[accepted] < 0, "a row of p")
    return {"accepted": accepted, "licensed": licensed}


def _greedy(call: Call) -> Answer:
    return _matched(call.integers("proposals"), call.integers("target"))


def _match(call: Call) -> Answer:
    drawn = sampling.draw(_law(call), call.raw("u"), call.numerics)
    refuse((drawn < 0).any(), "a row of p")  # each row is drawn from, whatever is accepted
    return _matched(call.integers("proposals"), drawn.tolist())


def _matched(proposals: list[int], target: list[int]) -> Answer:
    licensed = acceptance.matched(proposals, target)
    return {"accepted": len(licensed) - 1, "licensed": licensed + [0] * (len(target) - len(licensed))}


def _judged(call: Call, drawn_from: SparseLaw) -> Answer:
    chains = Chains.of([call.ids("proposals")])
    ends = call.raw("u_terminal").expand(1, len(chains.owner))
    given = coins.Coins(call.array("u_accept")[None], ends.contiguous().numpy())
    return _answer(decisions.judge(chains, drawn_from, _law(call), given, call.numerics))


def _one_hot(call: Call) -> Answer:
    return _judged(call, acceptance.one_hot(call.ids("proposals")))


def _sparse(call: Call) -> Answer:
    return _judged(call, SparseLaw(call.ids("candidates"), call.raw("q")))


def _sample_rounds(call: Call) -> Answer:
    """One round for each seed at frontier 1: proposals drawn from q, or the given ones, then verified."""
    seeds, own_law, given = call.array("seeds").tolist(), bool(call.integer("own_law")), call.ids("proposals")
    count, rows = len(given), len(call.array("p"))
    ids, q = call.ids("candidates"), call.raw("q")
    proposals = _drawn(ids, q, seeds, call.numerics) if own_law else given.expand(len(seeds), -1)
    chains = Chains.of(list(proposals))
    drawn_from = SparseLaw(*(part.repeat(len(seeds), 1) for part in (ids, q))) if own_law else acceptance.one_hot(
        proposals.reshape(-1)
    )  # fmt: skip
    law = filters.Distribution(*(part.repeat(len(seeds), 1) for part in (call.ids("support"), call.raw("p"))))
    own = coins.of_rounds(seeds, [1] * len(seeds), [count] * len(seeds), count)
    verdict = decisions.judge(chains, drawn_from, law, own, call.numerics)
    licensed = verdict.licensed[:, :rows]
    return {"proposals_drawn": proposals, "accepted": verdict.accepted, "licensed": licensed}


def _drawn(ids: Tensor, q: Tensor, seeds: list[int], numerics: Numerics) -> Tensor:
    """Proposals [N, P] of rows ids and q [P, C], each step with the uniform of its own key."""
    drawn = torch.from_numpy(coins.of_keys(seeds, rounds.proposal_keys([1], len(q))))
    wide = filters.Distribution(ids.repeat(len(seeds), 1), q.repeat(len(seeds), 1))
    return sampling.draw(wide, drawn.reshape(-1), numerics).view(len(seeds), len(q))


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "law.greedy": _greedy,
    "law.match": _match,
    "law.one_hot": _one_hot,
    "law.sparse": _sparse,
    "law.sample_rounds": _sample_rounds,
}
