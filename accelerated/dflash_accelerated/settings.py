"""How a request samples: settings as a caller gives them, and as tensors with a value for each row of logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile
from torch import Tensor

from dflash_accelerated.arguments import check_integer, check_number, check_temperature, fp32, shown
from dflash_accelerated.transfers import listed

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Sampling:
    """Settings of one request. Every number is an FP32 value.

    What a top_k stands for is the profile's business. `presence` and `frequency` are the penalties.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0

    @property
    def penalised(self) -> bool:
        """Whether tokens that were emitted before have other logits."""
        return bool(self.presence or self.frequency)

    @staticmethod
    def checked(
        profile: Profile,
        temperature: object = 0.0,
        top_k: object = 0,
        top_p: object = 1.0,
        min_p: object = 0.0,
        presence_penalty: object = 0.0,
        frequency_penalty: object = 0.0,
    ) -> Sampling:
        """Settings that `profile` knows. Raises RequestError that names the argument."""
        capped, filters = bool(profile.axes["sampling_cap"]), profile.axes["sampling_order"]
        top_k = check_integer("top_k", top_k, -INT32_MAX - 1 if capped else 0, INT32_MAX)
        sampling = Sampling(
            check_temperature(temperature),
            top_k,
            _share("top_p", top_p, above_0=not capped),
            _share("min_p", min_p),
            _penalty("presence_penalty", presence_penalty),
            _penalty("frequency_penalty", frequency_penalty),
        )
        off = Sampling()
        for name, given in (("top_k", top_k), ("top_p", top_p), ("min_p", min_p)):
            expected = getattr(off, name)
            if name not in filters and getattr(sampling, name) != expected:
                raise RequestError(
                    f"{name} is {shown(given)}, expected {expected}: profile {profile.name} has no {name}"
                )
        penalties = (
            ("presence_penalty", presence_penalty, sampling.presence),
            ("frequency_penalty", frequency_penalty, sampling.frequency),
        )
        for name, given, kept in penalties:
            if kept and profile.axes["penalties"] == "none":
                raise RequestError(f"{name} is {shown(given)}, expected 0: profile {profile.name} has no penalties")
        return sampling


def is_greedy(temperature: float, profile: Profile) -> bool:
    """Whether a request takes the argmax, without a draw. Profile axis `greedy_below`; both numbers count as FP32.

    Raises RequestError for a temperature that is no number, and for one below 0 where the profile has none.

    Clauses: PROC-002, PROC-010, PROC-021. Source: Infernix include/infernix/ops/sampling.h; dflash 0.1.0
    dflash_generate; z-lab/dflash@44947fb dflash/model.py.
    """
    limit = float(profile.axes["greedy_below"])
    if math.isnan(temperature) or (temperature < 0 and not limit and not profile.axes["sampling_cap"]):
        raise RequestError(f"temperature is {temperature}, expected a number of at least 0")
    return temperature < fp32(limit) if limit else temperature <= 0


class SettingRows(NamedTuple):
    """Settings row by row: tensors [N], FP32 but for `greedy` (bool) and `top_k` (I64).

    `some_greedy`, `some_sampled` and `some_filtered` say on the host whether any row needs that work; `width` is the
    largest number of candidates that a row may have to be ordered for, where it is not the whole vocabulary, else 0.
    """

    greedy: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    some_greedy: bool
    some_sampled: bool
    some_filtered: bool
    width: int

    @staticmethod
    def of(each: Sequence[Sampling], rows: Sequence[int], profile: Profile, device: torch.device) -> SettingRows:
        """The settings of requests that have `rows` rows of logits each, one request after another."""
        return SettingRows._of(tuple(each), tuple(rows), profile, device)

    @staticmethod
    @lru_cache(maxsize=256)
    def _of(each: tuple[Sampling, ...], rows: tuple[int, ...], profile: Profile, device: torch.device) -> SettingRows:
        """Kept, since the same requests come again round after round; nobody writes into these tensors."""
        greedy = [is_greedy(own.temperature, profile) for own in each]
        held = [
            (float(cold), 1.0 if cold else own.temperature, own.top_k, own.top_p, own.min_p)
            for cold, own in zip(greedy, each, strict=True)
        ]
        # One transfer; float64 holds FP32 values and 32-bit integers alike.
        columns = listed(held, torch.float64, device)
        repeats = listed(rows, torch.int64, device)
        cold, temperature, top_k, top_p, min_p = columns.repeat_interleave(repeats, 0, output_size=sum(rows)).unbind(1)
        sampled = [own for own, cold in zip(each, greedy, strict=True) if not cold]
        filtered = [own for own in sampled if own.top_k or own.top_p < 1 or own.min_p]
        return SettingRows(
            cold.bool(),
            temperature.float(),
            top_k.long(),
            top_p.float(),
            min_p.float(),
            some_greedy=any(greedy),
            some_sampled=bool(sampled),
            some_filtered=bool(filtered),
            width=_width(sampled, filtered, int(profile.axes["sampling_cap"])),
        )


def candidates(top_k: int, cap: int) -> int:
    """How many candidates a top_k leaves, where a profile keeps at most `cap`.

    Clause: PROC-011. Source: Infernix include/infernix/ops/sampling.h.
    """
    return top_k if 1 <= top_k < cap else cap


def _width(sampled: Sequence[Sampling], filtered: Sequence[Sampling], cap: int) -> int:
    if cap:
        return max((candidates(own.top_k, cap) for own in sampled), default=cap)
    return 0 if any(not own.top_k for own in filtered) else max((own.top_k for own in filtered), default=0)


def _share(name: str, value: object, above_0: bool = False) -> float:
    kept = fp32(check_number(name, value))
    if not 0 <= kept <= 1 or (above_0 and not kept):
        raise RequestError(f"{name} is {shown(value)}, expected {'above 0, at most 1' if above_0 else '0 to 1'}")
    return kept


def _penalty(name: str, value: object) -> float:
    kept = fp32(check_number(name, value))
    if not math.isfinite(kept):
        raise RequestError(f"{name} is {shown(value)}, expected a number that is finite in FP32")
    return kept
