"""Every bad argument has one named error that says what was found, what was expected and where."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_accelerated import Engine, Generation, Round
from dflash_spec.errors import ConfigError, RequestError, SpecDataError

Load = Callable[..., Engine]

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
    ({"seed": -1}, "seed is -1, expected 0 to 18446744073709551615"),
    ({"seed": 2**64}, "seed is 18446744073709551616, expected 0 to 18446744073709551615"),
    ({"stop_ids": [5, 67]}, "stop_ids[1] is 67, expected 0 to 66"),
    ({"stop_ids": 5}, "stop_ids is int, expected a sequence of token ids"),
    ({"draft_tokens": 6}, "draft_tokens is 6, expected 0 to 5"),
    ({"draft_tokens": True}, "draft_tokens is True, expected an integer"),
    ({"prefill_chunk": 0}, "prefill_chunk is 0, expected 1 to 2147483647"),
]


@pytest.mark.parametrize(("change", "message"), BAD_REQUESTS, ids=[message for _, message in BAD_REQUESTS])
@pytest.mark.parametrize("call", ["generate", "stream", "request"])
def test_a_bad_argument_is_refused_at_the_call(
    random_engine: Engine, call: str, change: dict[str, Any], message: str
) -> None:
    arguments = {"prompt_ids": [1, 2, 3], "max_new_tokens": 4} | change
    with pytest.raises(RequestError) as error:
        getattr(random_engine, call)(**arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"profile": "nobody"}, SpecDataError, "profile 'nobody'"),
        ({"draft_tokens": 0}, ConfigError, "requested drafts: found 0"),
        ({"profile": "ninfer", "draft_tokens": 16}, ConfigError, "requested drafts: found 16"),
        ({"profile": "ninfer"}, ConfigError, "requested drafts: found None"),
        ({"profile": "ninfer", "draft_tokens": 3}, RequestError, "dtype torch.float32 in profile ninfer"),
        ({"dtype": torch.float16}, RequestError, "dtype torch.float16 in profile zlab"),
        ({"max_context": 212}, RequestError, "max_context is 212, expected 1 to 211"),
        ({"max_context": 0}, RequestError, "max_context is 0, expected 1 to 211"),
        ({"public_tokens": 68}, RequestError, "public_tokens is 68, expected 1 to 67"),
        ({"public_tokens": 0}, RequestError, "public_tokens is 0, expected 1 to 67"),
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


def test_a_generation_needs_a_stream_read_to_its_end() -> None:
    with pytest.raises(RequestError, match="a stream without its last round"):
        Generation.of([Round((3,))])
