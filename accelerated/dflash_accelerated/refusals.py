"""Why a round decided nothing, found out after the fact."""

from __future__ import annotations

import torch
from dflash_spec.errors import DFlashError, RequestError, TensorError

from dflash_accelerated.decisions import Decision, Turn


def of(turn: Turn, decision: Decision, start: int, public: int) -> DFlashError:
    """TensorError for logits that hold what they must not, RequestError for a mask that leaves nothing to say.

    `start` is the position of the turn's first row.

    Clauses: LAW-013, PROC-022. Source: Infernix include/infernix/ops/sampling.h; vllm-project/vllm pull 50183.
    """
    column = decision.accepted
    where = f"position {start + column}"
    logits = turn.logits.taken[column, :public].to(torch.float32)
    bad = torch.isnan(logits) | (logits == torch.inf)
    if bad.any():
        first = int(bad.to(torch.int8).argmax())
        return TensorError(f"target logits at {where}: {float(logits[first])} at id {first}, expected finite numbers")
    law = turn.proposal.law
    if column < len(turn.proposal.tokens) and law is not None and torch.isnan(law.q[column]).any():
        return TensorError(f"the draft's law at {where}: NaN, expected probabilities")
    left = logits > -torch.inf
    if not left.any():
        return TensorError(f"target logits at {where}: all minus infinity, expected a finite one")
    if turn.allowed is not None and not (left & turn.allowed[column]).any():
        return RequestError(f"no allowed id is possible at {where}, expected a mask that leaves one")
    return TensorError(f"penalised logits at {where}: no largest finite one, expected penalties that leave one")
