"""What a DFlash2 draft has beyond a DFlash draft: a convolution around both branches, and a candidate selector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dflash_spec.config import members as read
from dflash_spec.config.members import Members
from dflash_spec.errors import ConfigError

SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
SCALARS = ("output_multiplier", "final_logit_softcapping")
Holder = Callable[[str], Members]
"""Where a member is read."""
FP32_LIMIT = float(np.finfo(np.float32).max)


class Sizes(NamedTuple):
    """Rows that a row of the convolution reads, channels of a group, rank of the selector, candidates of a slot."""

    conv_taps: int
    conv_group: int
    selector_rank: int
    selector_top_k: int


class Scalars(NamedTuple):
    """FP32 scalars between the head and the candidates: a factor, and a limit, of which 0 is none."""

    output_multiplier: float = 1.0
    softcap: float = 0.0


def sizes(holder: Holder) -> Sizes:
    """The sizes of convolution and selector.

    Clause: CFG-061. Raises ConfigError where one is absent or no size.
    """
    return Sizes(*(read.positive_int(holder(key), key) for key in SIZES))


def check_absent(members: Members) -> None:
    """Clause: CFG-062. Raises ConfigError where a DFlash config has a size of DFlash2 at top level."""
    for key in SIZES:
        if members.has(key):
            raise members.wrong(key, "no member of DFlash2 in a DFlash config", "CFG-062")


def check_group(hidden: int, group: int) -> None:
    """Clause: CFG-063. Raises ConfigError unless groups of `group` channels fill the hidden width."""
    if hidden % group:
        raise ConfigError(f"conv_group_size: found {group}, expected a divisor of the hidden width {hidden}",
                          key="dflash_config.conv_group_size", clause="CFG-063")  # fmt: skip


def check_candidates(top_k: int, domain: int) -> None:
    """Clause: CFG-064. Raises ConfigError where a slot has more candidates than the `domain` proposable rows."""
    if top_k > domain:
        raise ConfigError(f"selector_top_k: found {top_k}, expected at most the {domain} rows of the proposal head",
                          key="dflash_config.selector_top_k", clause="CFG-064")  # fmt: skip


def scalars(holder: Holder) -> Scalars:
    """The scalars between the head and the candidates, in FP32.

    Clause: CFG-065. `output_multiplier` is positive, 1 where absent; `final_logit_softcapping` is not negative, and
    where it is absent or 0 there is none. Raises ConfigError.
    """
    multiplier, softcap = (holder(key) for key in SCALARS)
    factor = _fp32(multiplier, SCALARS[0], Scalars().output_multiplier)
    if factor == 0:
        raise multiplier.wrong(SCALARS[0], "a positive number", "CFG-065")
    return Scalars(factor, _fp32(softcap, SCALARS[1], Scalars().softcap))


def _fp32(members: Members, key: str, absent: float) -> float:
    """A number that is not negative, as FP32."""
    value: Any = members.get(key)
    if value is None:
        return absent
    if type(value) not in (int, float) or not 0 <= value <= FP32_LIMIT:
        raise members.wrong(key, "a number that is not negative and that FP32 holds", "CFG-065")
    kept = float(np.float32(value))
    if value > 0 and kept == 0:
        raise members.wrong(key, "a number that FP32 tells from 0", "CFG-065")
    return kept
