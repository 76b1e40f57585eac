"""Tap ids: the rules for recorded ones and the formulas for absent ones.

An id is a zero-based target block; its tap is that block's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dflash_spec.config import arguments
from dflash_spec.config import members as read
from dflash_spec.config.members import Members
from dflash_spec.errors import ConfigError

KEY = "target_layer_ids"


def listed(members: Members) -> tuple[int, ...]:
    """The recorded ids in recorded order.

    Clause: CFG-027. Raises ConfigError unless they are a non-empty list of ids.
    """
    ids = read.require(members, KEY)
    if not isinstance(ids, list) or not ids:
        raise members.wrong(KEY, "a non-empty list", "CFG-027")
    return tuple(
        read.index(Members({str(place): value}, members.file, f"{members.path}{KEY}."), str(place))
        for place, value in enumerate(ids)
    )


def check_distinct(ids: Sequence[int]) -> None:
    """Clause: CFG-028. Raises ConfigError where an id occurs twice: the same layer would be fed twice."""
    if len(set(ids)) != len(ids):
        raise ConfigError(f"{KEY}: found {list(ids)}, expected distinct ids", key=KEY, clause="CFG-028")


def check_in_range(ids: Sequence[int], target_layers: int) -> None:
    """Clause: CFG-029. Raises ConfigError unless every id is below the target's depth."""
    for place, layer in enumerate(ids):
        if not 0 <= layer < target_layers:
            raise ConfigError(
                f"{KEY}[{place}]: found {layer}, expected 0 to {target_layers - 1}", key=KEY, clause="CFG-029"
            )


def round_half_even(numerator: int, denominator: int) -> int:
    """The integer nearest numerator / denominator, the even one of two equally near. `denominator` is positive."""
    quotient, rest = divmod(numerator, denominator)
    return quotient + int(2 * rest > denominator or (2 * rest == denominator and quotient % 2 == 1))


def check_counts(target_layers: int, taps: int) -> None:
    """Clause: CFG-032. Raises ConfigError unless there is a tap, and no more taps than target layers."""
    if not 1 <= taps <= target_layers:
        raise ConfigError(f"{taps} taps for {target_layers} target layers, expected 1 to {target_layers}",
                          key=KEY, clause="CFG-032")  # fmt: skip


def check_formula(ids: Sequence[int], target_layers: int) -> None:
    """Clause: CFG-033. Raises ConfigError where a formula's ids collapse: they must rise strictly, in range."""
    rising = all(left < right for left, right in pairwise(ids))
    if not rising or ids[0] < 0 or ids[-1] >= target_layers:
        raise ConfigError(
            f"{KEY}: the formula gives {list(ids)}, expected distinct rising ids below {target_layers}",
            key=KEY, clause="CFG-033",
        )  # fmt: skip


def half_even_taps(target_layers: int, taps: int) -> tuple[int, ...]:
    """The authors' ids: `taps` of them, evenly from block 1 to block n - 3, rounded half to even.

    Clause: CFG-030. Raises ConfigError (CFG-032, CFG-033) where the target is too shallow.
    """
    target_layers, taps = arguments.integer("target_layers", target_layers), arguments.integer("taps", taps)
    check_counts(target_layers, taps)
    if taps == 1:
        return middle_tap(target_layers)
    steps = taps - 1
    ids = tuple(round_half_even(steps + place * (target_layers - 4), steps) for place in range(taps))
    check_formula(ids, target_layers)
    return ids


def middle_tap(target_layers: int) -> tuple[int]:
    """Clause: CFG-031. A single tap is block n // 2."""
    return (target_layers // 2,)


def integer_step_taps(target_layers: int, taps: int) -> tuple[int, ...]:
    """Ids from block 1 on in steps of (n - 2) // (taps - 1).

    Clause: CFG-034. Raises ConfigError for a single tap, where the step is undefined, and where the target is too
    shallow (CFG-032, CFG-033).
    """
    target_layers, taps = arguments.integer("target_layers", target_layers), arguments.integer("taps", taps)
    check_counts(target_layers, taps)
    if taps == 1:
        raise ConfigError("1 tap, expected at least 2: the step is undefined", key=KEY, clause="CFG-034")
    step = (target_layers - 2) // (taps - 1)
    ids = tuple(1 + place * step for place in range(taps))
    check_formula(ids, target_layers)
    return ids


def check_reduced_taps(target_layers: int, ids: Sequence[int]) -> None:
    """Admit `ids` as the stand-in taps of a reduced target, or raise ConfigError.

    Clause: CFG-035. Strictly rising, in range, and gaps that differ by at most one. Fewer layers than taps are refused
    (CFG-032).
    """
    target_layers, ids = arguments.integer("target_layers", target_layers), arguments.integers(KEY, ids)
    check_counts(target_layers, len(ids))
    check_in_range(ids, target_layers)
    gaps = [right - left for left, right in pairwise(ids)]
    if gaps and (min(gaps) < 1 or max(gaps) - min(gaps) > 1):
        raise ConfigError(f"{KEY}: found {list(ids)}, expected evenly spaced rising ids", key=KEY, clause="CFG-035")
