"""How configs are read: from bytes, files and folders, member by member, and what any text at all leads to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash_spec.config import (
    DFlash2Config,
    DraftConfig,
    TargetConfig,
    read_draft_config,
    read_target_config,
    read_trainer_config,
)
from dflash_spec.config import members as read
from dflash_spec.config.dflash2 import SCALARS, SIZES
from dflash_spec.config.members import Members
from dflash_spec.errors import ConfigError, UnsupportedConfigError, UnsupportedError
from dflash_spec.registry import PROFILES, load_clauses, load_profile
from dflash_vectors.suites import cfg, cfg_dflash2
from hypothesis import given
from hypothesis import strategies as st

ZLAB, NINFER = load_profile("zlab"), load_profile("ninfer")
CLAUSES = {"read", *(id_ for id_ in load_clauses() if id_.startswith("CFG-"))}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def target(**changes: Any) -> bytes:
    return cfg.edited(cfg.TARGET, changes)


def draft(**changes: Any) -> bytes:
    return cfg.edited(cfg.PUBLISHED, changes)


TARGET = read_target_config(target())


def refusal(read_one: Callable[[], object]) -> str:
    """The clause that refuses; `read` where nothing does."""
    try:
        read_one()
    except ConfigError as error:
        return error.clause
    return "read"


def test_a_target_config_means_what_it_says() -> None:
    assert read_target_config(target(eos_token_id=[3, 5], novel=1, tie_word_embeddings=True)) == TargetConfig(
        architecture="Qwen3ForCausalLM", vocab_size=64, hidden_size=16, intermediate_size=24, layers=9, heads=4,
        kv_heads=2, head_dim=10, eps=float(np.float32(1e-6)), theta=1e6, windows=(0,) * 9, tied=True, stop_ids=(3, 5),
        max_positions=512, unknown=("novel",),
    )  # fmt: skip


def test_a_published_draft_config_means_what_it_says() -> None:
    hybrid = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 5}
    changes = hybrid | {"use_sliding_window": True, "is_causal": cfg.GONE, "novel": 1, "other": None}
    assert read_draft_config(draft(**changes), ZLAB, TARGET) == DraftConfig(
        architecture="DFlashDraftModel", vocab_size=64, hidden_size=16, intermediate_size=40, layers=3, heads=6,
        kv_heads=3, head_dim=8, eps=float(np.float32(1e-5)), theta=1e7, windows=(5, 0, 5), causal=(True, False, True),
        taps=(1, 4, 6), mask_id=61, block_size=5, max_positions=256, unknown=("novel", "other"),
    )  # fmt: skip


def test_a_component_config_takes_its_width_from_the_target() -> None:
    found = read_draft_config(cfg.edited(cfg.COMPONENT, {}), NINFER, TARGET)
    assert (found.hidden_size, found.vocab_size, found.block_size, found.unknown) == (16, None, None, ())


def test_a_published_file_may_be_read_by_a_profile_of_another_schema() -> None:
    assert read_draft_config(draft(), NINFER, TARGET, "published").causal == (False,) * 3
    with pytest.raises(ConfigError, match="CFG-057"):
        read_draft_config(draft(), NINFER, TARGET)


def test_a_trainer_config_means_what_it_says() -> None:
    found = read_trainer_config(
        json.dumps(
            {
                "hidden_size": 4096, "num_hidden_layers": 5, "num_target_layers": 5, "target_hidden_size": 4096,
                "target_num_hidden_layers": 36, "target_layer_ids": [1, 9, 17, 25, 33], "mask_token_id": 151669,
                "vocab_size": 151936, "gamma": 7.0,
            }
        ).encode()
    )  # fmt: skip
    assert (found.target_layers, found.draft_layers, found.taps) == (36, 5, (1, 9, 17, 25, 33))
    assert (found.block_size, found.theta, found.unknown) == (None, None, ("gamma",))


def test_bytes_a_file_and_a_folder_read_alike(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(draft())
    for source in (draft(), tmp_path, tmp_path / "config.json"):
        assert read_draft_config(source, ZLAB, TARGET).taps == (1, 4, 6)


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path}/config.json: cannot be read: No such file") as caught:
        read_target_config(tmp_path)
    assert caught.value.clause == "CFG-001"


def test_generation_settings_beside_a_config_name_the_stop_ids(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(target())
    assert read_target_config(tmp_path).stop_ids == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7], "top_k": 20}')
    assert read_target_config(tmp_path).stop_ids == (9, 7)
    (tmp_path / "generation_config.json").write_text('{"top_k": 20}')
    assert read_target_config(tmp_path).stop_ids == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 64}')
    with pytest.raises(ConfigError, match=r"generation_config.json: eos_token_id: found 64, expected ids from 0 to 63"):
        read_target_config(tmp_path)


def test_an_error_names_the_file_the_member_what_was_found_and_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(draft(head_dim=7))
    with pytest.raises(ConfigError) as caught:
        read_draft_config(tmp_path, ZLAB, TARGET)
    assert str(caught.value) == f"{tmp_path}/config.json: head_dim: found 7, expected an even number [CFG-016]"
    assert (caught.value.key, caught.value.clause) == ("head_dim", "CFG-016")


def test_a_nested_member_is_named_with_its_object() -> None:
    with pytest.raises(ConfigError) as caught:
        read_draft_config(cfg.edited(cfg.PUBLISHED, {"dflash_config.mask_token_id": -1}), ZLAB, TARGET)
    assert caught.value.key == "dflash_config.mask_token_id"


@pytest.mark.parametrize(
    "changes",
    [{"hidden_act": "gelu"}, {"attention_bias": True},
     {"output_multiplier": 2}, {"rope_scaling": {"type": "yarn", "factor": 2}}, {"is_neox_style": False},
     {"draft_vocab_size": 8}],
)  # fmt: skip
def test_what_is_readable_but_not_executable_is_told_apart(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedConfigError):
        read_draft_config(draft(**changes), ZLAB, TARGET)
    assert issubclass(UnsupportedConfigError, UnsupportedError)


def test_a_dflash2_draft_config_means_what_it_says() -> None:
    scalars = {"dflash_config.output_multiplier": 0.1, "final_logit_softcapping": 20}
    found = read_draft_config(cfg.edited(cfg_dflash2.SECOND_PUBLISHED, scalars), ZLAB, TARGET)
    assert found == DFlash2Config(
        architecture="DFlash2DraftModel", vocab_size=64, hidden_size=16, intermediate_size=40, layers=3, heads=6,
        kv_heads=3, head_dim=8, eps=float(np.float32(1e-5)), theta=1e7, windows=(0, 0, 0), causal=(False,) * 3,
        taps=(1, 4, 6), mask_id=61, block_size=5, max_positions=256, conv_taps=3, conv_group=4, selector_rank=10,
        selector_top_k=6, codebook_rows=64, output_multiplier=float(np.float32(0.1)), softcap=20.0,
    )  # fmt: skip
    component = read_draft_config(cfg.edited(cfg_dflash2.SECOND_COMPONENT, {}), NINFER, TARGET)
    assert isinstance(component, DFlash2Config)
    assert (component.vocab_size, component.codebook_rows) == (None, 64)
    assert (component.output_multiplier, component.softcap) == (1.0, 0.0)


def test_a_backend_reads_its_own_drafts_and_refuses_the_others_by_name() -> None:
    first, second = draft(), cfg.edited(cfg_dflash2.SECOND_PUBLISHED, {})
    assert [type(read_draft_config(first, ZLAB, TARGET, backend=backend)) for backend in (None, 1)] == [DraftConfig] * 2
    for backend in (None, 2):
        assert isinstance(read_draft_config(second, ZLAB, TARGET, backend=backend), DFlash2Config)
    for text, backend in ((first, 2), (second, 1)):
        with pytest.raises(UnsupportedConfigError, match="CFG-013"):
            read_draft_config(text, ZLAB, TARGET, backend=backend)


def test_no_dflash2_config_is_read_as_dflash() -> None:
    """Whatever is left out of a DFlash2 file, a name or some of its members, the rest is no DFlash config."""
    for base, profile in ((cfg_dflash2.SECOND_PUBLISHED, ZLAB), (cfg_dflash2.SECOND_COMPONENT, NINFER)):
        for kept in (base, base | {"architectures": ["DFlashDraftModel"]}):
            for lost in cfg_dflash2.PATHS:
                with pytest.raises(ConfigError):
                    read_draft_config(cfg.edited(kept, {lost: cfg.GONE}), profile, TARGET)


def test_a_number_too_large_for_any_float_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="CFG-007"):
        read.positive_float(Members({"rope_theta": 10**400}, "f"), "rope_theta")


def test_text_that_python_reads_but_json_has_not_is_refused() -> None:
    for text in (b"[" * 99999, b'{"a": ' + b"9" * 5000 + b"}", b"\xff", b"{'a': 1}"):
        with pytest.raises(ConfigError, match="CFG-001"):
            read.parse(text, "f")


@given(st.binary(max_size=40))
def test_any_bytes_give_members_or_a_config_error(data: bytes) -> None:
    assert refusal(lambda: read.parse(data, "f")) in {"read", "CFG-001", "CFG-002", "CFG-003"}


@given(st.sampled_from(sorted({*cfg.PUBLISHED, *cfg.TARGET, "rope_parameters", "rope_scaling", "use_sliding_window",
                               "sliding_window", "max_window_layers"})), JSON, st.sampled_from(PROFILES))  # fmt: skip
def test_any_value_of_a_member_gives_a_config_or_a_config_error(key: str, value: Any, name: str) -> None:
    profile = load_profile(name)
    for read_one in (
        lambda: read_draft_config(draft(**{key: value}), profile, TARGET, "published"),
        lambda: read_draft_config(cfg.edited(cfg.COMPONENT, {key: value}), profile, TARGET, "component"),
        lambda: read_target_config(target(**{key: value})),
        lambda: read_trainer_config(cfg.edited(cfg.TRAINER, {key: value})),
    ):
        assert refusal(read_one) in CLAUSES


@given(st.sampled_from(["mask_token_id", "target_layer_ids", "block_size", "novel"]), JSON)
def test_any_value_of_a_nested_member_gives_a_config_or_a_config_error(key: str, value: Any) -> None:
    text = cfg.edited(cfg.PUBLISHED, {f"dflash_config.{key}": value})
    clause = refusal(lambda: read_draft_config(text, ZLAB, TARGET))
    assert clause in CLAUSES
    if clause == "read":
        found = read_draft_config(text, ZLAB, TARGET)
        assert all(0 <= tap < TARGET.layers for tap in found.taps)
        assert 0 <= found.mask_id < TARGET.vocab_size


@given(st.sampled_from([*SIZES, *SCALARS]), JSON, st.booleans())
def test_any_value_of_a_dflash2_member_gives_a_config_or_a_config_error(key: str, value: Any, nested: bool) -> None:
    text = cfg.edited(cfg_dflash2.SECOND_PUBLISHED, {f"dflash_config.{key}" if nested else key: value})
    clause = refusal(lambda: read_draft_config(text, ZLAB, TARGET))
    assert clause in CLAUSES
    if clause == "read":
        found = read_draft_config(text, ZLAB, TARGET)
        assert isinstance(found, DFlash2Config)
        assert found.hidden_size % found.conv_group == 0
        assert found.selector_top_k <= TARGET.vocab_size
        assert found.output_multiplier > 0
        assert found.softcap >= 0
