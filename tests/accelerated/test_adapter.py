"""The adapter that vectors check: what it declares, and that it asks the engine."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dflash_accelerated.conformance import create
from dflash_spec.errors import ConfigError, SpecDataError, UnsupportedError
from dflash_spec.registry import load_clauses, load_ops, load_profile


@pytest.mark.parametrize("profile", ["ninfer", "zlab"])
def test_every_op_but_the_configs_is_declared(profile: str) -> None:
    described = create(profile).describe()
    asked = {op for clause in load_clauses().values() if clause.holds_in(load_profile(profile)) for op in clause.ops}
    assert {op for op in asked if not op.startswith("config.")} <= set(described["ops"]) <= set(load_ops())
    assert described["profile"] == profile


def test_a_profile_that_is_stated_on_some_ops_is_answered_on_these() -> None:
    described = create("zlab-2026-04").describe()
    assert set(described["ops"]) == {"proc.filter", "proc.choose", "law.match", "block.extent"}
    with pytest.raises(UnsupportedError, match=r"op 'law\.greedy'"):
        create("zlab-2026-04").run("law.greedy", {})


def test_what_the_engine_refuses_is_an_answer_of_one_word() -> None:
    scores = {"adjusted": np.array([[0.5, np.nan]], np.float32), "temperature": np.array(0.0, np.float32)}
    answer = create("ninfer").run("proc.choose", scores)
    assert {name: int(value) for name, value in answer.items()} == {"refused": 1}
    scores["adjusted"][0, 1] = 0.25
    assert create("ninfer").run("proc.choose", scores)["tokens"].tolist() == [0]


def test_an_undeclared_op_and_an_unknown_profile_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"config\.read_trainer"):
        create("zlab").run("config.read_trainer", {})
    with pytest.raises(SpecDataError, match="nobody"):
        create("nobody")


def test_stages_come_under_their_prefix_and_outputs_bare() -> None:
    inputs = {"features": np.ones((3, 4)), "fc": np.eye(2, 4), "hidden_norm": np.ones(2), "eps": np.array(1e-6)}
    answer = create("zlab").run("context.feature", {name: value.astype(np.float32) for name, value in inputs.items()})
    assert set(answer) == {"stage.projected", "c"}
    assert answer["c"].dtype == np.float32


def test_a_config_that_breaks_a_rule_raises_its_named_error() -> None:
    text = json.dumps({"architectures": ["LlamaForCausalLM"]}).encode()
    with pytest.raises(ConfigError):
        create("zlab").run("config.read_target", {"target": np.frombuffer(text, dtype=np.uint8)})
