"""Our own implementations on every committed vector: `pytest -m conformance`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dflash_accelerated.native import available
from dflash_vectors.cases import default_folder, read_index
from dflash_vectors.plugin import Bench, VectorFailure, expect_passed

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


@pytest.mark.parametrize(("profile", "op"), sorted({(entry.profile.name, entry.op.name) for entry in ENTRIES}))
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_an_implementation_gives_what_the_vectors_of_an_op_say(bench: Bench, name: str, profile: str, op: str) -> None:
    if name == "accelerated-native" and not available():
        pytest.skip("no C compiler")
    skipped, failures = list[str](), list[str]()
    own = [entry for entry in ENTRIES if (entry.profile.name, entry.op.name) == (profile, op)]
    for entry in own:
        try:
            expect_passed(bench, IMPLEMENTATIONS[name], entry)
        except pytest.skip.Exception as skip:
            skipped.append(str(skip))
        except VectorFailure as failure:
            failures.append(str(failure))
    assert not failures, "\n\n".join(failures)
    if skipped:
        assert len(skipped) == len(own), f"{len(skipped)} of {len(own)} vectors were skipped: {skipped[0]}"
        pytest.skip(skipped[0])
