"""DFlash2 drafts: DFlash, except in its context's storage, its block's extent, its layers and its choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch
from dflash_spec.config import DFlash2Config
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dflash_accelerated.layers import ConvWeights
from dflash_accelerated.memory import KvCache, KvPool, positions_of
from dflash_accelerated.models.decoder import attend_all
from dflash_accelerated.models.dflash import DFlashDraft, DraftState, record
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import conv, head, materialize, mlp, qkv, rope, selector
from dflash_accelerated.ops.acceptance import SparseLaw
from dflash_accelerated.protocols import Block, Proposal, Vocabulary
from dflash_accelerated.rings import Rings, RingState
from dflash_accelerated.rounds import Columns, dflash2_columns


class Span(NamedTuple):
    """Context rows of one lane: c ACT [N, H] at absolute positions I64 [N], one after another."""

    lane: int
    c: Tensor
    positions: Tensor


class DFlash2Draft(DFlashDraft):
    """The model of a `DFlash2DraftModel` folder: the block forward with a convolution around both branches of a layer,
    and a walk over each slot's best candidates.

    Clauses: BLK-008, BLK-009, CONV-001 to CONV-008, CTX-011 to CTX-015, DRAFT-015, DRAFT-016, HEAD-005 to HEAD-009,
    SEL-001 to SEL-007. Source: NInfer docs/maintainer/dflash.md; dflash 0.1.0 DFlash2DraftModel.
    """

    config: DFlash2Config

    def __init__(
        self, config: DFlash2Config, tensors: Mapping[str, Tensor], numerics: Numerics, device: torch.device
    ) -> None:
        """`tensors` by published name, any float dtype; they are rounded to the numerics' dtypes and moved.

        The query-role keys and values of a block are views of the context-role weights, which are stored joined.
        """
        held = {name: numerics.weight(tensor).to(device) for name, tensor in tensors.items()}
        self._local = _join(held, [layer for layer, window in enumerate(config.windows) if window])
        self._full = _join(held, [layer for layer, window in enumerate(config.windows) if not window])
        super().__init__(config, held, numerics, device)
        prefixes = [f"layers.{layer}." for layer in range(config.layers)]
        self._attention_conv = [ConvWeights.take(held, f"{prefix}attention_conv.") for prefix in prefixes]
        self._mlp_conv = [ConvWeights.take(held, f"{prefix}mlp_conv.") for prefix in prefixes]
        names = ("hidden_projection.weight", "predecessor_codebook", "successor_codebook")
        self._selector = selector.Selector(*(held[f"candidate_selector.{name}"] for name in names))
        local = sum(window > 0 for window in config.windows)
        slots = max(config.windows) or 1
        self._pool = KvPool(config.windows.count(0), config.kv_heads, config.head_dim, numerics, device)
        self.rings = Rings.empty(local, slots, config.kv_heads, config.head_dim, numerics, device)

    def open(self, capacity: int) -> RingState:
        windows = self.config.windows
        if not self.rings.lanes.free and not self._pool.lanes.count:
            self.rings.reserve(len(self.rings.keys) + 1)
        pages = self._pool.open(capacity) if 0 in windows else None
        return RingState(self.rings, pages, windows)

    def reserve(self, lanes: int, capacity: int) -> None:
        super().reserve(lanes, capacity)
        self.rings.reserve(lanes)

    def _columns(self, block: Block) -> Columns:
        settings = (block.state.length, block.drafts, block.extent)
        return dflash2_columns(self._numerics.profile, block.anchor, self.config.mask_id, *settings)

    def _materialize(self, states: Sequence[DraftState], c: Sequence[Tensor]) -> None:
        own = [cast(RingState, state) for state in states]
        places = [positions_of([(state.length, len(rows))], self.device) for state, rows in zip(own, c, strict=True)]
        if self._local:
            spans = [Span(state.lane, *each) for state, *each in zip(own, c, places, strict=True)]
            write_rings(self.rings, spans, self._local, self.config.theta, self.config.eps, self._numerics)
        if self._full:
            for state, rows, positions in zip(own, c, places, strict=True):
                keys, values = _project(rows, positions, self._full, self.config.theta, self.config.eps, self._numerics)
                for layer in range(keys.shape[1]):
                    cast(KvCache, state.pages).write(layer, state.length, keys[:, layer], values[:, layer])

    def _layer(
        self, layer: int, x: Tensor, turn: rope.Tables, states: Sequence[DraftState], counts: list[int]
    ) -> Tensor:
        weights, eps, numerics = self._layers[layer], self.config.eps, self._numerics
        outer, inner = self._attention_conv[layer], self._mlp_conv[layer]
        slot = conv.slots(counts, self.device)
        branch = conv.prepare(x, weights.input_norm, outer, slot, eps, numerics)
        heads = qkv.project_prepared(branch.prepared, weights, turn, eps, numerics)
        attended = attend_all(states, heads.q, heads.k, heads.v, counts, self._reading(layer))
        y = conv.finish(attended, weights.o_proj, outer.base, branch.finish_delta, x, slot, numerics)
        branch = conv.prepare(y, weights.post_norm, inner, slot, eps, numerics)
        product = mlp.swiglu(branch.prepared, weights.gate_proj, weights.up_proj, numerics)
        return conv.finish(product, weights.down_proj, inner.base, branch.finish_delta, y, slot, numerics)

    def _choose(self, blocks: Sequence[Block], hidden: Sequence[Tensor], vocabulary: Vocabulary) -> list[Proposal]:
        config, counts, joined = self.config, [len(rows) for rows in hidden], torch.cat(list(hidden))
        found = vocabulary.top(joined, config.selector_top_k, config.output_multiplier, config.softcap)
        parts = [torch.split(part, counts) for part in (*found, selector.project(joined, self._selector.projection,
                                                                                 self._numerics))]  # fmt: skip
        ids, unary, g = (pad_sequence(list(part), batch_first=True) for part in parts)
        path = selector.walk(
            head.Candidates(ids, unary),
            g,
            self._selector,
            torch.tensor([block.anchor for block in blocks], device=self.device),
            torch.tensor([block.sampling.temperature for block in blocks], dtype=torch.float32, device=self.device),
            self._uniforms(blocks, ids.shape[1]),
            self._numerics,
        )
        made = [
            Proposal(path.tokens[at, :count], SparseLaw(ids[at, :count], path.q[at, :count]))
            for at, count in enumerate(counts)
        ]
        record(blocks, "candidates", parts[0])
        record(blocks, "unary", parts[1])
        record(blocks, "scores", [path.scores[at, :count] for at, count in enumerate(counts)])
        record(blocks, "q", [each.law.q for each in made if each.law])
        return made

    def _uniforms(self, blocks: Sequence[Block], steps: int) -> Tensor:
        """FP32 [B, steps], 0 where a block has none."""
        coins = torch.zeros(len(blocks), steps, device=self.device)
        for row, block in zip(coins, blocks, strict=True):
            if block.uniforms is not None:
                own = block.uniforms[:steps]
                row[: len(own)] = own
        return coins


def write_rings(
    rings: Rings, spans: Sequence[Span], weights: materialize.ContextWeights, theta: float, eps: float,
    numerics: Numerics,
) -> None:  # fmt: skip
    """Project the context rows of several lanes at once and write them into the rings.

    Of a span longer than the ring only the last S rows are projected.

    Clauses: CTX-012, CTX-013, CTX-014. Source: Infernix include/infernix/ops/context_kv_materialize.h,
    src/models/qwen3_5/execution/draft.cpp.
    """
    kept = [Span(span.lane, span.c[-rings.slots :], span.positions[-rings.slots :]) for span in spans]
    positions = torch.cat([span.positions for span in kept])
    lanes = torch.cat([torch.full_like(span.positions, span.lane) for span in kept])
    keys, values = _project(torch.cat([span.c for span in kept]), positions, weights, theta, eps, numerics)
    rings.write(lanes, positions, keys, values)


def _project(
    c: Tensor, positions: Tensor, weights: materialize.ContextWeights, theta: float, eps: float, numerics: Numerics
) -> tuple[Tensor, Tensor]:
    """Keys and values [T, L, KV, D]."""
    turn = rope.tables(positions, theta, weights.k_norm.shape[1], numerics)
    return materialize.keys(c, weights, turn, eps, numerics), materialize.values(c, weights, numerics)


def _join(held: dict[str, Tensor], layers: Sequence[int]) -> materialize.ContextWeights | None:
    """The context-role weights of `layers`; `held` then has views of them. None where there are no layers."""
    if not layers:
        return None

    def joined(name: str) -> Tensor:
        names = [f"layers.{layer}.self_attn.{name}.weight" for layer in layers]
        together = torch.cat([held[each] for each in names])
        held.update(zip(names, together.chunk(len(names)), strict=True))
        return together

    norms = torch.stack([held[f"layers.{layer}.self_attn.k_norm.weight"] for layer in layers])
    return materialize.ContextWeights(joined("k_proj"), joined("v_proj"), norms)
