"""Faults of reading a config's members: what is let through, guessed, or cast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from dflash_spec.config.members import Members

from dflash_vectors.faults import Function, fault

NINFER = "https://github.com/Wallawalla47/Infernix/blob/4f0950184f/src/models/qwen3_5/config.cpp"
PACKAGE = "https://pypi.org/project/dflash/0.1.0/"
TRANSFORMERS = (
    "https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/models/qwen3/configuration_qwen3.py"
)
DEFAULTS = {"head_dim": 128, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "model_type": "qwen3",
            "vocab_size": 151936, "num_target_layers": 3}  # fmt: skip


def unchecked(*args: Any, **named: Any) -> None:
    """A check that lets everything through."""


@fault("dflash_spec.config.members.parse", clauses=("CFG-001",), report=NINFER, effect="output")
def text_after_the_object_ignored(true: Function) -> Function:
    """The first JSON value of the text is taken, and what follows is not looked at."""

    def wrong(data: bytes, file: str) -> Any:
        try:
            end = json.JSONDecoder().raw_decode(data.decode("utf-8"))[1]
        except ValueError:
            end = len(data)
        return true(data[:end], file)

    return wrong


@fault("dflash_spec.config.members.unique_pairs", clauses=("CFG-002",), report=NINFER, effect="output")
def last_of_two_keys_wins(true: Function) -> Function:
    """Of two equal keys the last is kept in silence, as most readers do."""
    return dict


@fault("dflash_spec.config.members.refuse_constant", clauses=("CFG-003",), report=NINFER, effect="output")
def nan_read_as_a_number(true: Function) -> Function:
    """NaN and Infinity are read as Python reads them."""
    return float


@fault("dflash_spec.config.members.require", clauses=("CFG-004",), report=TRANSFORMERS, effect="acceptance")
def absent_member_gets_the_default(true: Function) -> Function:
    """An absent member takes the model library's default."""

    def wrong(members: Members, key: str) -> Any:
        return DEFAULTS[key] if key in DEFAULTS and not members.has(key) else true(members, key)

    return wrong


@fault("dflash_spec.config.members.positive_int", clauses=("CFG-005",), report=NINFER, effect="output")
def size_cast_to_int(true: Function) -> Function:
    """Whatever stands for a size is cast to an integer."""
    return lambda members, key: int(members.get(key)) if members.has(key) else true(members, key)


@fault("dflash_spec.config.members.index", clauses=("CFG-006",), report=NINFER, effect="acceptance")
def id_cast_to_int(true: Function) -> Function:
    """Whatever stands for an id is cast to an integer, negative ones included."""
    return lambda members, key: int(members.get(key)) if members.has(key) else true(members, key)


@fault(
    "dflash_spec.config.members.positive_float", clauses=("CFG-007",), effect="output",
    report="https://github.com/Luce-Org/lucebox-hub/commit/697198a",
)  # fmt: skip
def theta_of_zero_taken(true: Function) -> Function:
    """A theta or epsilon of 0, or one that FP32 cannot hold, is taken."""

    def wrong(members: Members, key: str) -> float:
        value = members.get(key)
        return float(value) if type(value) in (int, float) and not 1e-40 < value < 1e38 else true(members, key)

    return wrong


@fault("dflash_spec.config.members.positive_float", clauses=("CFG-007",), report=NINFER, effect="output")
def theta_rounded_towards_zero(true: Function) -> Function:
    """The FP32 below the number is taken for the nearest."""

    def wrong(members: Members, key: str) -> float:
        kept = true(members, key)
        return kept if kept <= members.get(key) else float(np.nextafter(np.float32(kept), np.float32(0)))

    return wrong


@fault("dflash_spec.config.members.flag", clauses=("CFG-008",), report=TRANSFORMERS, effect="acceptance")
def flag_by_truth_value(true: Function) -> Function:
    """A flag is whatever the language takes for true: the string `false` is."""
    return lambda members, key: bool(members.get(key)) if members.has(key) else None


@fault("dflash_spec.config.members.inner", clauses=("CFG-009",), report=TRANSFORMERS, effect="acceptance")
def malformed_object_skipped(true: Function) -> Function:
    """A member that should be an object and is not is skipped."""

    def wrong(members: Members, key: str) -> Members:
        value = members.get(key)
        if isinstance(value, list):
            value = dict(value)
        return Members(value if isinstance(value, dict) else {}, members.file, f"{members.path}{key}.")

    return wrong


@fault("dflash_spec.config.members.closed", clauses=("CFG-010",), report=PACKAGE, effect="acceptance")
def unknown_nested_member_ignored(true: Function) -> Function:
    """Members that the reader does not know are ignored: a convolution, a causal switch."""
    return unchecked


@fault("dflash_spec.config.members.unknown", clauses=("CFG-011",), report=TRANSFORMERS, effect="crash")
def newer_file_refused(true: Function) -> Function:
    """A top-level member that the reader does not know is an error."""

    def wrong(members: Members, known: Sequence[str]) -> tuple[str, ...]:
        for key in true(members, known):
            raise members.wrong(key, "a known member", "CFG-011")
        return ()

    return wrong
