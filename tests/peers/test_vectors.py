"""The peers on every committed vector: what fails is understood, and what is recorded still differs."""

from __future__ import annotations

from functools import cache

import pytest
from dflash_spec.errors import UnsupportedError
from dflash_spec.registry import load_ops
from dflash_vectors.cases import Selection, default_folder, read_index
from dflash_vectors.checker import check
from dflash_vectors.differences import Difference, read_differences
from dflash_vectors.law.judging import SAMPLED_OPS
from dflash_vectors.peers import authors, transformers_qwen3
from dflash_vectors.runners import open_runner
from dflash_vectors.verdict import PASSED, Run

pytestmark = pytest.mark.peers

PEERS = {
    "dflash": "python:dflash_vectors.peers.authors:create",
    "transformers": "python:dflash_vectors.peers.transformers_qwen3:create",
}
OPS = {"dflash": authors.OPS, "transformers": transformers_qwen3.OPS}
RECORDS = read_differences()
IDS = {entry.id for entry in read_index(default_folder())}


@cache
def checked(peer: str) -> Run:
    """The check of one peer on the committed vectors of its profile, with the records about it."""
    folder = default_folder()
    run = Run(str(folder), tuple(entry for entry in read_index(folder) if Selection("zlab").takes(entry)))
    known = [record for record in RECORDS if record.implementation == peer]
    check(run, [open_runner(PEERS[peer], 60.0)], known, lambda _column, _result: None)
    return run


@pytest.mark.parametrize("peer", PEERS)
def test_every_failure_of_a_peer_is_explained_by_a_record(peer: str) -> None:
    run = checked(peer)
    assert run.broken == []
    assert [f"{result.entry.id}: {result.clause}" for result in run.results() if result.unexplained] == []


@pytest.mark.parametrize("peer", PEERS)
def test_every_record_about_a_peer_explains_a_failure(peer: str) -> None:
    assert checked(peer).stale == []


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_passes_vectors_of_every_op_that_it_declares(peer: str) -> None:
    passed = {result.entry.op.name for result in checked(peer).results() if result.status == PASSED}
    assert passed == {op for op in OPS[peer] if op not in SAMPLED_OPS}  # which have no vectors: their law is judged


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record.implementation}-{record.value}")
def test_a_record_names_a_version_a_rule_or_a_vector_that_exists_and_the_reason(record: Difference) -> None:
    assert record.version
    assert record.why.endswith(".")
    assert "\n" not in record.why
    assert record.subject != "op", "an op has several rules: name the clause or the vector"
    assert record.subject == "clause" or record.value in IDS


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_speaks_the_profile_that_it_follows_and_declares_ops_of_the_spec(peer: str) -> None:
    module = {"dflash": authors, "transformers": transformers_qwen3}[peer]
    described = module.create("zlab").describe()
    assert set(described["ops"]) <= set(load_ops())
    with pytest.raises(UnsupportedError, match="profile zlab, not ninfer"):
        module.create("ninfer")
    with pytest.raises(UnsupportedError, match="no code of its own"):
        module.create("zlab").run("rng.uniform", {})
