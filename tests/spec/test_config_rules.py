"""Every clause of the chapter is the one that its own vector is refused by; formulas, widths and inventories."""

import json
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import dflash_spec.config
import numpy as np
import pytest
from dflash_spec.config import (
    DFlash2Config,
    bounded_count,
    check_reduced_taps,
    draft_count,
    draft_start,
    draft_tensors,
    executable,
    half_even_taps,
    integer_step_taps,
    matched_count,
    read_draft_config,
    read_target_config,
    target_tensors,
)
from dflash_spec.config.folder import Held, read_listing
from dflash_spec.config.operations import OPERATIONS
from dflash_spec.errors import ConfigError
from dflash_spec.geometry import load_geometries
from dflash_spec.registry import load_clauses, load_ops, load_profile
from dflash_vectors.suite import Case, all_cases
from dflash_vectors.suites import cfg, cfg_dflash2
from hypothesis import given
from hypothesis import strategies as st

ZLAB, NINFER = load_profile("zlab"), load_profile("ninfer")
CASES = all_cases(chapter="CFG")


def answer(case: Case) -> Any:
    inputs = {name: np.asarray(value) for name, value in case.inputs.items()}
    plain = {name: value.item() if value.ndim == 0 else value for name, value in inputs.items()}
    return OPERATIONS[case.op](**plain, profile=load_profile(case.profile))


def refusal(case: Case) -> str:
    """The clause that refuses a case; empty where it is answered."""
    try:
        answer(case)
    except ConfigError as error:
        return error.clause
    return ""


def test_a_refused_vector_is_refused_by_its_own_clause() -> None:
    refused = {case.id: (refusal(case), case.clauses[0]) for case in CASES if refusal(case)}
    assert {id_: pair for id_, pair in refused.items() if pair[0] != pair[1]} == {}
    assert len(refused) > len(CASES) // 3


def test_every_error_clause_refuses_a_vector() -> None:
    blamed = {refusal(case) for case in CASES}
    errors = {clause.id for clause in load_clauses().values() if clause.chapter == "CFG" and clause.kind == "error"}
    assert errors <= blamed


def test_every_config_clause_is_cited_by_exactly_one_function() -> None:
    cited = []
    for path in Path(dflash_spec.config.__path__[0]).glob("*.py"):
        cited += re.findall(r"Clause: (CFG-\d{3})", path.read_text())
    assert sorted(cited) == [id_ for id_ in load_clauses() if id_.startswith("CFG-")]


def test_every_config_op_takes_its_inputs_by_name_and_returns_its_outputs_in_order() -> None:
    config_ops = {name: op for name, op in load_ops().items() if op.chapter == "CFG"}
    assert config_ops.keys() == OPERATIONS.keys()
    answered = set()
    for case in CASES:
        try:
            fields = answer(case)._fields
        except ConfigError:
            continue
        assert fields == tuple(spec.name for spec in config_ops[case.op].outputs)
        answered.add(case.op)
    assert answered == OPERATIONS.keys()


@pytest.mark.parametrize(
    ("layers", "taps", "ids"),
    [
        (36, 1, (18,)), (36, 2, (1, 33)), (36, 5, (1, 9, 17, 25, 33)), (36, 8, (1, 6, 10, 15, 19, 24, 28, 33)),
        (28, 5, (1, 7, 13, 19, 25)), (32, 5, (1, 8, 15, 22, 29)), (64, 5, (1, 16, 31, 46, 61)),
        (40, 8, (1, 6, 11, 16, 22, 27, 32, 37)), (48, 8, (1, 7, 14, 20, 26, 32, 39, 45)),
        (52, 5, (1, 13, 25, 37, 49)), (40, 9, (1, 6, 10, 14, 19, 24, 28, 32, 37)), (60, 6, (1, 12, 23, 35, 46, 57)),
    ],
)  # fmt: skip
def test_half_even_taps_are_the_recorded_ones(layers: int, taps: int, ids: tuple[int, ...]) -> None:
    assert half_even_taps(layers, taps) == ids


@given(st.integers(1, 200), st.integers(1, 40))
def test_half_even_taps_are_the_exact_formula_or_an_error(layers: int, taps: int) -> None:
    exact = [round(1 + Fraction(i * (layers - 4), max(taps - 1, 1))) for i in range(taps)]
    exact = [layers // 2] if taps == 1 else exact
    rising = exact == sorted(set(exact)) and exact[0] >= 0 and exact[-1] < layers
    if rising and taps <= layers:
        assert list(half_even_taps(layers, taps)) == exact
    else:
        with pytest.raises(ConfigError):
            half_even_taps(layers, taps)


def test_the_two_formulas_part_where_the_step_is_no_integer() -> None:
    assert integer_step_taps(60, 6) == (1, 12, 23, 34, 45, 56)
    assert integer_step_taps(36, 5) == half_even_taps(36, 5)
    assert [n for n in ((40, 8), (60, 6), (62, 5)) if integer_step_taps(*n) == half_even_taps(*n)] == []


@given(st.integers(1, 60), st.integers(2, 20))
def test_integer_step_taps_rise_by_one_step_or_are_an_error(layers: int, taps: int) -> None:
    try:
        ids = integer_step_taps(layers, taps)
    except ConfigError:
        assert taps > layers or (layers - 2) // (taps - 1) < 1
        return
    assert ids[0] == 1
    assert {right - left for left, right in pairwise(ids)} == {(layers - 2) // (taps - 1)}
    assert ids[-1] < layers


@given(st.integers(1, 12), st.lists(st.integers(-1, 12), max_size=5))
def test_a_stand_in_is_admitted_if_and_only_if_it_is_even_rising_and_in_range(layers: int, ids: list[int]) -> None:
    gaps = [right - left for left, right in pairwise(ids)]
    even = all(gap >= 1 for gap in gaps) and len(set(gaps)) <= 2 and max(gaps, default=0) - min(gaps, default=0) <= 1
    if ids and even and min(ids) >= 0 and max(ids) < layers:
        check_reduced_taps(layers, ids)
    else:
        with pytest.raises(ConfigError):
            check_reduced_taps(layers, ids)


def test_the_width_rules_differ_as_the_systems_do() -> None:
    assert [draft_count(NINFER, None, k) for k in (1, 15)] == [1, 15]
    assert [draft_count(ZLAB, *pair) for pair in ((16, None), (None, None), (1, None), (8, 20))] == [15, 15, 0, 20]
    assert (matched_count(10, 9), bounded_count(10, 4)) == (9, 4)
    for profile, block_size, requested in ((NINFER, 16, None), (NINFER, None, 16), (ZLAB, 0, None), (ZLAB, 16, 0)):
        with pytest.raises(ConfigError):
            draft_count(profile, block_size, requested)
    for count, requested in ((matched_count, 8), (bounded_count, 10)):
        with pytest.raises(ConfigError):
            count(10, requested)


def test_a_draft_of_five_layers_has_58_tensors_and_no_table() -> None:
    target = read_target_config(cfg.edited(cfg.TARGET, {}))
    layers = {"num_hidden_layers": 5, "layer_types": [cfg.FULL] * 5}
    shapes = draft_tensors(read_draft_config(cfg.edited(cfg.PUBLISHED, layers), ZLAB, target))
    assert len(shapes) == 58
    assert shapes["fc.weight"] == (16, 3 * 16)
    assert shapes["layers.4.self_attn.q_proj.weight"] == (6 * 8, 16)
    assert shapes["layers.0.self_attn.k_proj.weight"] == (3 * 8, 16)
    assert shapes["layers.0.self_attn.o_proj.weight"] == (16, 6 * 8)
    assert shapes["layers.0.self_attn.k_norm.weight"] == (8,)
    assert shapes["layers.0.mlp.down_proj.weight"] == (16, 40)
    assert not any("embed" in name or "lm_head" in name for name in shapes)


def test_a_dflash2_draft_of_five_layers_has_81_tensors_of_which_58_are_dflashs() -> None:
    target = read_target_config(cfg.edited(cfg.TARGET, {}))
    layers = {"num_hidden_layers": 5, "layer_types": [cfg.FULL] * 5}
    first = draft_tensors(read_draft_config(cfg.edited(cfg.PUBLISHED, layers), ZLAB, target))
    for base, profile in ((cfg_dflash2.SECOND_PUBLISHED, ZLAB), (cfg_dflash2.SECOND_COMPONENT, NINFER)):
        shapes = draft_tensors(read_draft_config(cfg.edited(base, layers), profile, target))
        assert len(shapes) == 81
        assert first.items() <= shapes.items()
        assert shapes["layers.4.mlp_conv.base_kernel"] == (2, 3, 16)
        assert shapes["layers.0.attention_conv.kernel_projection.weight"] == (2 * 3 * 4, 16)
        assert shapes["candidate_selector.hidden_projection.weight"] == (10, 16)
        assert shapes["candidate_selector.predecessor_codebook"] == (64, 10)
        assert not any(name.endswith("codebook.weight") for name in shapes)


def test_the_official_dflash2_draft_alone_has_kernels() -> None:
    for name, geometry in load_geometries().items():
        if geometry.dflash2:
            sizes = {"num_hidden_layers": geometry.target_layers, "hidden_size": geometry.hidden_size,
                     "vocab_size": geometry.vocab_size}  # fmt: skip
            target = read_target_config(cfg.edited(cfg.TARGET, sizes))
            found = read_draft_config(json.dumps(geometry.published()).encode(), ZLAB, target)
            assert isinstance(found, DFlash2Config)
            assert executable(found) is (name == "qwen3.8-27b")


def test_a_start_gives_the_width_of_its_one_backend() -> None:
    target = read_target_config(cfg.edited(cfg.TARGET, {}))
    second = cfg.edited(cfg_dflash2.SECOND_PUBLISHED, {})
    assert draft_start(second, ZLAB, target, 2, None, 60, 0) == 4
    assert draft_start(second, ZLAB, target, 2, 11, 60, 0) == 11
    component = cfg.edited(cfg_dflash2.SECOND_COMPONENT, {})
    assert draft_start(component, NINFER, target, 2, 15, 60, 6) == 15
    for backend in (1, 0, 3):
        with pytest.raises(ConfigError):
            draft_start(component, NINFER, target, backend, 15, 60, 0)


@pytest.mark.parametrize("line", ["a", "a BF16 2x", "a BF16 x2", "a BF16 2 3", " BF16 2", "a  2", "a BF16 -1"])
def test_a_listing_of_another_form_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="tensor listing: found"):
        read_listing(line)


def test_a_listing_holds_each_name_once_and_single_values_without_sizes() -> None:
    assert read_listing("a BF16 2x3\nb F32") == {"a": Held("BF16", (2, 3)), "b": Held("F32", ())}
    with pytest.raises(ConfigError, match="found 'a F32 3'"):
        read_listing("a BF16 2\na F32 3")


@pytest.mark.parametrize(("tied", "head"), [(True, False), (False, True)])
def test_a_target_has_a_head_of_its_own_unless_tied(tied: bool, head: bool) -> None:
    shapes = target_tensors(read_target_config(cfg.edited(cfg.TARGET, {"tie_word_embeddings": tied})))
    assert ("lm_head.weight" in shapes) is head
    assert shapes["model.embed_tokens.weight"] == (64, 16)
    assert len(shapes) == 2 + head + 9 * 11
