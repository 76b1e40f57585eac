"""An engine is refused by name where its arguments, its kernels or its memory cannot be had."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import dflash_accelerated
import numpy as np
import pytest
import torch
from dflash_accelerated import Engine, Memory
from dflash_accelerated.kernels import resolve_kernels
from dflash_accelerated.numerics import Kernels
from dflash_accelerated.options import Options
from dflash_accelerated.planning import available, held, reserve
from dflash_spec import errors
from dflash_spec.errors import DFlashError, RequestError

Load = Callable[..., Engine]
CPU = torch.device("cpu")
HUGE = 10**4300
VALUES: list[Any] = [
    None, True, -1, HUGE, -HUGE, math.nan, math.inf, "", "x\0", b"x", [], [None], {}, {1}, object(),
    np.float64(math.nan),
    np.int8(-1), np.array(3), np.array([[1]]), np.array(["a"]), torch.tensor(1.5), torch.tensor([[1]]), lambda: 1, 1j,
    range(10**9, 10**9 + 2), Ellipsis, type,
]  # fmt: skip


class Adapter:
    """A target or draft of which only memory is asked."""

    def __init__(self, planned: int, held: dict[str, int], error: Exception | None = None) -> None:
        self.planned, self.held, self.error = planned, held, error
        self.asked: list[tuple[int, int]] = []

    def planned_bytes(self, lanes: int, capacity: int) -> int:
        return self.planned

    def held_bytes(self) -> dict[str, int]:
        return self.held

    def reserve(self, lanes: int, capacity: int) -> None:
        self.asked.append((lanes, capacity))
        if self.error:
            raise self.error


@pytest.mark.parametrize("name", ["prompt_ids", "max_new_tokens", *Options.__annotations__])
def test_no_value_of_a_request_ends_in_another_error(random_engine: Engine, name: str) -> None:
    for value in VALUES:
        arguments: dict[str, Any] = {"prompt_ids": [1, 2], "max_new_tokens": 2} | {name: value}
        try:
            random_engine.request(**arguments)
        except RequestError as error:
            assert name in str(error)  # noqa: PT017  # other errors end the test


@pytest.mark.parametrize("name", [name for name in Engine.from_pretrained.__annotations__ if name != "return"])
def test_no_value_of_a_start_ends_in_another_error(random_pair: Path, name: str) -> None:
    folders: dict[str, Any] = {"target": random_pair / "target", "draft": random_pair / "draft", "draft_tokens": 3}
    for value in VALUES:
        try:
            Engine.from_pretrained(**folders | {name: value})
        except DFlashError as error:
            assert str(error)  # noqa: PT017  # other errors end the test


@pytest.mark.parametrize("value", [None, 5, "requests", {}, {1}, b"x"], ids=repr)
def test_a_batch_of_no_requests_is_named(random_engine: Engine, value: Any) -> None:
    with pytest.raises(RequestError, match=r"requests? is \w+, expected"):
        random_engine.generate_batch(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a"] * 67, "pieces[0] is 'a', expected bytes"),
        ([b"a"] * 66 + ["b"], "pieces[66] is 'b', expected bytes"),
        (["a"], "pieces[0] is 'a', expected bytes"),
        ([b"a", None], "pieces[1] is None, expected bytes"),
        (list(range(67)), "pieces[0] is 0, expected bytes"),
        ("ab", "pieces is str, expected a list of bytes by id, or a callable"),
        (b"ab", "pieces is bytes, expected a list of bytes by id, or a callable"),
        (bytearray(67), "pieces is bytearray, expected a list of bytes by id, or a callable"),
        ({0: b"a"}, "pieces is dict, expected a list of bytes by id, or a callable"),
        ([b"a"] * 66, "pieces has 66 items, expected the bytes of each of 67 tokens"),
    ],
)
def test_pieces_that_are_none_are_told_by_the_first_that_is_wrong(
    random_engine: Engine, value: Any, message: str
) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        random_engine.request([1, 2], 2, pieces=value)


def test_what_is_no_adapter_is_named(random_engine: Engine) -> None:
    target, draft, numerics = random_engine.target, random_engine.draft, random_engine.numerics
    bad: list[tuple[tuple[Any, Any, Any], str]] = [
        ((None, draft, numerics), "target is NoneType without vocabulary, expected vocabulary, device, open, forward"),
        ((draft, draft, numerics), "target is DFlashDraft without vocabulary, expected vocabulary"),
        ((target, target, numerics), "draft is Qwen3Target without taps, expected taps, open, append, propose"),
        ((type(target), draft, numerics), "target is the class Qwen3Target, expected an object of it"),
        ((target, draft, "zlab"), "numerics is str, expected what Numerics.of gives"),
    ]
    for adapters, message in bad:
        with pytest.raises(RequestError, match=message):
            Engine(*adapters, draft_tokens=3, max_context=20)


def test_a_target_that_has_no_ids_is_named(random_pair: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(random_pair)
    monkeypatch.setattr(engine.target.vocabulary, "public", 0)
    with pytest.raises(RequestError, match=r"target\.vocabulary\.public is 0, expected 1 to"):
        Engine(engine.target, engine.draft, engine.numerics, draft_tokens=3, max_context=20)


def test_buffers_that_do_not_fit_are_refused_before_any_is_made() -> None:
    adapters = [Adapter(2**60, {}), Adapter(2**60 + 5, {})]
    with pytest.raises(RequestError) as error:
        reserve(adapters, 8, 4097, CPU)
    told = str(error.value)
    assert told.startswith(
        "buffers of 8 sequences of 4097 rows take 2305843009213693957 bytes (2147483648.0 GiB), expec"
    )
    assert told.endswith("on cpu: lower max_context or max_batch, or take a smaller dtype")
    assert [each.asked for each in adapters] == [[], []]


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("can't allocate memory: you tried to allocate 99 bytes.\nC++ frames"),
              OverflowError("too large"), torch.OutOfMemoryError("CUDA out of memory")], ids=repr,
)  # fmt: skip
def test_a_reservation_that_fails_says_what_lowers_it(error: Exception) -> None:
    with pytest.raises(
        RequestError, match=r"buffers of 2 sequences of 9 rows .*lower max_context or max_batch"
    ) as seen:
        reserve([Adapter(10, {}), Adapter(10, {}, error)], 2, 9, CPU)
    assert (str(error).splitlines() or ["MemoryError"])[0] in str(seen.value)
    assert "C++" not in str(seen.value)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (None, "Adapter.held_bytes() is None, expected a dict of bytes by weights, cache, workspace"),
        ({"weight": 7}, "Adapter.held_bytes() is {'weight': 7}, expected a dict of bytes by weights, cache"),
        ({"cache": 1.5}, "Adapter.held_bytes()['cache'] is 1.5, expected an integer"),
        ({"cache": -1}, "Adapter.held_bytes()['cache'] is -1, expected 0 to"),
    ],
)
def test_an_adapter_that_counts_otherwise_is_named(told: Any, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        held([Adapter(10, told)])
    planned: Any = told
    with pytest.raises(RequestError, match=r"^Adapter\.planned_bytes\(\) is "):
        reserve([Adapter(planned if planned != {"cache": -1} else -1, {})], 2, 9, CPU)


def test_a_fitting_reservation_is_made_and_counted(random_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters = [Adapter(10, {"weights": 7, "cache": 10}), Adapter(3, {"cache": 4, "workspace": 2 * 2**20})]
    reserve([*adapters, object()], 2, 9, CPU)
    assert [each.asked for each in adapters] == [[(2, 9)], [(2, 9)]]
    assert held(adapters) == Memory(7, 14, 2 * 2**20)
    assert str(held(adapters)) == "weights 7 bytes + cache 14 bytes + workspace 2.0 MiB + graphs 0 bytes = 2.0 MiB"
    own, more = random_engine.memory(), held((random_engine.target, random_engine.draft))
    monkeypatch.setattr(random_engine, "target", adapters[0])
    monkeypatch.setattr(random_engine, "draft", adapters[1])
    beside = own.workspace - more.workspace  # what forwards of the pair that it was made with hold
    assert random_engine.memory() == Memory(7, 14, 2 * 2**20 + beside)
    free = available(CPU)
    assert free is None or free > 2**20


def test_kernels_are_those_that_run_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert resolve_kernels("torch", CPU) == "torch"
    assert resolve_kernels("auto", CPU) in get_args(Kernels)
    with pytest.raises(RequestError, match=r"kernels is 'triton' on device cpu, expected a CUDA device, or TRITON_INT"):
        resolve_kernels("triton", CPU)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert resolve_kernels("triton", CPU) == "triton"
    assert resolve_kernels("auto", CPU) != "triton"
    cuda = torch.device("cuda")
    assert resolve_kernels("auto", cuda) == "triton"
    with pytest.raises(RequestError, match="kernels is 'native' on device cuda, expected device cpu"):
        resolve_kernels("native", cuda)


def test_the_numerics_say_which_kernels_run_and_a_dtype_goes_by_its_name(random_pair: Path, load: Load) -> None:
    for name in ("bfloat16", "BF16", torch.bfloat16):
        engine = load(random_pair, draft_tokens=3, dtype=name, kernels="torch", prefill_chunk=5)
        assert (engine.numerics.act, engine.numerics.kernels) == (torch.bfloat16, "torch")
        assert engine.request([1], 1).prefill_chunk == 5
        assert engine.request([1], 1, prefill_chunk=4).prefill_chunk == 4
    assert load(random_pair, draft_tokens=3).numerics.kernels == resolve_kernels("auto", CPU)


def test_folders_that_are_none_are_named(random_pair: Path) -> None:
    for bad in (None, 5, "", "a\0b", b"x"):
        with pytest.raises(RequestError, match=r"draft is .*, expected a folder with config\.json"):
            Engine.from_pretrained(random_pair / "target", bad)  # type: ignore[arg-type]  # that is the point


def test_an_option_that_there_is_not_is_answered_with_those_that_there_are(random_engine: Engine) -> None:
    with pytest.raises(RequestError, match=r"option 'temprature', expected one of temperature, seed, stop_ids"):
        random_engine.generate([1, 2], 3, temprature=0.5)  # type: ignore[call-arg]
    assert random_engine.kernels == random_engine.numerics.kernels


def test_another_engines_request_is_refused_by_name(
    random_engine: Engine, write_random_pair: Callable[..., Path], tmp_path: Path
) -> None:
    small, inner = (
        {"vocab_size": 40, "eos_token_id": 39},
        {"block_size": 6, "mask_token_id": 38, "target_layer_ids": [2, 0]},
    )
    folder = write_random_pair(tmp_path, target=small, draft=small | {"dflash_config": inner})
    other = Engine.from_pretrained(folder / "target", folder / "draft", max_context=20, draft_tokens=2, max_batch=1)
    given = random_engine.request([66] * 5, 5)
    for asking in (other.submit, lambda request: other.generate_batch([request])):
        with pytest.raises(RequestError, match=r"up to \(67, .*, expected at most \(40, 20, 2, 512\): another engine"):
            asking(given)
    assert other.step() == {}


def test_more_rows_than_a_context_has_are_no_work_at_the_start(random_engine: Engine) -> None:
    made = Engine(
        random_engine.target, random_engine.draft, random_engine.numerics, draft_tokens=15, max_context=12,
        prefill_chunk=10**9, max_batch=1,
    )  # fmt: skip
    assert made.memory().workspace <= random_engine.memory().workspace


@pytest.mark.parametrize(("context", "most"), [(12, 1024), (1025, 1025)])
def test_more_drafts_than_a_round_ever_keeps_are_refused(
    random_pair: Path, load: Callable[..., Engine], context: int, most: int
) -> None:
    own = load(random_pair, draft_tokens=3, max_batch=1)
    adapters = (own.target, own.draft, own.numerics)
    asked = rf"draft_tokens is {most + 1}, expected .*{most}"
    with pytest.raises(RequestError, match=asked):
        Engine(*adapters, draft_tokens=most + 1, max_context=context, max_batch=1)
    made = Engine(*adapters, draft_tokens=most, max_context=context, max_batch=1)
    assert made.generate([3, 1], 7).tokens == made.decode_plain([3, 1], 7).tokens


def test_every_named_error_of_the_engine_can_be_had_from_it() -> None:
    for name in ("CheckpointError", "ConfigError", "DFlashError", "RequestError", "StateError", "TensorError",
                 "UnsupportedConfigError", "UnsupportedError"):  # fmt: skip
        assert name in dflash_accelerated.__all__
        assert getattr(dflash_accelerated, name) is getattr(errors, name)
