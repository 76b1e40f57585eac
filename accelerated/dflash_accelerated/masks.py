"""Which ids a request may say: a fixed set, a grammar, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from dflash_spec.errors import RequestError
from numpy.typing import NDArray
from torch import Tensor

Grammar = Callable[[tuple[int, ...]], "NDArray[np.bool_] | Tensor"]
"""From the tokens that a request has said to a mask, bool [public], of what it may say next."""


def of_ids(ids: Sequence[int], public: int, device: torch.device) -> Tensor:
    """The mask bool [public] of these ids."""
    mask = torch.zeros(public, dtype=torch.bool, device=device)
    mask[torch.tensor(ids, device=device)] = True
    return mask


def allowed_rows(
    fixed: Tensor | None, grammar: Grammar | None, said: tuple[int, ...], proposals: Sequence[int], public: int,
    device: torch.device,
) -> Tensor | None:  # fmt: skip
    """What each column of a verify pass may say, bool [P + 1, public]; None where there is no mask.

    `fixed` bool [public]. The grammar is asked for column i about what was said and d_1 to d_i, but never about a text
    that it forbids itself: a forbidden proposal is rejected, so nobody reads the columns after it.

    Raises RequestError for an answer that is no mask, and whatever the grammar raises.
    """
    if grammar is None:
        return None if fixed is None else fixed.expand(len(proposals) + 1, -1)
    rows: list[Tensor] = []
    for column in range(len(proposals) + 1):
        mask = _checked(grammar((*said, *proposals[:column])), public).to(device)
        rows.append(mask if fixed is None else mask & fixed)
        if column < len(proposals) and not rows[-1][proposals[column]]:
            break
    return torch.stack(rows + rows[-1:] * (len(proposals) + 1 - len(rows)))


def _checked(mask: object, public: int) -> Tensor:
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_:
        mask = torch.from_numpy(mask.copy())
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = mask.dtype if isinstance(mask, np.ndarray | Tensor) else type(mask).__name__
        raise RequestError(f"grammar gave {found}, expected an array or tensor of bool [{public}]")
    if mask.shape != (public,):
        raise RequestError(f"grammar gave a mask of shape {list(mask.shape)}, expected [{public}]")
    return mask
