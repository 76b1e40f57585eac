"""Where a text ends: stop strings, stop ids and two limits, watched token by token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from dflash_spec.errors import RequestError

FinishReason = Literal["stop", "stop_string", "length", "capacity", "error"]


class Ending(NamedTuple):
    """How many licensed tokens are kept, why the request ends with them (None where it goes on), the place of the stop
    string in its list (else -1), and how many bytes of the text are shown, those before the round included."""

    kept: int
    reason: FinishReason | None
    matched: int
    text_end: int


def scan(
    licensed: Sequence[int],
    pieces: Sequence[bytes],
    before: bytes,
    strings: Sequence[bytes],
    stop_ids: Collection[int],
    show_stop: bool,
    output_left: int,
    context_left: int,
) -> Ending:
    """The end of a round of tokens whose texts are `pieces`, after the text `before`.

    At each token a stop string that it completes comes first, the one that begins earliest and then the one declared
    first; then a stop id. The text is cut where the string begins, and shows a stop id's own piece only if `show_stop`.

    Raises RequestError for a round that is empty or larger than a limit.

    Clauses: STOP-005 to STOP-011. Source: Infernix src/models/qwen3_5/frontend/output_session.cpp.
    """
    left = min(output_left, context_left)
    if not 1 <= len(licensed) <= left:
        raise RequestError(f"a round of {len(licensed)} tokens, expected 1 to {left}, what is left")
    text, known = before + b"".join(pieces), len(before)
    for at, (token, piece) in enumerate(zip(licensed, pieces, strict=True)):
        end = known + len(piece)
        if strings:
            starts = [text.find(string, max(0, known + 1 - len(string)), end) for string in strings]
            found = [(start, place) for place, start in enumerate(starts) if start >= 0]
            if found:
                start, place = min(found)
                return Ending(at + 1, "stop_string", place, start)
        if token in stop_ids:
            return Ending(at + 1, "stop", -1, end if show_stop else known)
        known = end
    reason: FinishReason | None = None
    if len(licensed) == left:
        reason = "capacity" if context_left < output_left else "length"
    return Ending(len(licensed), reason, -1, len(text))


def settled(text: bytes, strings: Sequence[bytes]) -> int:
    """How many bytes of a text may be shown while it goes on: all but an end with which a stop string begins."""
    longest = min(len(text), max(map(len, strings), default=1) - 1)
    held = (count for count in range(longest, 0, -1) if any(string.startswith(text[-count:]) for string in strings))
    return len(text) - next(held, 0)


def pieces_of(data: bytes, lengths: Sequence[int], what: str) -> list[bytes]:
    """Texts of the given lengths that stand one after the other. Raises RequestError if they do not add up."""
    if min(lengths, default=0) < 0 or sum(lengths) != len(data):
        raise RequestError(f"{what}: lengths {list(lengths)}, expected some that add up to {len(data)} bytes")
    ends = [sum(lengths[: at + 1]) for at in range(len(lengths))]
    return [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def written(
    buffer: Sequence[int], prompt: int, filled: int, stop_ids: Collection[int]
) -> tuple[list[int], bool]:  # fmt: skip
    """The new tokens of a buffer of which the first `filled` slots hold tokens, and whether a stop id ends them.

    Slots past them are not looked at, and no value is taken for an end but a stop id. Raises RequestError.

    Clauses: STOP-012, STOP-013. Source: z-lab/dflash@44947fb dflash/model.py, issue 73 and pull 76.
    """
    if not 0 <= prompt <= filled <= len(buffer):
        raise RequestError(
            f"a prompt of {prompt} in {filled} filled slots of {len(buffer)}, expected 0 to all, in order"
        )
    new = list(buffer[prompt:filled])
    stop = next((at for at, token in enumerate(new) if token in stop_ids), None)
    return (new, False) if stop is None else (new[: stop + 1], True)
