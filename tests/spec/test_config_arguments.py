"""The public functions of the config package refuse arguments of another type by name, before any rule is asked."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dflash_spec.config as config
import numpy as np
import pytest
from dflash_spec.errors import ConfigError
from dflash_spec.registry import load_profile

ZLAB, NINFER = load_profile("zlab"), load_profile("ninfer")
numpy: Any = np
"""Its integers are no `int` to a type checker."""
NO_INTEGER: list[Any] = ["3", 2.5, 3.0, True, np.True_, np.float64(3), b"3", [3], {}]
NO_INTEGERS: list[Any] = [
    "12",
    5,
    None,
    {1: 2},
    [1, "2"],
    [1, 2.0],
    [True],
    [None],
    np.array([1.0]),
    np.array([[1]]),
    np.array(1),
]

WITH_AN_INTEGER: dict[str, Callable[[Any], Any]] = {
    "draft_count, zlab, block_size": lambda value: config.draft_count(ZLAB, value, None),
    "draft_count, zlab, draft_tokens": lambda value: config.draft_count(ZLAB, 16, value),
    "draft_count, ninfer, block_size": lambda value: config.draft_count(NINFER, value, 3),
    "draft_count, ninfer, draft_tokens": lambda value: config.draft_count(NINFER, None, value),
    "matched_count, block_size": lambda value: config.matched_count(value, None),
    "matched_count, draft_tokens": lambda value: config.matched_count(4, value),
    "bounded_count, block_size": lambda value: config.bounded_count(value, None),
    "bounded_count, draft_tokens": lambda value: config.bounded_count(8, value),
    "half_even_taps, target_layers": lambda value: config.half_even_taps(value, 2),
    "half_even_taps, taps": lambda value: config.half_even_taps(36, value),
    "integer_step_taps, target_layers": lambda value: config.integer_step_taps(value, 2),
    "integer_step_taps, taps": lambda value: config.integer_step_taps(36, value),
    "check_reduced_taps, target_layers": lambda value: config.check_reduced_taps(value, [0, 1]),
    "check_concurrency, requests": lambda value: config.check_concurrency(NINFER, value),
    "draft_start, backend": lambda value: config.draft_start(b"{}", ZLAB, target(), value, None, 9, 0),
    "draft_start, public": lambda value: config.draft_start(b"{}", ZLAB, target(), 1, None, value, 0),
    "draft_start, indexed": lambda value: config.draft_start(b"{}", ZLAB, target(), 1, None, 9, value),
    "check_head_index, public": lambda value: config.check_head_index([1, 2], value),
}
WITH_INTEGERS: dict[str, Callable[[Any], Any]] = {
    "check_reduced_taps": lambda values: config.check_reduced_taps(36, values),
    "check_head_index": lambda values: config.check_head_index(values, 9),
}
WITH_AN_OBJECT: dict[str, Callable[[Any], Any]] = {
    "draft_count": lambda value: config.draft_count(value, 16, None),
    "check_concurrency": lambda value: config.check_concurrency(value, 1),
    "draft_tensors": config.draft_tensors,
    "executable": config.executable,
    "target_tensors": config.target_tensors,
    "read_target_config": config.read_target_config,
    "read_trainer_config": config.read_trainer_config,
    "read_draft_config, source": lambda value: config.read_draft_config(value, ZLAB, target()),
    "read_draft_config, profile": lambda value: config.read_draft_config(b"{}", value, target()),
    "read_draft_config, target": lambda value: config.read_draft_config(b"{}", ZLAB, value),
}


def target() -> config.TargetConfig:
    return config.TargetConfig("", 9, 8, 8, 1, 1, 1, 8, 1e-6, 1e4, (0,), False, (), 16)


def covered() -> set[str]:
    return {name.split(",")[0] for table in (WITH_AN_INTEGER, WITH_INTEGERS, WITH_AN_OBJECT) for name in table}


def test_every_public_function_is_asked() -> None:
    functions = {name for name in config.__all__ if not isinstance(getattr(config, name), type)}
    assert covered() == functions


@pytest.mark.parametrize("name", WITH_AN_INTEGER)
@pytest.mark.parametrize("value", NO_INTEGER, ids=repr)
def test_what_is_no_integer_is_refused_by_name(name: str, value: Any) -> None:
    argument = name.rsplit(", ", 1)[1]
    with pytest.raises(ConfigError, match=re.escape(f"{argument}: found {value!r}, expected an integer")) as caught:
        WITH_AN_INTEGER[name](value)
    assert caught.value.key == argument


@pytest.mark.parametrize("name", WITH_AN_INTEGER)
@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["huge", "minus huge"])
def test_an_integer_too_long_to_print_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match="found an integer of 16610 bits, expected at most 63"):
        WITH_AN_INTEGER[name](value)


@pytest.mark.parametrize(
    "name", [name for name in WITH_AN_INTEGER if "block_size" not in name and "draft_tokens" not in name]
)
def test_nothing_stands_for_an_integer_that_has_no_default(name: str) -> None:
    with pytest.raises(ConfigError, match="found None, expected an integer"):
        WITH_AN_INTEGER[name](None)


@pytest.mark.parametrize("name", WITH_INTEGERS)
@pytest.mark.parametrize("values", NO_INTEGERS, ids=repr)
def test_what_is_no_sequence_of_integers_is_refused_by_name(name: str, values: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"(target_layer_ids|token_ids).*: found .*, expected (an|a sequence of)? ?integer"
    ):
        WITH_INTEGERS[name](values)


@pytest.mark.parametrize("name", WITH_AN_OBJECT)
@pytest.mark.parametrize("value", ["zlab", None, 5, {}, []], ids=repr)
def test_another_object_than_the_expected_one_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf": found {type(value).__name__}, expected "):
        WITH_AN_OBJECT[name](value)


def test_numpys_integers_count_like_pythons_own() -> None:
    kept = config.draft_count(ZLAB, numpy.int32(16), numpy.uint8(3))
    assert (kept, type(kept)) == (3, int)
    assert type(config.draft_count(NINFER, None, numpy.int64(3))) is int
    assert config.half_even_taps(numpy.int8(36), numpy.int8(5)) == config.half_even_taps(36, 5)
    assert config.integer_step_taps(numpy.uint8(36), numpy.uint8(5)) == config.integer_step_taps(36, 5)
    config.check_reduced_taps(numpy.int64(9), numpy.array([0, 4, 8]))
    config.check_head_index(numpy.array([3, 0], dtype=numpy.uint8), numpy.int64(4))


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_path_that_no_file_can_have_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no name of a file"):
        config.read_target_config(tmp_path / name)
