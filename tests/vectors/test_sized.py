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
from dflash_vectors.sized import BEYOND, CLAUSES, cost, plan, sized_cases

TINY = sorted(name for name, geometry in load_geometries().items() if not geometry.official)
OFFICIAL = sorted(name for name, geometry in load_geometries().items() if geometry.official)


def of(name, profile):
    geometry = load_geometries()[name]
    return sized_cases(geometry, plan(geometry), load_profile(profile))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", TINY)
def test_honest_ports_stay_within_half_of_every_bound_at_a_geometry(name, profile):
    seen = set()
    for case in of(name, profile):
        seen.add(case.op)
        declared = load_profile(profile)
        inputs = numbers(input_tensors(case)[0])
        true = execute(case.op, inputs, declared)
        bounds, _ = judge(case, inputs, true, declared)
        for innocent in innocents_of(profile):
            with computing_as(innocent):
                other = execute(case.op, inputs, declared)
            for name_, bound in bounds.items():
                assert (np.abs(other[name_] - true[name_]) <= bound / 2).all(), (case.id, name_, innocent.name)
    assert seen == set(CLAUSES)


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
