"""Configs: tap formulas, draft counts, and what else a start may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite


def case(clause: str, catches: str, effect: str = "acceptance", **numbers: Any) -> Case:
    """A case whose slug is its numbers."""
    inputs = {name: np.array(value, dtype=np.int64) for name, value in numbers.items()}
    values = [str(number).replace("-", "minus-") for value in inputs.values() for number in value.reshape(-1)]
    return Case("-".join(values), (clause,), inputs, catches, effect)


@suite("config.taps_half_even")
def taps_half_even(profile: Profile) -> Iterator[Case]:
    """Official depths, both kinds of tie, and targets on which ids collapse."""
    shifted = "ids are truncated or rounded half up"
    for layers, taps in ((36, 5), (36, 2), (36, 8), (28, 5), (32, 5), (64, 5), (40, 8), (48, 8), (52, 5), (40, 9),
                         (60, 6), (62, 5), (9, 3), (6, 3), (5, 2)):  # fmt: skip
        yield case("CFG-030", shifted, target_layers=layers, taps=taps)
    for layers in (36, 7, 1):
        yield case("CFG-031", "a single tap divides by zero, or is block 1", target_layers=layers, taps=1)
    for layers, taps in ((36, 0), (3, 4)):
        yield case("CFG-032", "a count that the target cannot feed is taken", target_layers=layers, taps=taps)
    for layers, taps in ((4, 2), (4, 4), (6, 5), (7, 5), (3, 2)):
        yield case("CFG-033", "a shallow target feeds one layer several times", target_layers=layers, taps=taps)


@suite("config.taps_integer_step")
def taps_integer_step(profile: Profile) -> Iterator[Case]:
    """Depths where the step divides evenly and where it does not, and targets on which ids collapse."""
    for layers, taps in ((36, 5), (40, 8), (60, 6), (62, 5), (64, 5), (36, 2), (5, 3)):
        yield case("CFG-034", "ids of another formula are taken", target_layers=layers, taps=taps)
    yield case("CFG-034", "a single tap divides by zero", "crash", target_layers=36, taps=1)
    for layers, taps in ((36, 0), (3, 4)):
        yield case("CFG-032", "a count that the target cannot feed is taken", target_layers=layers, taps=taps)
    for layers, taps in ((4, 4), (6, 6), (2, 2)):
        yield case("CFG-033", "a shallow target feeds one layer several times", target_layers=layers, taps=taps)


@suite("config.taps_reduced")
def taps_reduced(profile: Profile) -> Iterator[Case]:
    """Even, nearly even, uneven, falling, repeated and missing ids."""
    for ids in ((0, 2, 4), (0, 2, 5), (1, 3, 4), (7,), (0, 1, 2, 3, 4, 5, 6, 7)):
        yield case("CFG-035", "an even stand-in is refused", "crash", target_layers=8, ids=ids)
    for ids in ((0, 1, 4), (1, 2, 7), (5, 3, 1), (2, 2, 2)):
        yield case("CFG-035", "an uneven stand-in is taken", target_layers=8, ids=ids)
    yield case("CFG-029", "a layer past the target is fed", "crash", target_layers=8, ids=(4, 6, 8))
    yield case("CFG-032", "no layer at all is fed", "crash", target_layers=8, ids=())
    yield case("CFG-032", "more taps than layers are taken", target_layers=3, ids=(0, 1, 2, 3))


@suite("config.width")
def width(profile: Profile) -> Iterator[Case]:
    """Requests at both ends of what the profile's rule allows, with and without a block size in the file."""
    if profile.axes["width_rule"] == "free":
        why = "the trained block caps the choice, or a width that no kernel has is taken"
        for block_size, requested in ((0, 1), (0, 15), (8, 15), (0, 0), (0, 16), (16, 0), (0, -1)):
            yield case("CFG-050", why, block_size=block_size, requested=requested)
        return
    for block_size in (16, 10, 8, 1, 0, -1):
        yield case("CFG-051", "the anchor's slot counts as a draft", block_size=block_size, requested=0)
    for block_size, requested in ((16, 7), (8, 15), (0, 3), (16, 20), (16, -1)):
        yield case("CFG-052", "a request is clipped or ignored", block_size=block_size, requested=requested)


@suite("config.width_matched")
def width_matched(profile: Profile) -> Iterator[Case]:
    """A width that is compiled in."""
    for block_size in (10, 1, 0):
        yield case("CFG-051", "the anchor's slot counts as a draft", block_size=block_size, requested=0)
    for block_size, requested in ((10, 9), (10, 10), (10, 8), (0, 15), (0, 16)):
        yield case("CFG-053", "a block of another width is run", "output", block_size=block_size, requested=requested)


@suite("config.width_bounded")
def width_bounded(profile: Profile) -> Iterator[Case]:
    """A block that may only be shortened."""
    yield case("CFG-051", "the anchor's slot counts as a draft", block_size=16, requested=0)
    for block_size, requested in ((16, 15), (16, 1), (16, 16), (8, 9), (16, -1), (0, 15), (0, 16)):
        yield case("CFG-054", "a block wider than the trained one is run", block_size=block_size, requested=requested)


@suite("config.concurrency")
def concurrency(profile: Profile) -> Iterator[Case]:
    """Both ends of the range, and one past each."""
    limit = int(profile.axes["concurrency"])
    for requests in (0, 1, limit, limit + 1) if limit > 1 else (0, 1, 2):
        yield case("CFG-055", "a row past the batch reads another row's state", "output", requests=requests)


@suite("config.head_index", profiles=("ninfer",))
def head_index(profile: Profile) -> Iterator[Case]:
    """Shortlists within and past the public vocabulary of 12."""
    why = "a padding row is proposed, or one token twice"
    for ids in ((3, 1, 11), tuple(range(12)), (0,), (3, 12), (3, -1), (3, 5, 3)):
        yield case("CFG-056", why, "output", token_ids=ids, public=12)
