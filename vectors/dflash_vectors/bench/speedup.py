"""Speed-up over plain decoding, as a function of what the target accepts."""

from __future__ import annotations

from collections import Counter

from dflash_vectors.bench import ours
from dflash_vectors.bench.figures import Level, Speedup
from dflash_vectors.bench.harness import Plan, Turns
from dflash_vectors.bench.timing import Party


def measured(party: Party, context: int, plan: Plan) -> Speedup:
    """Rounds of every text of the pair, in turns with plain steps of the same text."""
    return Speedup(party.pair.backend, context, [_level(party, text, context, plan) for text in party.pair.texts])


def _level(party: Party, text: str, context: int, plan: Plan) -> Level:
    prompt, counts = party.pair.prompt(context, text), Counter[int]()

    with ours.rounds(party.engine, [prompt]) as advance, ours.steps(party.engine, [prompt]) as plain:

        def counted() -> None:
            counts.update(each.accepted for each in advance() if each.accepted is not None)

        seconds = Turns({"step": plain, "round": counted}, plan, party.clock).all()
    return Level(text, dict(counts), seconds["step"], seconds["round"])
