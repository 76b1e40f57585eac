"""Ends: how many of a round's licensed tokens are kept, and why a request ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

NONE, STRING, TOKEN, OUTPUT_LIMIT, CONTEXT_CAPACITY = range(5)
"""Why a request ends."""


class Preview(NamedTuple):
    """kept: N. terminal: 1 where the request ends with this round."""

    kept: int
    terminal: int


class Scan(NamedTuple):
    """kept: N. reason: as above. matched: the stop string's place, or -1. text_end: bytes that are shown."""

    kept: int
    terminal: int
    reason: int
    matched: int
    text_end: int
    refused: int = 0


class Written(NamedTuple):
    """tokens: [N] int64, the new ones. terminal: 1 where a stop id ends them."""

    tokens: Array
    terminal: int


def preview(licensed: Array, stop_ids: Array, remaining: int, profile: Profile) -> Preview:
    """How many of the licensed tokens [L] are kept, with `remaining` tokens left of the budget.

    Raises RequestError if nothing is licensed or nothing remains.

    Clause: STOP-003
    Source: NInfer docs/maintainer/dflash.md, commit; dflash 0.1.0 dflash_generate.
    """
    if len(licensed) < 1 or remaining < 1:
        raise RequestError(
            f"stop.preview: {len(licensed)} licensed, {remaining} remaining, expected at least 1 of each"
        )
    affordable = licensed[:remaining]
    kept = through_first_stop(affordable, stop_ids)
    stopped = bool(np.isin(affordable[kept - 1], stop_ids))
    return Preview(kept, int(stopped or kept == remaining))


def through_first_stop(tokens: Array, stop_ids: Array) -> int:
    """How many of tokens [L] stand up to the first stop id, itself included; all of them if there is none.

    Clause: STOP-001
    Source: NInfer docs/maintainer/dflash.md, commit; vllm-project/vllm pull 12193.
    """
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return index + 1
    return len(tokens)


def scan(
    licensed: Array, texts: Array, lengths: Array, before: Array, strings: Array, string_lengths: Array,
    stop_ids: Array, show_stop: int, output_left: int, context_left: int, profile: Profile,
) -> Scan:  # fmt: skip
    """The end of a round of tokens [L], whose bytes stand one after the other in texts [X], after the text `before`.

    Raises RequestError for a round that is empty or larger than a limit, and for bytes that do not add up.

    Clause: STOP-005
    Source: Infernix src/models/qwen3_5/frontend/output_session.cpp.
    """
    fits(len(licensed), output_left, context_left)
    text, wanted = before.astype(np.uint8).tobytes(), pieces("strings", strings, string_lengths)
    for index, own in enumerate(pieces("texts", texts, lengths)):
        known, text = len(text), text + own
        found = first_match(text, wanted, known)
        if found is not None:
            return Scan(index + 1, 1, STRING, found.place, cut_at(found, text))
        if licensed[index] in stop_ids:
            return Scan(index + 1, 1, TOKEN, -1, shown_to(known, len(text), show_stop))
    reason = limit(len(licensed), output_left, context_left)
    return Scan(len(licensed), int(reason != NONE), reason, -1, len(text))


class Match(NamedTuple):
    """start: the byte where a stop string's match starts. place: that of the string in its list."""

    start: int
    place: int


def first_match(text: bytes, strings: Sequence[bytes], known: int) -> Match | None:
    """The stop string that ends the text, of those that the bytes from `known` on complete.

    Clause: STOP-006
    Source: Infernix src/models/qwen3_5/frontend/output_session.cpp.
    """
    found = [Match(completed_at(text, string, known), place) for place, string in enumerate(strings)]
    return min((match for match in found if match.start >= 0), default=None)


def completed_at(text: bytes, string: bytes, known: int) -> int:
    """Where a match of `string` starts that ends after the first `known` bytes, wherever it starts; -1 if nowhere.

    Clause: STOP-008
    Source: Infernix src/models/qwen3_5/frontend/output_session.cpp.
    """
    return text.find(string, max(0, known - len(string) + 1))


def cut_at(match: Match, text: bytes) -> int:
    """How many bytes of the text are shown, where a stop string was found in it.

    Clause: STOP-007
    Source: Infernix src/models/qwen3_5/frontend/output_session.cpp.
    """
    return match.start


def shown_to(before_stop: int, after_stop: int, show_stop: int) -> int:
    """How many bytes are shown of a text that a stop token ends.

    Clause: STOP-009
    Source: Infernix src/models/qwen3_5/frontend/output_session.cpp.
    """
    return after_stop if show_stop else before_stop


def limit(count: int, output_left: int, context_left: int) -> int:
    """Which limit `count` tokens reach, if any.

    Clause: STOP-010
    Source: Infernix src/models/qwen3_5/frontend/output_session.cpp.
    """
    if count < min(output_left, context_left):
        return NONE
    return CONTEXT_CAPACITY if context_left < output_left else OUTPUT_LIMIT


def fits(count: int, output_left: int, context_left: int) -> None:
    """Raise RequestError unless a round has a token and stays within both limits.

    Clause: STOP-011
    Source: Infernix src/models/qwen3_5/frontend/output_session.cpp.
    """
    if not 1 <= count <= min(output_left, context_left):
        raise RequestError(f"stop.scan: {count} tokens, expected 1 to {min(output_left, context_left)}, what remains")


def pieces(name: str, content: Array, lengths: Array) -> list[bytes]:
    """The texts of the given lengths that stand one after the other. Raises RequestError if they do not add up."""
    if (lengths < 0).any() or lengths.sum() != len(content) or (name == "strings" and not lengths.all()):
        raise RequestError(f"stop.scan: {name} of {lengths.tolist()} bytes, expected to share {len(content)}")
    data, ends = content.astype(np.uint8).tobytes(), np.cumsum(lengths)
    return [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def written(buffer: Array, prompt: int, written: int, mask_id: int, stop_ids: Array, profile: Profile) -> Written:
    """The new tokens of an output buffer [T], which holds mask ids past its `written` slots; a value cuts nothing.

    Raises RequestError for a count that the buffer cannot hold.

    Clause: STOP-013
    Source: z-lab/dflash issue 73 and pull 76.
    """
    if not 0 <= prompt <= written <= len(buffer):
        raise RequestError(
            f"stop.written: {prompt} prompt, {written} written slots, expected 0 to {len(buffer)} in order"
        )
    new = new_slots(buffer, prompt, written)
    kept = through_first_stop(new, stop_ids)
    return Written(new[:kept], int(kept > 0 and new[kept - 1] in stop_ids))


def new_slots(buffer: Array, prompt: int, written: int) -> Array:
    """The slots that may hold a stop: those after the prompt that a round has written.

    Clause: STOP-012
    Source: z-lab/dflash@44947fb dflash/model.py and tests/test_model.py.
    """
    return buffer[prompt:written]
