"""PROC and LAW ops."""

from __future__ import annotations

from collections.abc import Callable

from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.ops import acceptance, head, sampling


def _distribution(call: Call) -> Answer:
    arguments = (call.number("temperature"), call.integer("public"), call.numerics)
    return sampling.distribution(call.act("logits"), *arguments)._asdict()


def _greedy_tokens(call: Call) -> Answer:
    return {"tokens": head.argmax(call.act("logits"), call.integer("public"))}


def _draw(call: Call) -> Answer:
    return {"tokens": sampling.draw(call.ids("support"), call.raw("p"), call.raw("u"))}


def _greedy(call: Call) -> Answer:
    return acceptance.greedy(call.ids("proposals"), call.ids("target"))._asdict()


def _one_hot(call: Call) -> Answer:
    proposals = call.ids("proposals")
    law = sampling.Distribution(call.ids("support"), call.raw("p"))
    accepted = acceptance.accepted_count(proposals, law, call.raw("u_accept"))
    last = acceptance.terminal(proposals, accepted, law, call.number("u_terminal"), call.numerics)
    return acceptance.licensed(proposals, accepted, last)._asdict()


HANDLERS: dict[str, Callable[[Call], Answer]] = {
    "proc.distribution": _distribution,
    "proc.greedy": _greedy_tokens,
    "proc.draw": _draw,
    "law.greedy": _greedy,
    "law.one_hot": _one_hot,
}
