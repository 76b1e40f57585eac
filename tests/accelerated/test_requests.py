"""Every bad argument has one named error that says what was found, what was expected and where."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_accelerated import Engine, Generation, Round
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.settings import Sampling
from dflash_spec.errors import RequestError
from dflash_spec.registry import PROFILES, load_profile

Load = Callable[..., Engine]

NORMAL = "expected 0 or 1.1754943508222875e-38 to 3.4028234663852886e+38, normal in FP32"
BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt_ids": []}, "prompt_ids has 0 tokens, expected 1 to 211"),
    ({"prompt_ids": [1] * 212}, "prompt_ids has 212 tokens, expected 1 to 211"),
    ({"prompt_ids": [1, 67]}, "prompt_ids[1] is 67, expected 0 to 66"),
    ({"prompt_ids": [-1]}, "prompt_ids[0] is -1, expected 0 to 66"),
    ({"prompt_ids": [1, 2.0]}, "prompt_ids[1] is 2.0, expected an integer"),
    ({"prompt_ids": [True]}, "prompt_ids[0] is True, expected an integer"),
    ({"prompt_ids": "abc"}, "prompt_ids is str, expected a sequence of token ids"),
    ({"prompt_ids": torch.tensor([[1, 2]])}, "prompt_ids is a tensor of torch.int64 [1, 2], expected integers [T]"),
    ({"prompt_ids": torch.tensor([1.0])}, "prompt_ids is a tensor of torch.float32 [1], expected integers [T]"),
    ({"max_new_tokens": 0}, "max_new_tokens is 0, expected 1 to 2147483647"),
    ({"max_new_tokens": 3.5}, "max_new_tokens is 3.5, expected an integer"),
    ({"temperature": -0.5}, "temperature is -0.5, expected a finite number of at least 0"),
    ({"temperature": math.nan}, "temperature is nan, expected a finite number of at least 0"),
    ({"temperature": math.inf}, "temperature is inf, expected a finite number of at least 0"),
    ({"temperature": "hot"}, "temperature is 'hot', expected a number"),
    ({"temperature": "0.5"}, "temperature is '0.5', expected a number"),
    ({"temperature": True}, "temperature is True, expected a number"),
    ({"temperature": np.bool_(True)}, "temperature is np.True_, expected a number"),
    ({"temperature": None}, "temperature is None, expected a number"),
    ({"temperature": np.float32(np.nan)}, "temperature is np.float32(nan), expected a finite number of at least 0"),
    ({"temperature": 10**400}, "temperature is an integer of 1329 bits, expected a finite number of at least 0"),
    ({"temperature": -5e-324}, "temperature is -5e-324, expected a finite number of at least 0"),
    *(({"temperature": tiny}, f"temperature is {tiny}, {NORMAL}") for tiny in (5e-324, 1e-320, 1e-300, 1e-45, 1e-38)),
    *(({"temperature": huge}, f"temperature is {huge}, {NORMAL}") for huge in (3.41e38, 1e300)),
    ({"seed": np.float64(1)}, "seed is np.float64(1.0), expected an integer"),
    ({"seed": 10**5000}, "seed is an integer of 16610 bits, expected 0 to 18446744073709551615"),
    ({"seed": -1}, "seed is -1, expected 0 to 18446744073709551615"),
    ({"seed": 2**64}, "seed is 18446744073709551616, expected 0 to 18446744073709551615"),
    ({"stop_ids": [5, 67]}, "stop_ids[1] is 67, expected 0 to 66"),
    ({"stop_ids": [np.int64(-1)]}, "stop_ids[0] is -1, expected 0 to 66"),
    ({"stop_ids": [2**70]}, "stop_ids[0] is 1180591620717411303424, expected 0 to 66"),
    ({"stop_ids": np.array([True])}, "stop_ids is an array of bool [1], expected integers [T]"),
    ({"prompt_ids": np.array([1.7])}, "prompt_ids is an array of float64 [1], expected integers [T]"),
    ({"prompt_ids": np.array([[1]])}, "prompt_ids is an array of int64 [1, 1], expected integers [T]"),
    ({"prompt_ids": [np.True_]}, "prompt_ids[0] is np.True_, expected an integer"),
    ({"max_new_tokens": "3"}, "max_new_tokens is '3', expected an integer"),
    ({"max_new_tokens": np.bool_(True)}, "max_new_tokens is np.True_, expected an integer"),
    ({"prefill_chunk": "2"}, "prefill_chunk is '2', expected an integer"),
    ({"stop_ids": 5}, "stop_ids is int, expected a sequence of token ids"),
    ({"draft_tokens": 6}, "draft_tokens is 6, expected 0 to 5"),
    ({"draft_tokens": True}, "draft_tokens is True, expected an integer"),
    ({"prefill_chunk": 513}, "prefill_chunk is 513, expected 1 to 512"),
    ({"show_stop": 1}, "show_stop is 1, expected True or False"),
    ({"prefill_chunk": 0}, "prefill_chunk is 0, expected 1 to 512"),
    ({"top_k": -1}, "top_k is -1, expected 0 to 2147483647"),
    ({"top_k": 2**31}, "top_k is 2147483648, expected 0 to 2147483647"),
    ({"top_k": 3.0}, "top_k is 3.0, expected an integer"),
    ({"top_k": True}, "top_k is True, expected an integer"),
    ({"top_p": 0}, "top_p is 0, expected above 0, at most 1"),
    ({"top_p": 1e-60}, "top_p is 1e-60, expected above 0, at most 1"),
    ({"top_p": 1.001}, "top_p is 1.001, expected above 0, at most 1"),
    ({"top_p": math.nan}, "top_p is nan, expected above 0, at most 1"),
    ({"top_p": "0.9"}, "top_p is '0.9', expected a number"),
    ({"min_p": 0.1}, "min_p is 0.1, expected 0.0: profile zlab has no min_p"),
    ({"min_p": -0.1}, "min_p is -0.1, expected 0 to 1"),
    ({"min_p": 10**400}, "min_p is an integer of 1329 bits, expected 0 to 1"),
    ({"min_p": None}, "min_p is None, expected a number"),
    ({"presence_penalty": 0.5}, "presence_penalty is 0.5, expected 0: profile zlab has no penalties"),
    ({"frequency_penalty": -0.5}, "frequency_penalty is -0.5, expected 0: profile zlab has no penalties"),
    ({"presence_penalty": math.nan}, "presence_penalty is nan, expected a number that is finite in FP32"),
    ({"frequency_penalty": 1e39}, "frequency_penalty is 1e+39, expected a number that is finite in FP32"),
    ({"frequency_penalty": [1]}, "frequency_penalty is [1], expected a number"),
    ({"allowed_tokens": []}, "allowed_tokens has 0 ids, expected at least 1"),
    ({"allowed_tokens": [3, 67]}, "allowed_tokens[1] is 67, expected 0 to 66"),
    ({"allowed_tokens": 5}, "allowed_tokens is int, expected a sequence of token ids"),
    ({"allowed_tokens": {67}}, "an id of allowed_tokens is 67, expected 0 to 66"),
    ({"stop_ids": {"a"}}, "an id of stop_ids is 'a', expected an integer"),
    ({"prompt_ids": {3, 4}}, "prompt_ids is set, expected a sequence of token ids"),
    ({"grammar": [1, 2]}, "grammar is list, expected a callable"),
]
BAD_SAMPLING: list[tuple[dict[str, Any], str]] = [
    ({"top_k": -(2**31) - 1}, "top_k is -2147483649, expected -2147483648 to 2147483647"),
    ({"top_p": -0.01}, "top_p is -0.01, expected 0 to 1"),
    ({"top_p": math.inf}, "top_p is inf, expected 0 to 1"),
    ({"min_p": 1.001}, "min_p is 1.001, expected 0 to 1"),
    ({"min_p": math.nan}, "min_p is nan, expected 0 to 1"),
    ({"presence_penalty": -math.inf}, "presence_penalty is -inf, expected a number that is finite in FP32"),
]
"""What profile ninfer refuses."""


@pytest.mark.parametrize(("change", "message"), BAD_REQUESTS, ids=[message for _, message in BAD_REQUESTS])
@pytest.mark.parametrize("call", ["generate", "stream", "request"])
def test_a_bad_argument_is_refused_at_the_call(
    random_engine: Engine, call: str, change: dict[str, Any], message: str
) -> None:
    arguments = {"prompt_ids": [1, 2, 3], "max_new_tokens": 4} | change
    with pytest.raises(RequestError) as error:
        getattr(random_engine, call)(**arguments)
    assert str(error.value) == message


def test_ids_whose_order_says_nothing_may_be_a_set(random_engine: Engine) -> None:
    made = random_engine.request([1, 2, 3], 4, stop_ids={5, 7}, allowed_tokens=frozenset({5, 7, 9}))
    assert made.stop_ids == {5, 7}
    assert set(made.allowed or ()) == {5, 7, 9}
    assert random_engine.request([1], 4, stop_ids=set()).stop_ids == frozenset()


@pytest.mark.parametrize(("change", "message"), BAD_SAMPLING, ids=[message for _, message in BAD_SAMPLING])
def test_a_setting_out_of_its_range_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as error:
        Sampling.checked(load_profile("ninfer"), **change)
    assert str(error.value) == message


@pytest.mark.parametrize("top_k", [-5, 0, 1, 20, 2**31 - 1])
def test_every_top_k_and_the_ends_of_every_range_are_settings_of_ninfer(top_k: int) -> None:
    for share in (0, 1, Fraction(1, 3), np.float32(0.25)):
        kept = Sampling.checked(load_profile("ninfer"), 1, top_k, share, share, -2, np.float64(2.5))
        assert kept == Sampling(1.0, top_k, float(np.float32(share)), float(np.float32(share)), -2.0, 2.5)


def test_the_revision_of_april_2026_has_no_filter_but_the_temperature() -> None:
    rules = load_profile("zlab-2026-04")
    assert Sampling.checked(rules, 0.5) == Sampling(0.5)
    for change in ({"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5}):
        (name,) = change
        with pytest.raises(RequestError, match=f"profile zlab-2026-04 has no {name}"):
            Sampling.checked(rules, **change)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"profile": "zlab-2026-04"}, RequestError, "profile zlab-2026-04 is stated on some ops only"),
        ({"profile": "nobody"}, RequestError, "profile is 'nobody', expected one of ninfer, zlab"),
        ({"draft_tokens": "3"}, RequestError, "draft_tokens: found '3', expected an integer"),
        ({"draft_tokens": 2.5}, RequestError, "draft_tokens: found 2.5, expected an integer"),
        ({"draft_tokens": True}, RequestError, "draft_tokens: found True, expected an integer"),
        ({"max_context": "9"}, RequestError, "max_context is '9', expected an integer"),
        ({"draft_tokens": 0}, RequestError, "draft_tokens: found 0"),
        ({"profile": "ninfer", "draft_tokens": 16}, RequestError, "draft_tokens: found 16"),
        ({"profile": "ninfer"}, RequestError, "draft_tokens: found None"),
        ({"profile": "ninfer", "draft_tokens": 3}, RequestError, "dtype torch.float32 in profile ninfer"),
        ({"dtype": torch.float16}, RequestError, "dtype torch.float16 in profile zlab"),
        ({"max_context": 212}, RequestError, "max_context is 212, expected 1 to 211"),
        ({"max_context": 0}, RequestError, "max_context is 0, expected 1 to 211"),
        ({"public_tokens": 68}, RequestError, "public_tokens is 68, expected 1 to 67"),
        ({"public_tokens": 0}, RequestError, "public_tokens is 0, expected 1 to 67"),
        ({"prefill_chunk": 0}, RequestError, "prefill_chunk is 0, expected 1 to 2147483647"),
        ({"prefill_chunk": None}, RequestError, "prefill_chunk is None, expected an integer"),
        ({"max_batch": True}, RequestError, "max_batch is True, expected an integer"),
        ({"max_checkpoints": -1}, RequestError, "max_checkpoints is -1, expected 0 to"),
        ({"dtype": "float"}, RequestError, "dtype is 'float' in profile zlab, expected None, a torch.dtype or one"),
        ({"dtype": np.float32}, RequestError, "dtype is <class 'numpy.float32'> in profile zlab, expected None"),
        ({"dtype": "float16"}, RequestError, "dtype is 'float16' in profile zlab, expected None"),
        ({"kernels": "cuda"}, RequestError, "kernels is 'cuda', expected one of auto, torch, native, triton"),
        ({"kernels": None}, RequestError, "kernels is None, expected one of auto"),
        ({"kernels": ["torch"]}, RequestError, "kernels is ['torch'], expected one of auto"),
        ({"device": "meta"}, RequestError, "device is 'meta', expected one that holds numbers"),
        ({"device": None}, RequestError, "device is None, expected the name of a device that is there"),
        ({"device": "cpu:x"}, RequestError, "device is 'cpu:x', expected the name of a device that is there"),
        ({"profile": None}, RequestError, "profile is None, expected one of ninfer, zlab"),
        ({"max_batch": 0}, RequestError, "max_batch is 0, expected 1 to 8"),
        ({"max_batch": 9}, RequestError, "max_batch is 9, expected 1 to 8"),
        ({"profile": "ninfer", "draft_tokens": 3, "proposal_ids": []}, RequestError, "proposal_ids has 0 ids"),
        ({"proposal_ids": [67]}, RequestError, "proposal_ids[0] is 67, expected 0 to 66"),
    ],
)
def test_a_bad_start_is_refused(
    random_pair: Path, load: Load, change: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as error:
        load(random_pair, **change)
    assert message in str(error.value)


@pytest.mark.parametrize("profile", PROFILES)
def test_each_dtype_that_a_refusal_names_is_taken_in_that_profile(random_pair: Path, load: Load, profile: str) -> None:
    with pytest.raises(RequestError) as error:
        load(random_pair, profile=profile, draft_tokens=3, dtype="half")
    names = str(error.value).rpartition("one of ")[2].split(", ")
    taken = {
        load(random_pair, profile=profile, draft_tokens=3, max_context=9, dtype=name).numerics.act for name in names
    }
    assert taken == set(Numerics.dtypes(load_profile(profile)))


def test_ids_past_the_public_ones_are_no_prompt_and_never_come_out(random_pair: Path, load: Load) -> None:
    everything, engine = load(random_pair, draft_tokens=3), load(random_pair, draft_tokens=3, public_tokens=9)
    prompt = [8, 1, 5, 0, 3]
    with pytest.raises(RequestError, match=r"prompt_ids\[0\] is 9, expected 0 to 8"):
        engine.generate([9], 4)
    made = engine.generate(prompt, 40, stop_ids=[])
    assert max(everything.generate(prompt, 40, stop_ids=[]).tokens) > 8
    assert max(max(tokens) for tokens in (made.tokens, *made.proposals) if tokens) < 9


def test_a_tensor_of_ids_is_a_prompt_too(random_engine: Engine) -> None:
    assert random_engine.generate(torch.tensor([5, 6, 7]), 9) == random_engine.generate([5, 6, 7], 9)


def test_numpys_numbers_and_arrays_are_arguments_like_pythons_own(random_pair: Path, load: Load) -> None:
    plain, engine = load(random_pair, draft_tokens=3), load(random_pair, draft_tokens=np.int64(3))
    assert type(engine.draft_tokens) is int
    expected = plain.generate([5, 6, 7], 9, temperature=0.5, seed=2, stop_ids=[66], prefill_chunk=2)
    # NumPy's integers are no `int` to a type checker.
    kinds: list[Any] = [(np.int64, np.array), (np.uint8, lambda ids: np.array(ids, np.uint16)), (np.int32, list)]
    half: Any = np.float32(0.5)
    for integer, array in kinds:
        made = engine.generate(
            array([integer(5), integer(6), integer(7)]), integer(9), temperature=half, seed=integer(2),
            stop_ids=array([integer(66)]), prefill_chunk=integer(2),
        )  # fmt: skip
        assert made == expected
        assert {type(token) for token in made.tokens} == {int}


def test_a_generation_needs_a_stream_read_to_its_end() -> None:
    with pytest.raises(RequestError, match="a stream without its last round"):
        Generation.of([Round((3,))])
