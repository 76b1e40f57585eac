"""The stages of a round, each computed by the reference from what the trace recorded just before it.

A stage whose input is recorded, and which is one op, has the derived bound of that op, element by element. A stage that
is a whole layer, or whose input is not recorded, is a composite: its bound is the spread of the perturbed runs. Either
way an error in one stage is not carried into the next, so the first that differs is the one that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from dflash_reference import block, draft, draft2, head, target
from dflash_reference.models import Draft2
from dflash_reference.names import TokenId
from dflash_spec.tensors import Array

from dflash_vectors.bounds import bounds_of
from dflash_vectors.replay.lanes import Chunk, History, Lane, Lanes, Value
from dflash_vectors.run import execute
from dflash_vectors.trace import Configuration, Round

Step = Callable[[Lane], Array]


@dataclass(frozen=True)
class Own:
    """A stage as the reference has it. `bound` is None where it is the spread of `value`.

    `again` computes it once more, in another lane that stands where the round began, for whoever looks for the fault.
    """

    name: str
    value: Value
    bound: Array | None
    again: Step


class Stages:
    """The float stages of one round, in order, and the values that decisions rest on."""

    def __init__(self, lanes: Lanes, asked: Configuration, round_: Round) -> None:
        self.lanes, self.asked, self.round = lanes, asked, round_
        self.model, self.profile = lanes.pair.draft, lanes.pair.profile

    def recorded(self, name: str, rows: int) -> Value | None:
        """The first `rows` rows of a stage as the trace has them; None where it has not so many."""
        tensor = self.round.stages.get(name)
        if tensor is None or len(tensor.values) < rows:
            return None
        return Value(tensor.values[:rows].astype(np.float64 if tensor.values.dtype.kind == "f" else np.int64))

    def block(self) -> tuple[Array, Array]:
        """Ids and positions of the live rows of the draft's block."""
        given = TokenId(self.round.anchor), TokenId(self.model.config.mask_id), self.lanes.history.frontier
        form = block.dflash2_inputs if isinstance(self.model, Draft2) else block.inputs
        rows = form(*given, self.asked.drafts, self.round.extent, self.profile)
        return rows.ids[: rows.live], rows.positions[: rows.live]

    def context(self) -> Iterator[Own]:
        """The features that became context in this round, and their rows c."""
        chunk = self.lanes.history.chunks[-1]
        key = f"round {self.round.number}"

        def captured(lane: Lane) -> Array:
            return lane.own_features(chunk)

        features = self.lanes.compute(f"{key}/features", captured)
        yield Own("features", features, None, lambda lane: captured_anew(lane, chunk))
        weights = {"fc": self.model.fc, "hidden_norm": self.model.hidden_norm, "eps": self.model.config.eps}
        given = chunk._replace(c=None)

        def row(lane: Lane) -> Array:
            return lane.context_rows(given)

        bound = None
        if chunk.features is not None:
            bound = self.derived("context.feature", "c", features=chunk.features, **weights)
        yield Own("c", self.lanes.compute(f"{key}/c", row), bound, row)

    def layers(self) -> Iterator[Own]:
        """The residual rows after each layer, and the hidden rows of the proposals."""
        key, x, live = f"round {self.round.number}", None, len(self.block()[0])
        for index in range(self.model.config.layers):

            def step(lane: Lane, x: Array | None = None, index: int = index) -> Array:
                return self._layer(lane, index, x)

            own = self.lanes.compute(f"{key}/layer.{index}", step, *([] if x is None else [x]))
            before = None if x is None else x.true

            def again(lane: Lane, index: int = index, before: Array | None = before) -> Array:
                return self._layer(lane, index, before)

            yield Own(f"layer.{index}", own, None, again)
            x = self.recorded(f"layer.{index}", live) or own
        assert x is not None  # a draft has a layer at least
        rows = x

        def final(lane: Lane, x: Array) -> Array:
            return draft.final(x, self.model.norm, self.model.config.eps, self.profile).hidden

        bound = None
        if rows.given:
            bound = self.derived("draft.final", "hidden", x=rows.true, norm=self.model.norm, eps=self.model.config.eps)
        yield Own(
            "hidden", self.lanes.compute(f"{key}/hidden", final, rows), bound, lambda lane: final(lane, rows.true)
        )

    def _layer(self, lane: Lane, index: int, x: Array | None) -> Array:
        """One layer from its recorded input rows, or for the first one from the block's ids."""
        lane.catch_up()
        ids, positions = self.block()
        if x is None:
            x = draft.embed(self.lanes.pair.target.embedding, ids, self.profile).x
        if isinstance(self.model, Draft2):
            return draft2.decoder_layer(self.model, index, lane.context, x, positions, self.profile)
        return draft.decoder_layer(self.model, index, lane.context, x, positions, self.profile)

    @property
    def hidden_rows(self) -> int:
        """How many proposal rows the draft computes."""
        return len(self.block()[0]) - 1

    def logits(self, hidden: Value) -> Own:
        """A DFlash draft's logits of the proposal rows [P, V]."""
        table = target.head(self.lanes.pair.target)

        def step(lane: Lane, rows: Array) -> Array:
            return head.logits(rows, table, self.profile).logits

        bound = self.derived("head.logits", "logits", hidden=hidden.true, head=table) if hidden.given else None
        own = self.lanes.compute(f"round {self.round.number}/logits", step, hidden)
        return Own("logits", own, bound, lambda lane: step(lane, hidden.true))

    def verify(self) -> Iterator[Own]:
        """The target's features and logits of the rows that were verified."""
        pair, ids, key = self.lanes.pair, self.round.verified, f"round {self.round.number}"
        residuals = self.lanes.compute(f"{key}/verify", lambda lane: lane.verify(ids))

        def captured(lane: Lane, boundaries: Array) -> Array:
            return target.captured(pair.target, boundaries, self.model.config.taps, self.profile)

        def logits(lane: Lane, boundaries: Array) -> Array:
            model = pair.target
            return target.logits(boundaries[-1], model.norm, target.head(model), model.config.eps, self.profile).logits

        for name, step in (("target.features", captured), ("target.logits", logits)):
            own = self.lanes.compute(f"{key}/{name}", step, residuals)
            yield Own(name, own, None, lambda lane, step=step: step(lane, lane.verify(ids)))  # type: ignore[misc]

    def derived(self, op: str, name: str, **inputs: Any) -> Array:
        """The bound of one output of a single op on recorded inputs, element by element."""
        return bounds_of(op, inputs, execute(op, inputs, self.profile), self.profile)[name]


def captured_anew(lane: Lane, chunk: Chunk) -> Array:
    """What the target captures of a chunk's rows when it reads them once more."""
    ids = lane.history.ids
    before = lane.copy(History(ids[: chunk.start], []))
    residuals = before.verify(np.array(ids[chunk.start : chunk.stop], dtype=np.int64))
    model, draft_model, profile = lane.pair
    return target.captured(model, residuals, draft_model.config.taps, profile)
