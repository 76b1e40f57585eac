"""Acceptance of what equals the target's own tokens. It is decided on the host, which needs those tokens anyway."""

from __future__ import annotations

from collections.abc import Sequence


def matched(proposals: Sequence[int], target: Sequence[int]) -> list[int]:
    """The licensed tokens of P proposals: the longest prefix that equals the P + 1 tokens of the target, then its own.

    The target's tokens are argmaxes, or in sample-and-match its draws; -1 equals nothing, and as the last of the
    licensed tokens is a row that decides none.

    Clauses: LAW-001, LAW-002, LAW-008, LAW-012. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/speculative_round.h; z-lab/dflash@44947fb dflash/model.py.
    """
    accepted = 0
    for proposed in proposals:
        if proposed != target[accepted]:
            break
        accepted += 1
    return [*proposals[:accepted], target[accepted]]
