"""DFlash2 is DFlash, except in the functions named here; and with an idle convolution its rows are DFlash's."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from dflash_reference import context, draft, draft2, engine, models
from dflash_reference.request import Settings
from dflash_spec.registry import Profile, load_profile
from dflash_vectors import inputs
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
WINDOWS = (4, 4)
Build = Callable[..., Any]


class Difference(NamedTuple):
    """Functions that DFlash runs and DFlash2 does not, and those that DFlash2 runs in their place."""

    first: set[str]
    second: set[str]
    profiles: tuple[str, ...] = ("ninfer", "zlab")
    temperatures: tuple[float, ...] = (0.0, 2.0)


DIFFERENCES = {
    "tensors: two convolutions a layer, and a selector": Difference(set(), {"models.Draft2"}),
    "a layer": Difference({"draft.decoder_layer"}, {"draft2.decoder_layer"}),
    "input norm, and the convolution of the normed row": Difference(
        set(), {"conv.prepare", "conv.increments", "conv.convolve", "conv.steps_back", "conv.rows_before",
                "conv.represent_prepared", "conv.represent_increments"},
    ),
    "heads of prepared rows": Difference({"layer.qkv"}, {"draft2.qkv", "draft2.projected_row", "draft2.rotated"}),
    "one rounding less between head norm and RoPE": Difference(
        {"layer.norm_then_rope"}, {"draft2.rounded_once", "layer.fused_norm_and_rope"}, ("ninfer",)
    ),
    "two roundings less of a context key": Difference({"context.key"}, {"context.fused_key"}, ("ninfer",)),
    "output projection, and the convolution of its product": Difference({"layer.output"}, {"conv.finish"}),
    "SwiGLU without norm and down projection": Difference({"layer.mlp"}, {"draft2.mlp"}),
    "the block": Difference({"block.inputs"}, {"block.dflash2_inputs"}),
    "all of its rows": Difference(set(), {"block.whole_block"}, ("ninfer",)),
    "as many rows as the target verifies": Difference(set(), {"block.shrunk_block"}, ("zlab",)),
    "a proposal": Difference({"draft.propose"}, {"draft2.propose"}),
    "candidates, not an argmax": Difference(
        {"head.logits", "head.represent_logits", "head.argmax"},
        {"head.top", "head.capped", "head.represent_scores", "head.ranked"},
    ),
    "the walk": Difference(
        set(), {"draft2.selected_row", "selector.project", "selector.represent_row", "selector.walk",
                "selector.scored", "selector.step_of"},
    ),
    "its greedy step": Difference(set(), {"selector.best"}, temperatures=(0.0,)),
    "its draw": Difference(
        {"head.first_largest"},
        {"selector.softened", "selector.drawn", "engine.proposal_uniforms", "rng.proposal_keys"},
        ("ninfer",),
        temperatures=(2.0,),
    ),
    "its draw, where DFlash draws too": Difference(
        {"head.first_largest", "engine.draw_proposals", "processing.propose", "processing.draw"},
        {"selector.softened", "selector.drawn"},
        ("zlab",),
        temperatures=(2.0,),
    ),
    "verification by the law that drew": Difference(
        {"law.one_hot", "law.accepted_one_hot", "law.accepts", "law.correction"},
        {"law.sparse", "law.accepted_sparse", "law.covered_or_under", "law.fp32_product", "law.sparse_correction"},
        ("ninfer",),
        temperatures=(2.0,),
    ),
}  # fmt: skip
"""All that sets DFlash2 apart in the draft's part of a request: everything else is one and the same function."""

DRAFTS_PART = ("models.draft_of", "engine.catch_up", "engine.propose", "engine.judge")
"""What is looked into. The target's part is DFlash's, and shares layers with the draft."""

SEED = 5
"""By it, requests of both backends have rounds that reject and rounds that do not."""

ARITHMETIC = ("num", "elementary")
"""Modules that are not looked into: they hold no rule of either backend."""


@contextmanager
def called() -> Iterator[set[str]]:
    """The public functions that run inside the draft's part of what is run: module.name, a class for its making."""
    seen: set[str] = set()
    depth = 0

    def look(frame: Any, event: str, _: Any) -> None:
        nonlocal depth
        package, _, module = frame.f_globals.get("__name__", "").partition(".")
        if package != "dflash_reference" or event not in ("call", "return"):
            return
        name = f"{module}.{frame.f_code.co_qualname.removesuffix('.__init__')}"
        if name in DRAFTS_PART:
            depth += 1 if event == "call" else -1
        elif event == "call" and depth and module not in ARITHMETIC and name.count(".") == 1 and "._" not in name:
            seen.add(name)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield seen
    finally:
        sys.setprofile(before)


def functions_of(pair: Any, profile: Profile, temperature: float) -> set[str]:
    """The functions that the draft's part of a request runs."""
    with called() as seen:
        model = models.draft_of(pair.draft.config, pair.draft.weights)
        settings = Settings(3, 30, public=30, temperature=temperature, seed=SEED)
        engine.generate(pair.target, model, [3, 17, 29, 5, 11], settings, profile)
    return seen


@pytest.mark.parametrize(("profile", "temperature"), [(NINFER, 0.0), (NINFER, 2.0), (ZLAB, 0.0), (ZLAB, 2.0)])
def test_dflash2_runs_the_functions_of_dflash_except_these(profile: Profile, temperature: float, tiny: Build) -> None:
    first = functions_of(tiny(profile, draft_windows=WINDOWS), profile, temperature)
    second = functions_of(tiny(profile, draft_windows=WINDOWS, second=True), profile, temperature)
    stated = [row for row in DIFFERENCES.values() if profile.name in row.profiles and temperature in row.temperatures]
    assert first - second == set().union(*(row.first for row in stated))
    assert second - first == set().union(*(row.second for row in stated))
    assert first & second > {"context.materialise", "draft.forward", "draft.attend", "draft.final", "layer.rope"}


def idle(pair: Any) -> models.Draft2:
    """The draft of the pair with convolutions that return their row: tap 0 is 1, all else 0."""
    weights = dict(pair.draft.weights)
    for name, values in weights.items():
        if name.endswith("base_kernel"):
            weights[name] = np.zeros_like(values)
            weights[name][:, 0] = 1.0
        elif name.endswith("kernel_projection.weight"):
            weights[name] = np.zeros_like(values)
    return models.Draft2(pair.draft.config, weights)


def backbone(model: models.Draft, x: Any, rows: int, profile: Profile) -> draft.Forward:
    """All layers over `rows` context rows and the block rows x."""
    config = model.config
    features = inputs.normal_like("except/features", (rows, len(config.taps) * config.hidden_size), 1.0, "BF16")
    held = context.Context(config)
    context.materialise(model, held, features, np.arange(rows), profile)
    decode = draft2.decoder_layer if isinstance(model, models.Draft2) else None
    return draft.forward(model, held, x, rows + np.arange(len(x)), profile, decode)


STAGED = replace(NINFER, axes=dict(NINFER.axes) | {"dflash2_keys": "staged"})
"""Profile ninfer, but for the roundings that its DFlash2 leaves out between head norm and RoPE."""


@pytest.mark.parametrize("profile", [ZLAB, STAGED], ids=["zlab", "ninfer-with-dflash-keys"])
@example_settings(max_examples=25)
@given(rows=st.integers(1, 9), width=st.integers(2, 6), key=st.integers(0, 99))
def test_an_idle_convolution_gives_dflashs_rows_bit_for_bit(
    profile: Profile, rows: int, width: int, key: int, tiny: Build
) -> None:
    pairs = [tiny(profile, draft_windows=WINDOWS, second=second) for second in (False, True)]
    x = inputs.normal_like(f"except/{key}", (width, 20), 1.0, "BF16")
    first, second = backbone(pairs[0].draft, x, rows, profile), backbone(idle(pairs[1]), x, rows, profile)
    assert [layer.tolist() for layer in first.layers] == [layer.tolist() for layer in second.layers]
    assert first.hidden.tolist() == second.hidden.tolist()
    busy = backbone(pairs[1].draft, x, rows, profile)
    assert busy.hidden.tolist() != second.hidden.tolist()


def test_profile_ninfers_fewer_roundings_alone_keep_an_idle_convolution_from_dflashs_bits(tiny: Build) -> None:
    pairs = [tiny(NINFER, draft_windows=WINDOWS, second=second) for second in (False, True)]
    x = inputs.normal_like("except/ninfer", (6, 20), 1.0, "BF16")
    first, second = backbone(pairs[0].draft, x, 9, NINFER), backbone(idle(pairs[1]), x, 9, NINFER)
    assert first.hidden.tolist() != second.hidden.tolist()
