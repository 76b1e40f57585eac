"""Attention in PyTorch.

Where queries, keys and values have one dtype, the library's fused attention runs, which never holds all scores. Else
keys and values come in parts (the stored rows, the own ones), each in its own dtype, and only scores are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import ring
from dflash_accelerated.ops.attention.spans import Spans, Store
from dflash_accelerated.ops.dispatch import dispatched

SCORES = 1 << 24
"""How many scores are held at once; longer prefills go through in strips of query rows."""
FEW = 32
"""Up to so many rows a KV head's queries are joined to one matrix: 1.2 ms become 0.2 for one row over 6,000 keys."""


class Rows(NamedTuple):
    """Keys and values of C rows, each [KV, C, D]."""

    key: Tensor
    value: Tensor


def visibility(queries: Tensor, keys: Tensor, window: int, causal: bool) -> Tensor:
    """Whether the query at each position [R] sees the key at each position [C]: bool [R, C].

    `window` 0 is a full layer; else a key at distance window - 1 is seen and one at distance window is not. A causal
    layer sees no key after its query. Each query counts the window from its own position.

    Clauses: MASK-001 to MASK-006, TGT-001, TGT-002. Source: Infernix
    include/infernix/ops/sliding_window_attention.h; dflash 0.1.0 _attention_mask; transformers 5.24.0 masking_utils.
    """
    behind = queries[:, None] - keys[None, :]
    seen = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
    return seen & (behind.abs() < window) if window else seen


@dispatched("native", "triton")
def attend(
    queries: Tensor, keys: Tensor, values: Tensor, store: Store, layer: int, spans: Spans, window: int, causal: bool,
    keep: bool, numerics: Numerics,
) -> Tensor:  # fmt: skip
    """softmax(q·k / sqrt(D)) · v of a forward's rows over what is stored of their sequences and over each other.

    `queries` [R, QH, D], `keys` [R, KV, D] and the result [R, QH·D] are ACT; `values` [R, KV, D] too, or with `keep`
    as they are stored. Query head h reads KV head floor(h / (QH / KV)). Softmax and sums are FP32. A hidden row has
    weight 0, however large its key or value; slots that hold no live position are not read. With `keep` the own rows
    are stored at their positions, which a store that wraps cannot take before they are read.

    Clauses: DRAFT-007, DRAFT-008, MASK-001 to MASK-006, TGT-001, TGT-002. Source: NInfer docs/maintainer/dflash.md;
    Infernix include/infernix/ops/sliding_window_attention.h.
    """
    one_dtype = queries.dtype == keys.dtype == values.dtype == store.values.dtype
    made = []
    for lane, start, count, first in spans:
        own = slice(first, first + count)
        q, k, v = queries[own], keys[own].transpose(0, 1), values[own].transpose(0, 1)
        live = min(start, store.slots)
        fits = live + count <= store.keys.shape[3]
        if keep or (one_dtype and fits):
            store.keys[lane, layer, :, live : live + count] = k
            store.values[lane, layer, :, live : live + count] = v
        begin = max(0, start - window + 1) if window and start <= store.slots else 0
        if one_dtype and fits:
            rows = Rows(*(held[lane, layer, :, begin : live + count] for held in (store.keys, store.values)))
            made.append(_fused(q, rows, _bias(store, spans, start, count, begin, window, causal, q.dtype)))
        else:
            stored = Rows(*(held[lane, layer, :, begin:live] for held in (store.keys, store.values)))
            seen = _seen(store, start, count, begin, window, causal, q.device)
            made.append(attend_rows(q, [stored, Rows(k, v)], seen, numerics))
    return made[0] if len(made) == 1 else torch.cat(made)


def _seen(store: Store, start: int, count: int, begin: int, window: int, causal: bool, device: torch.device) -> Tensor:
    """Which slots from `begin` on, and then which own rows, each own row sees: bool [count, C + count]."""
    own = torch.arange(start, start + count, device=device)
    return visibility(own, torch.cat((ring.positions_held(start, store.slots, device)[begin:], own)), window, causal)


def _bias(
    store: Store, spans: Spans, start: int, count: int, begin: int, window: int, causal: bool, dtype: torch.dtype
) -> Tensor | None:
    """What is added to scores [count, C + count]: minus infinity where a row is hidden. None where all are seen."""
    first = max(begin, start - store.slots)
    if not (causal and count > 1) and not (window and start + count - 1 - first >= window):
        return None
    key = (store.slots, start, count, begin, window, causal)
    if key not in spans.masks:
        seen = _seen(store, start, count, begin, window, causal, spans.device)
        spans.masks[key] = torch.zeros(seen.shape, dtype=dtype, device=spans.device).masked_fill(~seen, -torch.inf)
    return spans.masks[key]


def _fused(queries: Tensor, rows: Rows, bias: Tensor | None) -> Tensor:
    """The library's attention of queries [R, QH, D]: [R, QH·D]."""
    count, heads, dim = queries.shape
    kv_heads = rows.key.shape[0]
    groups = heads // kv_heads
    grouped = queries.view(count, kv_heads, groups, dim).permute(1, 2, 0, 3)
    if count <= FEW:
        grouped, key, value = grouped.reshape(1, kv_heads, groups * count, dim), rows.key[None], rows.value[None]
        bias = None if bias is None else bias.repeat(groups, 1)
    else:
        key, value = (part[:, None].expand(-1, groups, -1, -1) for part in rows)
    made = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=bias)
    return made.view(kv_heads, groups, count, dim).permute(2, 0, 1, 3).reshape(count, heads * dim)


def attend_rows(queries: Tensor, parts: Sequence[Rows], visible: Tensor, numerics: Numerics) -> Tensor:
    """The same over parts in any dtypes, in FP32.

    `queries` [R, QH, D]; `visible` bool [R, C] over the parts' rows one after another; result ACT [R, QH·D]. Rows that
    must not be read at all are left out of `parts` by the caller.

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
