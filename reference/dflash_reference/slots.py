"""State slots: rings, recurrent state and continuation hidden of N states side by side, copied bit for bit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import StateError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

WHOLE, LOCAL_FORK, ZERO = range(3)


class Slots(NamedTuple):
    """rings_next: [N, L, S, X], in CTX_K. recurrent_next: [N, Y]. hidden_next: [N, H], in ACT."""

    rings_next: Array
    recurrent_next: Array
    hidden_next: Array


def copy(
    rings: Array, recurrent: Array, hidden: Array, source: int, destination: int, kind: int, segment: int,
    profile: Profile,
) -> Slots:  # fmt: skip
    """The slots after a copy of `source` to `destination`, through the host in segments of `segment` bytes if not 0.

    Raises StateError for a slot that is not there or a kind that is none.
    """
    slots = Slots(rings.copy(), recurrent.copy(), hidden.copy())
    if kind not in (WHOLE, LOCAL_FORK, ZERO) or segment < 0 or not {source, destination} <= set(range(len(rings))):
        raise StateError(
            f"state.copy: kind {kind} from slot {source} to {destination} in segments of {segment} bytes, expected "
            f"0 to 2, slots below {len(rings)}, and at least 0"
        )
    for part in carried(slots, kind):
        part[destination] = 0.0 if kind == ZERO else through(part[source], segment)
    return slots


def carried(slots: Slots, kind: int) -> tuple[Array, ...]:
    """The components that a copy of this kind changes.

    Clause: STATE-015
    Source: Infernix tests/models/qwen3_5/test_state_image.cpp.
    """
    return (slots.rings_next,) if kind == LOCAL_FORK else slots


def through(part: Array, segment: int) -> Array:
    """One component as it arrives, bit for bit, by way of host segments of `segment` bytes, the last of them shorter.

    Clause: STATE-014
    Source: Infernix tests/models/qwen3_5/test_state_image.cpp.
    """
    content = part.tobytes()
    parts = [content[at : at + segment] for at in range(0, len(content), segment)] if segment else [content]
    return np.frombuffer(b"".join(parts), dtype=part.dtype).reshape(part.shape)
