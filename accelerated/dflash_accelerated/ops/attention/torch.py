"""Attention in PyTorch.

Keys and values come in parts (a cache, a block), each in its own dtype; only their scores are concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics

SCORES = 1 << 24
"""How many scores are held at once; longer prefills go through in strips of query rows."""


class Rows(NamedTuple):
    """Keys and values of C rows, each [KV, C, D]."""

    key: Tensor
    value: Tensor


def visibility(queries: Tensor, keys: Tensor, window: int, causal: bool) -> Tensor:
    """Whether the query at each position [R] sees the key at each position [C]: bool [R, C].

    `window` 0 is a full layer; else a key at distance window - 1 is seen and one at distance window is not. A causal
    layer sees no key after its query. Each query counts the window from its own position.

    Clauses: MASK-001 to MASK-004, MASK-006, TGT-001, TGT-002. Source: Infernix
    include/infernix/ops/sliding_window_attention.h; dflash 0.1.0 _attention_mask.
    """
    behind = queries[:, None] - keys[None, :]
    seen = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
    return seen & (behind.abs() < window) if window else seen


def attend(queries: Tensor, parts: Sequence[Rows], visible: Tensor, numerics: Numerics) -> Tensor:
    """softmax(q·k / sqrt(D)) · v over the visible rows of all parts, in FP32.

    `queries` [R, QH, D]; `visible` bool [R, C] over the parts' rows one after another; result ACT [R, QH·D]. Query head
    h reads KV head floor(h / (QH / KV)). A hidden row has weight 0, however large its key or value; rows that must not
    be read at all are left out of `parts` by the caller.

    Clauses: DRAFT-007, DRAFT-008. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/sliding_window_attention.h.
    """
    rows, heads, _ = queries.shape
    wide = [Rows(part.key.to(torch.float32), part.value.to(torch.float32)) for part in parts]
    strip = max(1, SCORES // max(1, heads * visible.shape[1]))
    strips = [_attend_strip(queries[at : at + strip], wide, visible[at : at + strip]) for at in range(0, rows, strip)]
    return numerics.activation(torch.cat(strips))


def _attend_strip(queries: Tensor, parts: Sequence[Rows], visible: Tensor) -> Tensor:
    rows, heads, dim = queries.shape
    kv_heads = parts[0].key.shape[0]
    grouped = queries.to(torch.float32).view(rows, kv_heads, -1, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
    scores = torch.cat([grouped @ part.key.transpose(1, 2) for part in parts], dim=2) * dim**-0.5
    scores = scores.view(kv_heads, heads // kv_heads, rows, -1).masked_fill(~visible, -torch.inf)
    weights = torch.softmax(scores, dim=-1).view(kv_heads, grouped.shape[1], -1)
    shares = torch.split(weights, [part.value.shape[1] for part in parts], dim=2)
    attended = torch.stack([share @ part.value for share, part in zip(shares, parts, strict=True)]).sum(0)
    return attended.view(kv_heads, -1, rows, dim).permute(2, 0, 1, 3).reshape(rows, heads * dim)
