"""What a request may ask for, and the request that is made of it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile
from torch import Tensor

from dflash_accelerated.arguments import (
    check_allowed,
    check_callable,
    check_id_set,
    check_ids,
    check_integer,
    check_pieces,
    check_strings,
    check_switch,
)
from dflash_accelerated.masks import Grammar
from dflash_accelerated.requests import Observer, Pieces, Request
from dflash_accelerated.settings import Sampling

SEED_LIMIT = 2**64 - 1
CONTEXT_LIMIT = 2**31 - 1

Ids = Sequence[int] | npt.NDArray[np.integer[Any]] | Tensor
IdSet = Ids | Set[int]


class Options(TypedDict, total=False):
    """What a request may ask for beyond prompt and length. Numbers count by their FP32 value, and may be NumPy's.

    `temperature` 0 is greedy, and `seed` keys every draw. `stop_ids` None takes the target's own. The prompt is read
    `prefill_chunk` rows at a time, at most the engine's; None takes these. `observer` gets each round's stage tensors.
    `draft_tokens` are the most proposals of a round of this request, at most the engine's; None takes these.

    `top_k` keeps the best candidates: in profile zlab 0 keeps all, in profile ninfer 1 to 19 keep as many and every
    other value 20. `top_p` keeps the candidate at which the cumulative probability reaches it, and those before.
    `min_p` (profile ninfer) drops candidates below that share of the best one's probability. `presence_penalty` is
    subtracted from the logit of each token that was emitted, and `frequency_penalty` as often as it was (profile
    ninfer; below 0 they are rewards). `allowed_tokens` are the only ids that may be emitted. `grammar` is called with
    the tokens emitted so far, proposals under test included, and gives the mask, bool [public], of what may follow; it
    is never called with a text that it forbids.

    `pieces` are the bytes of each token, a list by id or a callable; with them rounds have a `text`. The first of
    `stop_strings` in it ends the answer and is cut off. A stop id's own piece is part of it only if `show_stop`.
    """

    temperature: float
    seed: int
    stop_ids: IdSet | None
    prefill_chunk: int | None
    observer: Observer | None
    draft_tokens: int | None
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    allowed_tokens: IdSet | None
    grammar: Grammar | None
    pieces: Sequence[bytes] | Pieces | None
    stop_strings: Sequence[str | bytes]
    show_stop: bool


class Limits(NamedTuple):
    """What an engine lets a request ask for, and what it gives to one that does not ask."""

    profile: Profile
    public: int
    max_context: int
    draft_tokens: int
    prefill_chunk: int
    stop_ids: tuple[int, ...]


def read_request(
    limits: Limits, prompt_ids: object, max_new_tokens: object, *,
    temperature: object = 0.0, seed: object = 0, stop_ids: object = None, prefill_chunk: object = None,
    observer: Observer | None = None, draft_tokens: object = None, top_k: object = 0, top_p: object = 1.0,
    min_p: object = 0.0, presence_penalty: object = 0.0, frequency_penalty: object = 0.0,
    allowed_tokens: object = None, grammar: Grammar | None = None, pieces: object = None, stop_strings: object = (),
    show_stop: object = False,
) -> Request:  # fmt: skip
    """The request that these arguments make, each of them checked. Raises RequestError that names the argument."""
    public = limits.public
    prompt = check_ids("prompt_ids", prompt_ids, public)
    if not 1 <= len(prompt) <= limits.max_context:
        raise RequestError(f"prompt_ids has {len(prompt)} tokens, expected 1 to {limits.max_context}")
    chunk = limits.prefill_chunk if prefill_chunk is None else prefill_chunk
    drafts = limits.draft_tokens if draft_tokens is None else draft_tokens
    sampling = (temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty)
    return Request(
        prompt=prompt,
        max_new_tokens=check_integer("max_new_tokens", max_new_tokens, 1, CONTEXT_LIMIT),
        sampling=Sampling.checked(limits.profile, *sampling),
        seed=check_integer("seed", seed, 0, SEED_LIMIT),
        stop_ids=frozenset(limits.stop_ids if stop_ids is None else check_id_set("stop_ids", stop_ids, public)),
        prefill_chunk=check_integer("prefill_chunk", chunk, 1, limits.prefill_chunk),
        capacity=limits.max_context,
        drafts=check_integer("draft_tokens", drafts, 0, limits.draft_tokens),
        observer=check_callable("observer", observer),
        allowed=check_allowed(allowed_tokens, public),
        grammar=check_callable("grammar", grammar),
        pieces=check_pieces(pieces, public),
        stop_strings=check_strings(stop_strings, pieces is not None),
        show_stop=check_switch("show_stop", show_stop),
    )
