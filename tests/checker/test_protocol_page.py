"""docs/protocol.md says what the code does."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash_spec.errors import ImplementationError
from dflash_spec.tensors import STORED
from dflash_vectors.runners.protocol import read_description
from dflash_vectors.runners.schemas import ANSWERS, DESCRIPTION, validate
from dflash_vectors.runners.stdio import smoke_tensors

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
JSON_BLOCKS = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]


def test_every_schema_stands_on_the_page_as_the_code_has_it() -> None:
    shown = {block["$id"]: block for block in JSON_BLOCKS if "$id" in block}
    assert shown == {schema["$id"]: schema for schema in ANSWERS}


def test_the_declaration_of_the_page_is_one() -> None:
    (declaration,) = [block for block in JSON_BLOCKS if "$id" not in block]
    assert read_description(declaration, "page").ops == frozenset({"context.value"})


def test_the_conversation_of_the_page_matches_the_schemas() -> None:
    by_keys = {tuple(sorted(schema["required"])): schema for schema in ANSWERS}
    answers = [json.loads(line[2:]) for line in PAGE.splitlines() if line.startswith("← ")]
    assert len(answers) == 3
    for answer in answers:
        required = tuple(sorted(set(answer) - {"ops", "dtypes", "note"}))
        validate(answer, by_keys[required], "page")


def test_the_python_port_of_the_page_is_right(vectors: Any) -> None:
    (text,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    spec = importlib.util.spec_from_loader("port_of_the_page", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(text, "protocol.md", "exec"), module.__dict__)
    case = vectors.case(vectors.TAP)
    answer = module.create("zlab").run("tap.concat", {name: t.values for name, t in case.inputs.items()})
    np.testing.assert_array_equal(answer["features"], case.expected[0].tensor.values)


def test_the_smoke_check_has_every_dtype_a_scalar_and_an_empty_tensor() -> None:
    tensors = smoke_tensors()
    assert {tensor.dtype for tensor in tensors.values()} == set(STORED)
    assert {tensor.shape for tensor in tensors.values()} >= {(), (0, 3)}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "page: found [], expected object"),
        ({"name": "x", "version": "1"}, "page: key 'profile' is missing"),
        (
            {"name": "x", "version": "1", "profile": True},
            "page: profile: found True, expected 'ninfer' or 'zlab' or 'zlab-2026-04' or 'vllm-neuron' or 'luce'",
        ),
        ({"name": True, "version": "1", "profile": "zlab"}, "page: name: found True, expected string"),
        ({"name": "x", "version": "1", "profile": "zlab", "ops": ["a", 1]}, "page: ops[1]: found 1, expected string"),
    ],
)
def test_a_message_that_does_not_match_its_schema_is_told_where(value: Any, words: str) -> None:
    with pytest.raises(ImplementationError) as caught:
        validate(value, DESCRIPTION, "page")
    assert str(caught.value) == words
