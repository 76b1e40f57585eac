"""The adapter that vectors check: what it declares, and that it asks the engine."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dflash_accelerated.conformance import create
from dflash_spec.errors import ConfigError, SpecDataError, UnsupportedError
from dflash_spec.registry import load_ops


@pytest.mark.parametrize("profile", ["ninfer", "zlab"])
def test_every_op_but_the_configs_is_declared(profile: str) -> None:
    described = create(profile).describe()
    assert {op for op in load_ops() if not op.startswith("config.")} <= set(described["ops"]) <= set(load_ops())
    assert described["profile"] == profile


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
