"""Innocent variants: honest FP32 ports in miniature, which every vector must let pass."""

from contextlib import ExitStack

import numpy as np
import pytest
from dflash_reference import conv, draft2, filters, head, layer, num, penalties, processing, selector
from dflash_spec.registry import PROFILES, load_ops, load_profile
from dflash_vectors.build import judge
from dflash_vectors.cases import default_folder, load_case, read_index
from dflash_vectors.faults import patched
from dflash_vectors.innocents import INNOCENTS, computing_as, innocents_of
from dflash_vectors.inputs import normal_like
from dflash_vectors.run import execute, input_tensors, numbers
from dflash_vectors.suite import all_cases

HALF = 0.5
GROUPS = {
    case.id if load_ops()[case.op].composite else f"{case.profile}-{case.op}": (case.profile, case.op)
    for case in all_cases()
    if not case.op.startswith("config.")
}
"""A composite's case alone, the others of one op and profile together; reading a config computes nothing."""
COMMITTED = {entry.id: entry for entry in read_index(default_folder())}
TARGETS = sorted({target for innocent in INNOCENTS for target in innocent.patches})


def fraction(got, want, bound):
    """The largest distance in bounds; infinite where a value without a bound differs."""
    gap = np.where(got == want, 0.0, np.abs(np.where(np.isfinite(want) & np.isfinite(got), got - want, np.inf)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(gap == 0, 0.0, gap / bound).max(initial=0.0))


def bounds_of(case):
    """The bounds of the committed vector, which are those that are generated (`test_regeneration.py`)."""
    expected = load_case(COMMITTED[case.id]).expected
    return {each.name: each.bound for each in expected if each.bound is not None}


def run_noting(op, inputs, profile):
    """A result, and which functions that some variant replaces led to it: no variant of others can change it."""
    called = set()

    def noting(target):
        def wrap(true):
            def noted(*given, **named):
                called.add(target)
                return true(*given, **named)

            return noted

        return wrap

    with ExitStack() as stack:
        for target in TARGETS:
            stack.enter_context(patched(target, noting(target)))
        return execute(op, inputs, profile), called


def test_there_are_at_least_ten_variants_in_each_profile_and_no_two_have_one_name():
    assert len({innocent.name for innocent in INNOCENTS}) == len(INNOCENTS)
    assert all(len(innocents_of(profile)) >= 10 for profile in PROFILES)


@pytest.mark.parametrize("innocent", INNOCENTS, ids=lambda innocent: innocent.name)
def test_every_variant_computes_something_else_and_is_undone_after(innocent):
    profile = load_profile(innocent.profiles[-1])
    act = profile.dtypes["ACT"]
    x, weight = normal_like("x", (5, 70), 1.0, act), normal_like("w", (9, 70), 0.3, act)
    heads = normal_like("h", (5, 4, 8), 1.0, act)
    keys, values = normal_like("k", (20, 2, 8), 1.0, act), normal_like("v", (20, 2, 8), 1.0, "F16")
    seen, positions = np.ones((5, 20), dtype=bool), np.arange(5) * 1000 + 999

    square, tall = np.tile(weight, (8, 1))[:70], weight.T.copy()
    base, increments = weight[:4].reshape(2, 2, 70), normal_like("d", (5, 2, 7), 1.0, act)

    def results():
        return [
            num.contract(x, weight),
            layer.rms_norm(x, weight[0], 1e-6),
            layer.rope(heads, positions, 1e4, profile),
            layer.attention_weights(layer.scores(heads, keys), 8, seen),
            layer.attention(heads, keys, values, seen, profile),
            layer.output(x, square, x, profile).y,
            layer.mlp(x, weight[0], weight, weight, tall, 1e-6, profile).x_next,
            processing.distribution(x, float(np.float32(0.7)), 70, profile).p,
            conv.convolve(x, weight[:2], increments, 10, 5),
            conv.finish(x, square, base, increments, x, 10, 5, profile).residual_next,
            draft2.mlp(x, weight, weight, profile).product,
            selector.scored(x[0, :9], x[1], x[2], weight),
            selector.softened(x[0], float(np.float32(0.7))),
            head.capped(x, float(np.float32(0.3)), float(np.float32(1.7))),
            penalties.penalised(x, np.full(x.shape, 7), float(np.float32(0.7)), float(np.float32(0.3))),
            filters.renormalised(np.abs(x)),
        ]

    before = results()
    with computing_as(innocent):
        during = results()
    assert any(not np.array_equal(one, other) for one, other in zip(before, during, strict=True))
    assert all(np.array_equal(one, other) for one, other in zip(before, results(), strict=True))


@pytest.mark.parametrize("group", GROUPS)
def test_every_variant_stays_within_half_of_every_bound_and_equals_what_is_exact(group):
    furthest: dict[str, float] = {}
    profile_name, op = GROUPS[group]
    cases = all_cases(profile_name, op=op)
    for case in [case for case in cases if case.id == group] or cases:
        profile = load_profile(case.profile)
        inputs = numbers(input_tensors(case)[0])
        true, called = run_noting(case.op, inputs, profile)
        bounds = bounds_of(case)
        for innocent in innocents_of(case.profile):
            if called.isdisjoint(innocent.patches):
                continue
            with computing_as(innocent):
                other = execute(case.op, inputs, profile)
            assert set(other) == set(true)
            for name, want in true.items():
                if name in bounds:
                    share = fraction(other[name], want, bounds[name])
                    assert share <= HALF, f"{case.id}: {name}: {innocent.name} is {share:.3g} of the bound away"
                    furthest[innocent.name] = max(furthest.get(innocent.name, 0.0), share)
                else:
                    same = np.array_equal(other[name], want, equal_nan=want.dtype.kind == "f")
                    assert same, f"{case.id}: {name}: {innocent.name} gives another value"
    for name, share in sorted(furthest.items(), key=lambda item: -item[1]):
        print(f"{group:<48} {name:<36} {share:6.3f} of the bound")


def test_a_sum_in_bf16_is_not_innocent():
    """The comparison above can fail: what the clauses forbid is beyond the bound."""
    case = next(case for case in all_cases("ninfer", op="num.contract") if not case.exact)
    profile = load_profile("ninfer")
    inputs = numbers(input_tensors(case)[0])
    true = execute(case.op, inputs, profile)
    bounds, _ = judge(case, inputs, true, profile)
    x, w = inputs["x"], inputs["w"]
    total = np.zeros((len(x), len(w)))
    for index in range(x.shape[1]):
        total = num.round_to(total + x[:, index, None] * w[:, index], "BF16")
    assert fraction(total, true["y"], bounds["y"]) > 2
