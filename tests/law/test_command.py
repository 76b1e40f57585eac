"""`enumerate_law` says what the enumeration found, and by its exit code whether all is well."""

from __future__ import annotations

import re

import pytest
from dflash_vectors.commands.enumerate_law import main
from dflash_vectors.faults import patched
from dflash_vectors.law.configs import BACKENDS, configs


def test_a_backend_is_proved_request_by_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", "zlab-greedy"]) == 0
    asked = sum(config.backend == "zlab-greedy" for config in configs())
    said = capsys.readouterr().out
    assert re.search(rf"zlab-greedy +{asked} +{asked} ", said)  # a greedy request has one outcome
    assert f"{asked} of {asked} requests have exactly the law that they must" in said


def test_a_law_that_is_wrong_is_named_with_its_request(capsys: pytest.CaptureFixture[str]) -> None:
    with patched("dflash_reference.law.matching_prefix", lambda true: lambda proposals, target: 0):
        assert main(["--backend", "ninfer-greedy"]) == 1
    said = capsys.readouterr().out
    assert "counts go with other tokens than they must" in said
    assert "ninfer-greedy K=" in said


def test_tokens_of_another_law_are_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    def emit_the_proposal(true):
        return lambda proposals, target: len(proposals)

    with patched("dflash_reference.law.matching_prefix", emit_the_proposal):
        assert main(["--backend", "zlab-greedy"]) == 1
    assert "tokens have another law than plain decoding's" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("residual-by-size", "moves the law of the tokens"),
        ("last-proposal-not-tested", "keeps the law of the tokens and moves that of the counts"),
        ("coin-equal-to-p-accepts", "keeps every law: it differs where a uniform lies on a threshold"),
        ("greedy-at-0-alone", "ends a request"),
        ("unread-nan-ends-the-round", "cannot be enumerated: it looks for a NaN"),
    ],
)
def test_a_fault_is_told_what_it_does(fault: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fault", fault]) == 0
    assert said in capsys.readouterr().out


def test_names_that_nobody_has_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", "zlab-dflash3"]) == 2
    assert f"expected one of {', '.join(BACKENDS)}" in capsys.readouterr().err
    assert main(["--fault", "residual-by-sizes"]) == 2
    assert "did you mean 'residual-by-size'?" in capsys.readouterr().err
