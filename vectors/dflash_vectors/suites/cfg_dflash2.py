"""Configs: DFlash2 drafts, the tensors of a folder, and what one start may be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from dflash_spec.geometry import load_geometries
from dflash_spec.registry import Profile

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite
from dflash_vectors.suites import cfg
from dflash_vectors.suites.cfg import COMPONENT, FULL, GONE, PUBLISHED, SLIDING, SWITCH, TARGET, Row, edited, text

NAME = {"architectures": ["DFlash2DraftModel"]}
SIZES = {"conv_kernel_size": 3, "conv_group_size": 4, "selector_rank": 10, "selector_top_k": 6}
NESTED = "dflash_config."
PATHS = tuple(NESTED + key for key in SIZES)
SECOND_PUBLISHED = {**PUBLISHED, **NAME, "dflash_config": {**PUBLISHED["dflash_config"], **SIZES}}
SECOND_COMPONENT = {**COMPONENT, **NAME, "dflash_config": {**COMPONENT["dflash_config"], **SIZES}}
OFFICIAL, SCALED = "qwen3.8-27b", "muse-glimmer-30b"
MULTIPLIER, SOFTCAP = "output_multiplier", "final_logit_softcapping"


def geometry_texts(name: str, schema: str) -> dict[str, Any]:
    """Draft and target of an official geometry, in a schema; the target is a stand-in of the right sizes."""
    geometry = load_geometries()[name]
    sizes = {"num_hidden_layers": geometry.target_layers, "hidden_size": geometry.hidden_size,
             "vocab_size": geometry.vocab_size}  # fmt: skip
    draft = geometry.published() if schema == "published" else geometry.component()
    return {"draft": inputs.text(draft), "target": text(edited(TARGET, sizes))}


def sizes() -> list[Row]:
    """The four sizes that DFlash2 adds, in both schemas."""
    wrong = {"true": True, "float": 2.0, "string": "2", "zero": 0}
    rows = [Row("plain", "CFG-061", {}, "a size is misread")]
    for key in SIZES:
        name = key.replace("_", "-")
        rows.append(Row(f"without-{name}", "CFG-004", {NESTED + key: GONE}, f"an absent {key} gets a default"))
        rows.append(Row(f"{name}-zero", "CFG-005", {NESTED + key: 0}, f"a {key} of 0 is taken", "crash"))
    rows += [Row(f"kernel-{name}", "CFG-005", {NESTED + "conv_kernel_size": value}, f"a kernel of {value!r} is taken")
             for name, value in wrong.items() if name != "zero"]  # fmt: skip
    edges = {"conv_kernel_size": 1, "conv_group_size": 16, "selector_rank": 1, "selector_top_k": 64}
    return [
        *rows,
        Row("rank-null", "CFG-004", {NESTED + "selector_rank": None}, "null becomes a default"),
        Row("edges", "CFG-061", {NESTED + key: size for key, size in edges.items()}, "the largest sizes are refused"),
        Row("group-of-one", "CFG-061", {NESTED + "conv_group_size": 1}, "a group of one channel is refused"),
        Row("group-undivided", "CFG-063", {NESTED + "conv_group_size": 5}, "the last channels have no group", "crash"),
        Row("group-above-width", "CFG-063", {NESTED + "conv_group_size": 32}, "a half-empty group is taken", "crash"),
        Row("candidates-past-table", "CFG-064", {NESTED + "selector_top_k": 65}, "candidates are no rows", "crash"),
        Row("dflash", "CFG-013", {"architectures": ["DFlashDraftModel"]}, "DFlash runs as DFlash2", "crash"),
        Row("dflash-whole", "CFG-013", {"architectures": ["DFlashDraftModel"]} | dict.fromkeys(PATHS, GONE),
            "DFlash runs as DFlash2", "crash"),
        Row("architecture-two", "CFG-012", {"architectures": ["DFlash2DraftModel", "DFlashDraftModel"]},
            "the first of two names wins"),
        Row("architecture-string", "CFG-012", {"architectures": "DFlash2DraftModel"}, "a bare name is taken"),
        Row("nested-unknown", "CFG-010", {NESTED + "selector_depth": 2}, "a member that changes the walk is ignored"),
    ]  # fmt: skip


def published(profile: Profile) -> list[Row]:
    """What the published schema adds: older places of the members, causality, and the head's scalars."""
    flat = {key: size + 1 for key, size in SIZES.items()}
    older = {NESTED + key: GONE for key in SIZES} | {**SIZES, "conv_group_size": 8}
    hybrid = SWITCH | {"layer_types": [SLIDING, SLIDING, FULL], "sliding_window": 5}
    causality = cfg.symmetric if profile.axes["local_causality"] == "symmetric" else cfg.local_when_absent
    scalars = applied if profile.axes["head_scalars"] == "applied" else plain
    return [
        Row("nested-sizes-win", "CFG-038", flat, "stale top-level sizes are used"),
        Row("top-level-sizes", "CFG-038", older, "an older file's sizes are not found"),
        Row("layers-hybrid", "CFG-026", hybrid, "a window is lost"),
        Row("embedding-scale", "CFG-046", {NESTED + "input_embedding_scale": 4.0}, "a scaled draft is run unscaled"),
        *scalars(),
        *(row for row in causality(NESTED + "target_layer_ids") if row.slug != "causal-false"),
    ]


def plain() -> list[Row]:
    """A profile without the head's scalars."""
    return [
        Row("multiplier", "CFG-046", {NESTED + MULTIPLIER: 0.5}, "a scaled head is run unscaled"),
        Row("softcap", "CFG-046", {SOFTCAP: 20.0}, "a capped head is run uncapped"),
        Row("scalars-plain", "CFG-046", {NESTED + MULTIPLIER: 1, NESTED + SOFTCAP: 0}, "plain scalars are refused"),
    ]


def applied() -> list[Row]:
    """A profile that applies the head's scalars."""
    lost = "scores are too large or too small beside the bilinear part"
    wrong = {"string": "0.5", "true": True, "negative": -0.5, "above-fp32": 1e39, "below-fp32": 1e-46}
    rows = [
        Row(f"{short}-{name}", "CFG-065", {NESTED + key: value}, f"a scalar of {value!r} is taken", "output")
        for short, key in (("multiplier", MULTIPLIER), ("softcap", SOFTCAP))
        for name, value in wrong.items()
    ]
    return [
        *rows,
        Row("scalars", "CFG-065", {NESTED + MULTIPLIER: 0.19611613513818404, NESTED + SOFTCAP: 20}, lost),
        Row("scalars-top-level", "CFG-065", {MULTIPLIER: 2, SOFTCAP: 1e-3}, lost),
        Row("scalars-null", "CFG-065", {MULTIPLIER: None, SOFTCAP: None}, "null is read as 0"),
        Row("scalars-none", "CFG-065", {NESTED + MULTIPLIER: 1.0, NESTED + SOFTCAP: 0.0}, "a cap of 0 divides by 0"),
        Row("multiplier-zero", "CFG-065", {NESTED + MULTIPLIER: 0}, "every score is 0"),
    ]  # fmt: skip


@suite("config.read_dflash2")
def read_dflash2(profile: Profile) -> Iterator[Case]:
    """DFlash2 drafts in the profile's own schema."""
    schema, target = profile.axes["config_schema"], {"target": text(edited(TARGET, {}))}
    if schema == "component":
        rows = [
            *sizes(),
            Row("sizes-at-top-level", "CFG-057", SIZES, "a member of another schema is ignored"),
            Row("multiplier", "CFG-010", {NESTED + MULTIPLIER: 0.5}, "a scaled head is run unscaled"),
        ]
        yield from cfg.cases("draft", SECOND_COMPONENT, rows, **target)
    else:
        yield from cfg.cases("draft", SECOND_PUBLISHED, [*sizes(), *published(profile)], **target)
        yield Case("muse-glimmer-30b", ("CFG-061", "CFG-065"), geometry_texts(SCALED, schema),
                   "the head's scalars of a published draft are lost", "acceptance",
                   blame={"output_multiplier": "CFG-065", "softcap": "CFG-065"})  # fmt: skip
    yield Case("official-27b", ("CFG-061",), geometry_texts(OFFICIAL, schema), "a size is misread", "acceptance")


@suite("config.convert_dflash2", profiles=("ninfer",))
def convert_dflash2(profile: Profile) -> Iterator[Case]:
    """Published DFlash2 drafts, read by the rules of a profile with a schema of its own."""
    target = {"target": text(edited(TARGET, {}))}
    yield from cfg.cases("draft", SECOND_PUBLISHED, [*sizes(), *published(profile)], **target)
    yield Case("official-27b", ("CFG-061",), geometry_texts(OFFICIAL, "published"), "a size is misread", "acceptance")
    yield Case("muse-glimmer-30b", ("CFG-046",), geometry_texts(SCALED, "published"),
               "a scaled and capped head is run plain", "acceptance")  # fmt: skip


def beside(profile: Profile) -> list[Row]:
    """DFlash2 drafts, and parts of them, where a DFlash draft is wanted."""
    whole = {**NAME, **dict(zip(PATHS, SIZES.values(), strict=True))}
    rows = [Row("dflash2-whole", "CFG-013", whole, "DFlash2 runs as DFlash")]
    clause = "CFG-062" if profile.axes["config_schema"] == "published" else "CFG-057"
    for key, size in SIZES.items():
        name = key.replace("_", "-")
        rows.append(Row(f"dflash2-{name}", clause, {key: size}, "DFlash2 runs as DFlash"))
    return rows


@suite("config.read_draft")
def read_draft(profile: Profile) -> Iterator[Case]:
    """DFlash drafts in the profile's own schema that are DFlash2's in name or in part."""
    base = COMPONENT if profile.axes["config_schema"] == "component" else PUBLISHED
    yield from cfg.cases("draft", base, beside(profile), target=text(edited(TARGET, {})))


@suite("config.convert_draft", profiles=("ninfer",))
def convert_draft(profile: Profile) -> Iterator[Case]:
    """As read_draft, in the published schema."""
    rows = [row._replace(clause="CFG-062") if row.clause == "CFG-057" else row for row in beside(profile)]
    yield from cfg.cases("draft", PUBLISHED, rows, target=text(edited(TARGET, {})))


@suite("config.executable", profiles=("ninfer",))
def executable(profile: Profile) -> Iterator[Case]:
    """The official DFlash2 draft, and others that differ from it in one thing."""
    official = geometry_texts(OFFICIAL, "component")
    why = "a draft runs on kernels that were made for another one, or a good one is turned away"
    changes: dict[str, Mapping[str, Any]] = {
        "official-27b": {},
        "another-window": {"sliding_window": 4096},
        "other-heads": {"num_attention_heads": 64, "num_key_value_heads": 4, "intermediate_size": 9728},
        "a-full-layer": {"layer_types": [SLIDING] * 4 + [FULL]},
        "four-layers": {"layer_types": [SLIDING] * 4, "num_hidden_layers": 4},
        "another-epsilon": {"rms_norm_eps": 1e-5},
        "another-theta": {"rope_parameters.rope_theta": 500000},
        "three-taps": {NESTED + "conv_kernel_size": 3},
        "another-group": {NESTED + "conv_group_size": 32},
        "another-rank": {NESTED + "selector_rank": 128},
        "eight-candidates": {NESTED + "selector_top_k": 8},
    }
    for slug, change in changes.items():
        draft = edited(json.loads(official["draft"].tobytes()), change)
        yield Case(slug, ("CFG-066",), {**official, "draft": text(draft)}, why, "crash")
    wider = edited(json.loads(official["target"].tobytes()), {"hidden_size": 5136})
    yield Case("another-width", ("CFG-066",), {**official, "target": text(wider)}, why, "crash")
    yield Case("tiny", ("CFG-066",), {"draft": text(edited(SECOND_COMPONENT, {})), "target": text(edited(TARGET, {}))},
               "a draft without kernels is refused where it is only read", "crash")  # fmt: skip


def integer(value: int) -> Any:
    return np.array(value, dtype=np.int64)


@suite("config.start")
def start(profile: Profile) -> Iterator[Case]:
    """Backends, widths and heads, at both ends of what is admitted."""
    component = profile.axes["config_schema"] == "component"
    bases = (COMPONENT, SECOND_COMPONENT) if component else (PUBLISHED, SECOND_PUBLISHED)
    width = "CFG-050" if component else "CFG-052"
    indexed = profile.axes["proposal_head"] == "full_or_index"

    def case(slug: str, clause: str, catches: str, draft: int, *numbers: int) -> Case:
        names = ("backend", "requested", "public", "indexed")
        given = {name: integer(number) for name, number in zip(names, numbers, strict=True)}
        texts = {"draft": text(edited(bases[draft - 1], {})), "target": text(edited(TARGET, {}))}
        return Case(slug, (clause,), {**texts, **given}, catches, "acceptance")

    other = "one backend's draft runs as the other's"
    yield case("dflash-as-dflash2", "CFG-013", other, 1, 2, 7, 60, 0)
    yield case("dflash2-as-dflash", "CFG-013", other, 2, 1, 7, 60, 0)
    for backend in (0, 3, -1):
        slug = f"backend-{backend}".replace("--", "-minus-")
        yield case(slug, "CFG-074", "an unknown backend runs as the default one", 1, backend, 7, 60, 0)
    for draft in (1, 2):
        name = f"dflash{'2' if draft == 2 else ''}"
        yield case(f"{name}-width", width, "the request is not the width", draft, draft, 7, 60, 0)
        yield case(f"{name}-width-past", width, "a width no start has is taken",
                   draft, draft, 16 if component else -1, 60, 0)  # fmt: skip
        yield case(f"{name}-file-width", "CFG-050" if component else "CFG-051", "a width is made up",
                   draft, draft, 0, 60, 0)  # fmt: skip
        yield case(f"{name}-public-all", "CFG-075", "a head without padding is refused", draft, draft, 7, 64, 0)
        yield case(f"{name}-public-past", "CFG-075", "rows past the table are proposed", draft, draft, 7, 65, 0)
        yield case(f"{name}-public-none", "CFG-075", "a head without rows is taken", draft, draft, 7, 0, 0)
        yield case(f"{name}-index", "CFG-075", "an index is refused, or read without one", draft, draft, 7, 60, 60)
        yield case(f"{name}-index-past", "CFG-075", "an index lists a row twice", draft, draft, 7, 60, 61)
    few = "more candidates are wanted than can be proposed"
    yield case("candidates-all-public", "CFG-064", few, 2, 2, 7, 6, 0)
    yield case("candidates-past-public", "CFG-064", few, 2, 2, 7, 5, 0)
    if indexed:
        yield case("candidates-all-indexed", "CFG-064", few, 2, 2, 7, 60, 6)
        yield case("candidates-past-index", "CFG-064", few, 2, 2, 7, 60, 5)
        yield case("index-of-one", "CFG-075", "a short index is refused", 1, 1, 7, 60, 1)


KINDS = {"dflash": PUBLISHED, "dflash2": SECOND_PUBLISHED}
CODEBOOK = "candidate_selector.successor_codebook"
CONVOLUTION = "layers.1.mlp_conv."
NOTHING: Mapping[str, str | None] = {}


def shapes(kind: str) -> dict[str, str]:
    """Names and shapes of a whole folder, written out rather than asked from the code under test."""
    layer = {
        "input_layernorm.weight": "16", "post_attention_layernorm.weight": "16", "self_attn.q_proj.weight": "48x16",
        "self_attn.k_proj.weight": "24x16", "self_attn.v_proj.weight": "24x16", "self_attn.o_proj.weight": "16x48",
        "self_attn.q_norm.weight": "8", "self_attn.k_norm.weight": "8", "mlp.gate_proj.weight": "40x16",
        "mlp.up_proj.weight": "40x16", "mlp.down_proj.weight": "16x40",
    }  # fmt: skip
    whole = {"fc.weight": "16x32", "hidden_norm.weight": "16", "norm.weight": "16"}
    if kind == "dflash2":
        for branch in ("attention_conv", "mlp_conv"):
            layer |= {f"{branch}.base_kernel": "2x3x16", f"{branch}.kernel_projection.weight": "24x16"}
        whole |= {
            "candidate_selector.hidden_projection.weight": "10x16",
            "candidate_selector.predecessor_codebook": "64x10",
            "candidate_selector.successor_codebook": "64x10",
        }
    return whole | {f"layers.{index}.{name}": shape for index in range(5) for name, shape in layer.items()}


def listing(kind: str, changes: Mapping[str, str | None]) -> bytes:
    """A folder's tensors in name order, as `config.check_folder` takes them: `changes` maps names to what follows."""
    lines = {name: f"BF16 {shape}" for name, shape in shapes(kind).items()} | dict(changes)
    return "\n".join(f"{name} {rest}" for name, rest in sorted(lines.items()) if rest is not None).encode()


@suite("config.check_folder")
def check_folder(profile: Profile) -> Iterator[Case]:
    """Whole folders of five layers and two taps, and folders with one thing wrong."""
    base = {"num_hidden_layers": 5, "layer_types": [FULL] * 5, NESTED + "target_layer_ids": [4, 6]}

    def case(
        slug: str, clause: str, catches: str, kind: str, *others: str, held: str = "",
        changes: Mapping[str, str | None] = NOTHING, edit: Mapping[str, Any] = NOTHING,
    ) -> Case:  # fmt: skip
        given = {
            "draft": text(edited(KINDS[kind], {**base, **edit})), "target": text(edited(TARGET, {})),
            "tensors": text(listing(held or kind, changes)),
        }  # fmt: skip
        return Case(slug, (clause, *others), given, catches, "acceptance")

    refused = "a whole folder is refused"
    yield case("dflash-whole", "CFG-071", refused, "dflash")
    yield case("dflash2-whole", "CFG-073", refused, "dflash2", "CFG-072", "CFG-071")
    wider = {name: "BF16 2x5x16" if name.endswith("base_kernel") else "BF16 20x16"
             for name in shapes("dflash2") if "_conv." in name}  # fmt: skip
    yield case("dflash2-five-taps", "CFG-072", refused, "dflash2", "CFG-071", changes=wider,
               edit={NESTED + "conv_kernel_size": 5, NESTED + "conv_group_size": 8})  # fmt: skip
    mixed = {"fc.weight": "F32 16x32", "norm.weight": "F16 16"}
    yield case("dtypes-mixed", "CFG-070", "a folder of several dtypes is refused", "dflash", changes=mixed)
    yield case("dflash2-held-by-dflash", "CFG-068", "DFlash2 weights run as DFlash", "dflash", held="dflash2")
    yield case("dflash-held-by-dflash2", "CFG-067", "the convolution stays random", "dflash2", held="dflash")
    lost = {"norm": "norm.weight", "kernel": f"{CONVOLUTION}base_kernel", "codebook": CODEBOOK,
            "projection": "candidate_selector.hidden_projection.weight"}  # fmt: skip
    for name, tensor in lost.items():
        yield case(f"without-{name}", "CFG-067", "a tensor keeps what its memory held", "dflash2",
                   changes={tensor: None})  # fmt: skip
    yield case("codebook-renamed", "CFG-067", "a library's own name of a codebook is wanted", "dflash2", "CFG-073",
               changes={CODEBOOK: None, f"{CODEBOOK}.weight": "BF16 64x10"})  # fmt: skip
    yield case("codebook-twice", "CFG-068", "one of two codebooks is taken", "dflash2",
               changes={f"{CODEBOOK}.weight": "BF16 64x10"})  # fmt: skip
    for name, tensor, shape in (
        ("kernel", "layers.0.attention_conv.base_kernel", "2x3x16"), ("head", "lm_head.weight", "64x16"),
        ("layer", "layers.5.input_layernorm.weight", "16"),
    ):  # fmt: skip
        yield case(f"stray-{name}", "CFG-068", "a tensor of another model is dropped", "dflash",
                   changes={tensor: f"BF16 {shape}"})  # fmt: skip
    for name, tensor, shape in (
        ("kernel-taps-first", f"{CONVOLUTION}base_kernel", "3x2x16"),
        ("kernel-flat", f"{CONVOLUTION}base_kernel", "6x16"),
        ("kernel-one-side", f"{CONVOLUTION}base_kernel", "1x3x16"),
        ("projection-turned", f"{CONVOLUTION}kernel_projection.weight", "16x24"),
        ("projection-of-one-side", f"{CONVOLUTION}kernel_projection.weight", "12x16"),
        ("codebook-turned", CODEBOOK, "10x64"),
        ("codebook-of-public-rows", CODEBOOK, "61x10"),
        ("fusion-of-one-tap", "fc.weight", "16x16"),
        ("norm-of-one-value", "norm.weight", ""),
    ):  # fmt: skip
        yield case(name, "CFG-069", "axes change places, or rows are missing", "dflash2",
                   changes={tensor: f"BF16 {shape}".rstrip()})  # fmt: skip
    for dtype in ("I8", "F8_E4M3", "F64"):
        slug = f"codebook-{dtype.lower().replace('_', '-')}"
        yield case(slug, "CFG-070", "quantised bytes are cast to numbers", "dflash2",
                   changes={CODEBOOK: f"{dtype} 64x10"})  # fmt: skip
