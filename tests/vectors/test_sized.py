"""Vectors at the sizes of a geometry: on demand, with their cost first, as good as the committed ones."""

import numpy as np
import pytest
from dflash_spec.geometry import load_geometries
from dflash_spec.registry import PROFILES, load_profile
from dflash_vectors.build import build, judge
from dflash_vectors.cases import load_case, read_index
from dflash_vectors.commands import gen_vectors
from dflash_vectors.innocents import computing_as, innocents_of
from dflash_vectors.run import execute, input_tensors, numbers
from dflash_vectors.sized import BEYOND, cost, plan, sized_cases
from dflash_vectors.sized_dflash2 import HEAD_ROWS

TINY = sorted(name for name, geometry in load_geometries().items() if not geometry.official)
OFFICIAL = sorted(name for name, geometry in load_geometries().items() if geometry.official)
DFLASH2 = sorted(name for name, geometry in load_geometries().items() if geometry.dflash2)


def of(name, profile):
    geometry = load_geometries()[name]
    return sized_cases(geometry, plan(geometry), load_profile(profile))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", TINY)
def test_honest_ports_stay_within_half_of_every_bound_at_a_geometry(name, profile):
    seen, declared = set(), load_profile(profile)
    for case in of(name, profile):
        seen.add(case.op)
        inputs = numbers(input_tensors(case)[0])
        true = execute(case.op, inputs, declared)
        bounds, _ = judge(case, inputs, true, declared)
        for innocent in innocents_of(profile):
            with computing_as(innocent):
                other = execute(case.op, inputs, declared)
            for name_, bound in bounds.items():
                assert (np.abs(other[name_] - true[name_]) <= bound / 2).all(), (case.id, name_, innocent.name)
    assert seen == {sized.op for sized in plan(load_geometries()[name]) if sized.holds(declared)}


@pytest.mark.parametrize("name", OFFICIAL)
def test_an_official_geometry_is_planned_at_its_own_sizes_without_making_a_value(name):
    geometry = load_geometries()[name]
    planned = {(case.op, case.slug): case for case in plan(geometry)}
    mlp = planned["draft.mlp", "rows"]
    assert mlp.weights["down_proj"] == (geometry.hidden_size, geometry.intermediate_size)
    assert mlp.rows["y"] == (geometry.block_size, geometry.hidden_size)
    for window in set(geometry.windows) - {0}:
        attention = planned["draft.attention", f"window-{window}"]
        assert attention.scalars["context_length"] == window + BEYOND
        assert attention.scalars["positions"][-1] == geometry.max_positions - 1


@pytest.mark.parametrize("name", DFLASH2)
def test_the_parts_of_a_head_are_all_its_rows_once_and_no_part_is_more_than_memory_should_hold(name):
    geometry = load_geometries()[name]
    parts = [case for case in plan(geometry) if case.op == "head.top"]
    ids = np.concatenate([part.scalars["global_ids"] for part in parts])
    np.testing.assert_array_equal(ids, np.arange(geometry.vocab_size))
    assert sum(part.scalars["public"] for part in parts) == geometry.public
    assert max(len(part.scalars["global_ids"]) for part in parts) <= HEAD_ROWS


@pytest.mark.parametrize("name", DFLASH2)
def test_new_rows_of_a_ring_go_round_its_end_and_reach_the_last_position(name):
    geometry = load_geometries()[name]
    (sized,) = (case for case in plan(geometry) if case.op == "context.materialize")
    slots = sized.scalars["positions"][0] % sized.rows["ring_key"][2]
    assert (np.diff(slots[: sized.scalars["counts"][0]]) < 0).sum() == 1
    assert sized.scalars["positions"].max() == geometry.max_positions - 1


def test_the_widest_geometry_is_planned_at_its_rank_and_its_table():
    planned = {(case.op, case.slug): case for case in plan(load_geometries()["qwen3.8-27b"])}
    assert planned["selector.walk", "greedy"].weights["successor"] == (248320, 256)
    assert planned["conv.finish", "mlp"].rows["branch"] == (64, 17408)
    assert planned["context.materialize", "ring-2048"].rows["ring_key"] == (2, 1, 2048, 8, 128)


def test_the_estimated_size_is_that_of_the_inputs():
    geometry, profile = load_geometries()["tiny-full"], load_profile("zlab")
    for sized, case in zip(plan(geometry), of("tiny-full", "zlab"), strict=True):
        floats = sum(np.size(v) * 4 for v in case.inputs.values() if np.ndim(v) and np.asarray(v).dtype.kind == "f")
        assert sized.size(profile) == floats
        assert len(build(case).content) > floats
    assert cost(geometry, plan(geometry), [profile]).startswith("tiny-full: 8 vectors, 0 MiB, about 0 s")


def test_the_command_prints_the_cost_and_writes_a_set_that_reads_back(tmp_path, capsys):
    folder = tmp_path / "set"
    arguments = ["--geometry", "tiny-hybrid", "--suite", "CTX", "--out", str(folder)]
    assert gen_vectors.main(arguments) == 0
    assert capsys.readouterr().out.startswith("tiny-hybrid: 6 vectors, 0 MiB")
    entries = read_index(folder)
    assert [entry.op.name for entry in entries] == ["context.feature", "context.key", "context.value"] * 2
    assert all(load_case(entry).metadata["geometry"] == "tiny-hybrid" for entry in entries)
    assert gen_vectors.main([*arguments, "--check"]) == 0


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--geometry", "huge"], "geometry 'huge', expected one of tiny, "),
        (["--geometry", "tiny-full", "--suite", "LAW"], "no case of suite LAW at a geometry; ops: context.feature"),
    ],
)
def test_what_a_geometry_does_not_have_is_said(arguments, found, capsys):
    assert gen_vectors.main([*arguments, "--out", "unused"]) == 2
    assert found in capsys.readouterr().err
