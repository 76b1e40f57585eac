"""Faults of drafts' and targets' own rules: what is not read, or read from the wrong place."""

from __future__ import annotations

from typing import Any

from dflash_spec.config import members as read
from dflash_spec.config.members import Members
from dflash_spec.config.target import TargetConfig
from dflash_spec.registry import Profile

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.cfg import NINFER, PACKAGE, TRANSFORMERS, unchecked

CONVERTER = "https://github.com/zhongpei/ninfer-4090/blob/b76e70d4bd/tools/convert/qwen3_5.py"


@fault("dflash_spec.config.rules.architecture", clauses=("CFG-012",), report=NINFER, effect="output")
def any_architecture_taken(true: Function) -> Function:
    """The architecture's name is not looked at."""
    return lambda members, expected: expected if members.has("architectures") else true(members, expected)


@fault(
    "dflash_spec.config.draft.architecture", clauses=("CFG-013",), effect="acceptance",
    report="https://github.com/z-lab/dflash",
)  # fmt: skip
def dflash2_run_as_dflash(true: Function) -> Function:
    """A DFlash2 draft is run without its convolution and selector."""

    def wrong(members: Members, backend: int | None) -> Any:
        second = members.get("architectures") == ["DFlash2DraftModel"] and backend == 1
        return "DFlashDraftModel" if second else true(members, backend)

    return wrong


@fault("dflash_spec.config.draft.architecture", clauses=("CFG-013",), report=NINFER, effect="crash")
def backend_not_compared(true: Function) -> Function:
    """The draft's architecture decides what runs, whatever the start has chosen."""
    return lambda members, backend: true(members, None)


@fault("dflash_spec.config.rules.model_type", clauses=("CFG-014",), report=NINFER, effect="output")
def any_model_type_taken(true: Function) -> Function:
    """The model type is not looked at."""
    return unchecked


@fault("dflash_spec.config.rules.heads", clauses=("CFG-015",), report=NINFER, effect="output")
def heads_need_not_divide(true: Function) -> Function:
    """Query heads are spread over KV heads by whole-number division, whatever is left over."""

    def wrong(members: Members) -> Any:
        whole = Members({**members.values, "num_attention_heads": 6, "num_key_value_heads": 3}, members.file)
        return true(whole) if members.get("num_attention_heads") == 5 else true(members)

    return wrong


@fault("dflash_spec.config.rules.head_dim", clauses=("CFG-016",), report=NINFER, effect="output")
def odd_head_taken(true: Function) -> Function:
    """An odd head is taken, and half of it rounded down is rotated."""
    return lambda members: 9 if members.get("head_dim") == 9 else true(members)


@fault("dflash_spec.config.rules.activation", clauses=("CFG-017",), report=CONVERTER, effect="output")
def activation_not_read(true: Function) -> Function:
    """Every gate is computed as SiLU."""
    return unchecked


@fault("dflash_spec.config.rules.attention_bias", clauses=("CFG-018",), report=CONVERTER, effect="output")
def bias_not_read(true: Function) -> Function:
    """Biases are dropped."""
    return unchecked


@fault(
    "dflash_spec.config.rules.theta", clauses=("CFG-019",), effect="acceptance",
    report="https://github.com/sgl-project/SpecForge/pull/742",
)  # fmt: skip
def flat_theta_first(true: Function) -> Function:
    """A stale top-level theta beats the nested one."""

    def wrong(members: Members) -> Any:
        flat = {"rope_theta": members.get("rope_theta")}
        return true(Members(flat, members.file) if members.has("rope_theta") else members)

    return wrong


@fault(
    "dflash_spec.config.rules.theta", clauses=("CFG-020",), effect="output",
    report="https://github.com/Luce-Org/lucebox-hub/commit/697198a",
)  # fmt: skip
def absent_theta_is_10000(true: Function) -> Function:
    """A config without a theta is rotated by the older models' 10000."""
    return lambda members: true(
        members if members.has("rope_theta") else Members({"rope_theta": 10000, **members.values}, members.file)
    )


@fault(
    "dflash_spec.config.rules.plain_rope", clauses=("CFG-021",), effect="acceptance",
    report="https://github.com/spiritbuun/buun-llama-cpp/issues/32",
)  # fmt: skip
def scaled_rope_run_plain(true: Function) -> Function:
    """RoPE scaling is not looked at."""
    return unchecked


@fault(
    "dflash_spec.config.rules.rope_style", clauses=("CFG-022",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/issues/53063",
)  # fmt: skip
def rope_style_not_read(true: Function) -> Function:
    """The draft's own RoPE style is not looked at."""
    return unchecked


@fault("dflash_spec.config.rules.listed_layer_types", clauses=("CFG-023",), report=NINFER, effect="acceptance")
def layer_types_padded_and_cut(true: Function) -> Function:
    """The list of layer types is cut to the depth, and what it lacks is full."""

    def wrong(members: Members, layers: int) -> tuple[str, ...]:
        names = [*(members.get("layer_types") or ()), *["full_attention"] * layers]
        return tuple(name if name == "sliding_attention" else "full_attention" for name in names[:layers])

    return wrong


@fault(
    "dflash_spec.config.rules.derived_layer_types",
    clauses=("CFG-024",),
    report=CONVERTER,
    effect="acceptance",
)
def older_file_is_all_full(true: Function) -> Function:
    """Without layer types every layer is full, although the file switches windows on."""
    return lambda members, layers: ("full_attention",) * layers


@fault("dflash_spec.config.rules.switched_on", clauses=("CFG-025",), report=PACKAGE, effect="acceptance")
def window_switch_not_read(true: Function) -> Function:
    """A window that the authors' runtime drops in silence passes."""
    return unchecked


@fault(
    "dflash_spec.config.rules.windows", clauses=("CFG-026",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/40898",
)  # fmt: skip
def window_not_read(true: Function) -> Function:
    """The window is lost on the way, and every layer is full."""
    return lambda members, types: (0,) * len(types)


@fault("dflash_spec.config.rules.windows", clauses=("CFG-026",), report=NINFER, effect="acceptance")
def window_on_full_layers_too(true: Function) -> Function:
    """A window in the file is the window of every layer."""
    return lambda members, types: (members.get("sliding_window") or 0,) * len(types)


@fault(
    "dflash_spec.config.draft.tap_ids", clauses=("CFG-036",), effect="acceptance", profiles=("ninfer",),
    report="https://github.com/sgl-project/sglang/issues/37475",
)  # fmt: skip
def absent_taps_guessed(true: Function) -> Function:
    """Absent tap ids come from a formula that the profile does not have."""

    def wrong(members: Members, profile: Profile, target: TargetConfig, layers: int) -> tuple[int, ...]:
        return true(members, profile, target, layers) if members.has("target_layer_ids") else (1, 4, 6)

    return wrong


@fault(
    "dflash_spec.config.draft.tap_ids", clauses=("CFG-037",), effect="acceptance", profiles=("zlab",),
    report="https://github.com/sgl-project/sglang/issues/37475",
)  # fmt: skip
def absent_taps_are_five(true: Function) -> Function:
    """Absent tap ids are five, whatever the draft's depth."""
    return lambda members, profile, target, layers: true(members, profile, target, 5)


@fault("dflash_spec.config.published.holder", clauses=("CFG-038",), report=PACKAGE, effect="acceptance")
def top_level_first(true: Function) -> Function:
    """A top-level member beats the one in `dflash_config`."""
    return lambda members, nested, key: members if members.has(key) else nested


@fault(
    "dflash_spec.config.draft.mask_id", clauses=("CFG-039",), effect="acceptance",
    report="https://github.com/NVIDIA-NeMo/Automodel/pull/2461",
)  # fmt: skip
def mask_falls_back_to_pad(true: Function) -> Function:
    """An absent mask id falls back to the pad id."""
    return lambda members, vocab_size: true(members, vocab_size) if members.has("mask_token_id") else 0


@fault(
    "dflash_spec.config.draft.mask_id", clauses=("CFG-040",), effect="crash",
    report="https://github.com/NVIDIA/Model-Optimizer/pull/1621",
)  # fmt: skip
def mask_past_the_table_taken(true: Function) -> Function:
    """A mask id may lie past the target's table, as after the trainer has resized its own."""
    return lambda members, vocab_size: true(members, vocab_size + 1)


@fault(
    "dflash_spec.config.draft.local_when_absent", clauses=("CFG-041",), effect="acceptance", profiles=("zlab",),
    report="https://github.com/sgl-project/sglang/pull/34524",
)  # fmt: skip
def local_layers_symmetric(true: Function) -> Function:
    """Without `is_causal` no layer is causal."""
    return lambda stated, windows: true(bool(stated), windows)


@fault(
    "dflash_spec.config.draft.local_when_absent", clauses=("CFG-042",), effect="acceptance", profiles=("zlab",),
    report="https://github.com/vllm-project/vllm/pull/43445",
)  # fmt: skip
def stated_causality_for_local_layers_only(true: Function) -> Function:
    """A stated `is_causal` is applied to sliding layers only."""
    return lambda stated, windows: tuple(window > 0 and stated is not False for window in windows)


@fault(
    "dflash_spec.config.draft.symmetric",
    clauses=("CFG-043",),
    report=CONVERTER,
    effect="acceptance",
    profiles=("ninfer",),
)
def causal_draft_run_symmetric(true: Function) -> Function:
    """A draft that says it is causal is run without its mask."""
    return lambda members, stated, layers: (False,) * layers


@fault("dflash_spec.config.published.same_as_target", clauses=("CFG-044",), report=CONVERTER, effect="acceptance")
def draft_of_another_target_bound(true: Function) -> Function:
    """The draft's sizes are not compared with the target's."""
    return unchecked


@fault(
    "dflash_spec.config.published.not_trainer",
    clauses=("CFG-045",),
    report="the trainer's DFlash page, configuration",
    effect="acceptance",
)
def trainer_config_taken_for_published(true: Function) -> Function:
    """The trainer's schema passes for the published one."""
    return unchecked


@fault(
    "dflash_spec.config.published.plain_scalars", clauses=("CFG-046",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/41703",
)  # fmt: skip
def scalars_not_read(true: Function) -> Function:
    """Embedding scale, output multiplier and soft-cap are not looked at."""
    return unchecked


@fault(
    "dflash_spec.config.published.same_head", clauses=("CFG-047",), effect="acceptance",
    report="https://github.com/vllm-project/speculators",
)  # fmt: skip
def anchor_slot_not_read(true: Function) -> Function:
    """`sample_from_anchor` and a draft vocabulary are not looked at."""
    return unchecked


@fault(
    "dflash_spec.config.target.stop_ids", clauses=("CFG-048",), effect="output",
    report="https://github.com/Luce-Org/lucebox-hub/commit/d180d39",
)  # fmt: skip
def first_stop_id_only(true: Function) -> Function:
    """Only the first of several end tokens counts."""
    return lambda members, vocab_size: true(members, vocab_size)[:1]


@fault("dflash_spec.config.target.tied", clauses=("CFG-049",), report=TRANSFORMERS, effect="output")
def tied_by_default(true: Function) -> Function:
    """Embedding and head are tied unless the file says no."""
    return lambda members: true(members) if members.has("tie_word_embeddings") else True


@fault(
    "dflash_spec.config.component.check",
    clauses=("CFG-057",),
    report=NINFER,
    effect="acceptance",
    profiles=("ninfer",),
)
def open_component(true: Function) -> Function:
    """A component's unknown members are ignored."""

    return lambda members, target, more, scaled: read.inner(members, "dflash_config")
