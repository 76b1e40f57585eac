"""DFlash2 drafts: DFlash, except in its context's storage, its block's extent, its layers and its choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from dflash_spec.config import DFlash2Config
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dflash_accelerated.graphs import Profiles, Room, Tensors
from dflash_accelerated.joint import Proposals
from dflash_accelerated.layers import Rounded
from dflash_accelerated.models.dflash import DFlashDraft, record
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import attention, head, qkv, selector
from dflash_accelerated.ops.acceptance import SparseLaw
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.protocols import Block, LendingVocabulary, Proposal
from dflash_accelerated.rings import Rings, RingState
from dflash_accelerated.rounds import Columns, dflash2_columns
from dflash_accelerated.transfers import listed


class DFlash2Draft(DFlashDraft):
    """The model of a `DFlash2DraftModel` folder: the block forward with a convolution around both branches of a layer,
    and a walk over each slot's best candidates.

    Clauses: BLK-008, BLK-009, CONV-001 to CONV-008, CTX-011 to CTX-015, DRAFT-015, DRAFT-016, HEAD-005 to HEAD-009,
    SEL-001 to SEL-007. Source: NInfer docs/maintainer/dflash.md; dflash 0.1.0 DFlash2DraftModel.
    """

    config: DFlash2Config
    convolved = True
    borrows = ("embed", "top")
    _reserved = False

    def __init__(
        self, config: DFlash2Config, tensors: Mapping[str, Tensor], numerics: Numerics, device: torch.device
    ) -> None:
        """`tensors` by published name, any float dtype; they are rounded to the numerics' dtypes and moved."""
        super().__init__(config, tensors, numerics, device)
        held = Rounded(tensors, numerics, device)
        names = ("predecessor_codebook", "successor_codebook")
        projection = held.product(["candidate_selector.hidden_projection.weight"])
        self._selector = selector.Selector(projection, *(held[f"candidate_selector.{name}"] for name in names))
        slots, heads = max(config.windows) or 1, (config.kv_heads, config.head_dim)
        self.rings = Rings.empty(config.layers - self._full_layers, slots, *heads, numerics, device, tail=self.widest)

    @property
    def _full_layers(self) -> int:
        return self.config.windows.count(0)

    @property
    def _stores(self) -> list[attention.Store]:
        return [self.rings.store, self._pool.store]

    def _staged(self, numerics: Numerics) -> bool:
        return qkv.prepared_staged(numerics)

    def _places(self) -> tuple[Sequence[int], Sequence[int]]:
        windows = self.config.windows
        groups = [0 if window else 1 for window in windows]
        return groups, [groups[:layer].count(group) for layer, group in enumerate(groups)]

    def open(self, capacity: int) -> RingState:
        windows = self.config.windows
        if not self.rings.lanes.free and not self._reserved:
            self.rings.reserve(len(self.rings.store.keys) + 1)
        pages = self._pool.open(capacity) if 0 in windows else None
        return RingState(self.rings, pages, windows)

    def reserve(self, lanes: int, capacity: int) -> None:
        super().reserve(lanes, capacity)
        self.rings.reserve(lanes)
        self._reserved = True

    def planned_bytes(self, lanes: int, capacity: int) -> int:
        return super().planned_bytes(lanes, capacity) + self.rings.planned_bytes(lanes)

    def held_bytes(self) -> dict[str, int]:
        held = super().held_bytes()
        weights = self._selector.projection.held_bytes
        weights += self._selector.predecessor.nbytes + self._selector.successor.nbytes
        return held | {"weights": held["weights"] + weights, "cache": held["cache"] + self.rings.held_bytes}

    def products(self) -> list[tuple[Product, str]]:
        return [*super().products(), (self._selector.projection, "head")]

    def _columns(self, block: Block) -> Columns:
        settings = (block.state.length, block.drafts, block.extent)
        return dflash2_columns(self._numerics.profile, block.anchor, self.config.mask_id, *settings)

    def _rooms(self, profiles: Profiles) -> tuple[list[Room], list[Room]]:
        requests, rows = profiles.batch, profiles.rows
        takes = [Room(rows, torch.int64), Room(requests, torch.int64), Room(requests, torch.float32)]
        listed = rows * self.config.selector_top_k
        gives = [Room(rows, torch.int64), Room(listed, torch.int64), Room(listed, torch.float32)]
        return [*takes, Room(rows, torch.float32)], gives

    def _controls(self, blocks: Sequence[Block], counts: Sequence[int]) -> Tensors:
        """Anchors I64 [B], temperatures FP32 [B] and uniforms FP32 [B, K]."""
        anchors = listed([block.anchor for block in blocks], torch.int64, self.device)
        heat = [block.sampling.temperature for block in blocks]
        temperatures = listed(heat, torch.float32, self.device)
        return anchors, temperatures, self._uniforms(blocks, max(counts) - 1)

    def _found(
        self,
        hidden: Tensor,
        counts: Sequence[int],
        vocabulary: LendingVocabulary,
        blocks: Sequence[Block],
        *controls: Tensor,
    ) -> Tensors:
        config, (anchors, temperatures, uniforms) = self.config, controls
        found = vocabulary.top(hidden, config.selector_top_k, config.output_multiplier, config.softcap)
        parts = (*found, selector.project(hidden, self._selector.projection, self._numerics))
        ids, unary, g = (padded(part, counts) for part in parts)
        path = selector.walk(
            head.Candidates(ids, unary), g, self._selector, anchors, temperatures, uniforms, self._numerics
        )
        record(blocks, "candidates", found.ids, counts)
        record(blocks, "unary", found.unary, counts)
        if blocks:
            for stage, rows in (("scores", path.scores), ("q", path.q)):
                record(blocks, stage, torch.cat([own[:count] for own, count in zip(rows, counts, strict=True)]), counts)
        return path.tokens, ids, path.q

    def _choose(
        self, blocks: Sequence[Block], found: Tensors, counts: list[int], vocabulary: LendingVocabulary
    ) -> Proposals:
        tokens, ids, q = found

        def proposals() -> list[Proposal]:
            return [
                Proposal(tokens[at, :count], SparseLaw(ids[at, :count], q[at, :count]))
                for at, count in enumerate(counts)
            ]

        return Proposals([own[:count] for own, count in zip(tokens.tolist(), counts, strict=True)], proposals)

    def _ends(self, blocks: Sequence[Block], vocabulary: LendingVocabulary) -> None:
        """It is the walk that proposes."""

    def _uniforms(self, blocks: Sequence[Block], steps: int) -> Tensor:
        """FP32 [B, steps], 0 where a block has none."""
        coins = torch.zeros(len(blocks), steps, dtype=torch.float32, device=self.device)
        for row, block in zip(coins, blocks, strict=True):
            if block.uniforms is not None:
                own = block.uniforms[:steps]
                row[: len(own)] = own
        return coins


def padded(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Rows [N, ...], `counts` of each block, as [B, most, ...]."""
    if len(set(counts)) == 1:
        return rows.view(len(counts), counts[0], *rows.shape[1:])
    return pad_sequence(list(torch.split(rows, list(counts))), batch_first=True)
