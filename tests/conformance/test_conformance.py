"""Our own implementations on every committed vector: `pytest -m conformance`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dflash_accelerated.native import available
from dflash_vectors.cases import Entry, default_folder, read_index
from dflash_vectors.plugin import Bench, expect_passed

pytestmark = pytest.mark.conformance

IMPLEMENTATIONS = {
    "reference": "python:dflash_vectors.implementations.reference:create",
    "accelerated": "python:dflash_accelerated.conformance:create",
    "accelerated-native": "python:dflash_accelerated.conformance:native",
}
ENTRIES = read_index(default_folder())


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_the_vectors_are_those_of_this_checkout() -> None:
    assert default_folder() == Path(__file__).parents[2] / "vectors" / "golden"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_an_implementation_gives_what_the_vector_says(bench: Bench, name: str, entry: Entry) -> None:
    if name == "accelerated-native" and not available():
        pytest.skip("no C compiler")
    expect_passed(bench, IMPLEMENTATIONS[name], entry)
