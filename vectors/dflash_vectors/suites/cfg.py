"""Configs: what drafts, targets and trainers mean, and what must be refused.

Each row changes one thing in a config that reads well, so that a refusal has one reason. What the base configs leave
out (windows, causality, an order of taps) is what a reader's other faults would change in every row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.suite import Case, suite

FULL, SLIDING = "full_attention", "sliding_attention"
GONE = object()
"""The value of an edit that removes its member."""
LIMIT = 2**32

TARGET: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 64, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 9, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000, "max_position_embeddings": 512, "eos_token_id": 7,
    "tie_word_embeddings": False,
}  # fmt: skip
BODY: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "rms_norm_eps": 1e-05,
    "max_position_embeddings": 256, "layer_types": [FULL, FULL, FULL],
}  # fmt: skip
COMPONENT: dict[str, Any] = BODY | {
    "rope_parameters": {"rope_theta": 10000000},
    "dflash_config": {"mask_token_id": 61, "target_layer_ids": [1, 4, 6]},
}
PUBLISHED: dict[str, Any] = BODY | {
    "hidden_size": 16, "vocab_size": 64, "num_target_layers": 9, "is_causal": False, "rope_theta": 10000000,
    "dflash_config": {"mask_token_id": 61, "target_layer_ids": [1, 4, 6], "block_size": 5},
}  # fmt: skip
TRAINER: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_target_layers": 3, "target_hidden_size": 16,
    "target_num_hidden_layers": 9, "target_layer_ids": [0, 1, 2], "mask_token_id": 61, "vocab_size": 64,
}  # fmt: skip

SWITCH = {"use_sliding_window": True}

Edit = Mapping[str, Any] | Callable[[bytes], bytes]


class Row(NamedTuple):
    """One case: `edit` maps dotted members to values, or rewrites the text."""

    slug: str
    clause: str
    edit: Edit
    catches: str
    effect: str = "acceptance"
    beside: tuple[str, str] | None = None
    """An output that another clause is to blame for, and that clause."""


def edited(base: Mapping[str, Any], edit: Edit) -> bytes:
    """The text of `base` with `edit` in it."""
    members = json.loads(json.dumps(base))
    if callable(edit):
        return edit(json.dumps(members).encode())
    for path, value in edit.items():
        *outer, last = path.split(".")
        holder = members
        for key in outer:
            holder = holder.setdefault(key, {})
        if value is GONE:
            holder.pop(last, None)
        else:
            holder[last] = value
    return json.dumps(members).encode()


def text(data: bytes) -> Array:
    """A text as the U8 tensor that the ops take."""
    return np.frombuffer(data, dtype=np.uint8)


def swapped(old: str, new: str) -> Callable[[bytes], bytes]:
    """An edit that replaces the one `old` of the text."""

    def edit(data: bytes) -> bytes:
        assert data.count(old.encode()) == 1, old
        return data.replace(old.encode(), new.encode())

    return edit


def absent(key: str) -> Row:
    """A required member that is not there."""
    slug = f"without-{key.split('.')[-1].replace('_', '-')}"
    return Row(slug, "CFG-004", {key: GONE}, f"an absent {key} is filled with a library's default")


def texts(name: str) -> list[Row]:
    """Broken JSON, around the member `name` of the base."""
    half = "a damaged file is read as another model"
    return [
        Row("text-truncated", "CFG-001", lambda data: data[:-1], half, "crash"),
        Row("text-empty", "CFG-001", lambda data: b"", half, "crash"),
        Row("text-list", "CFG-001", lambda data: b"[" + data + b"]", half, "crash"),
        Row("text-trailing", "CFG-001", lambda data: data + b"}", "what follows the object is ignored", "output"),
        Row("text-byte-order-mark", "CFG-001", lambda data: b"\xef\xbb\xbf" + data, "a byte order mark is skipped"),
        Row("text-latin-1", "CFG-001", lambda data: data[:-1] + b', "note": "caf\xe9"}', "bytes are guessed at"),
        Row("key-twice", "CFG-002", swapped(f'"{name}"', f'"{name}": 2, "{name}"'), "one of two values is taken"),
        Row("nan-unread", "CFG-003", lambda data: data[:-1] + b', "scale": NaN}', "NaN passes for a number"),
        Row("infinity-unread", "CFG-003", lambda data: data[:-1] + b', "scale": -Infinity}', "an infinity passes"),
    ]  # fmt: skip


def sizes(key: str) -> list[Row]:
    """A size that is no JSON integer from 1 on."""
    wrong = {"true": True, "float": 40.0, "string": "40", "zero": 0, "negative": -40, "too-big": LIMIT}
    return [
        Row(f"size-{name}", "CFG-005", {key: value}, f"a size of {value!r} is taken") for name, value in wrong.items()
    ]


def floats(theta: str) -> list[Row]:
    """Epsilon and theta, which stands at `theta`."""
    wrong = {"zero": 0, "negative": -1.5, "string": "1e6", "true": True, "above-fp32": 1e39, "below-fp32": 1e-46}
    rows = [Row(f"theta-{name}", "CFG-007", {theta: value}, f"a theta of {value!r} is taken", "output")
            for name, value in wrong.items()]  # fmt: skip
    rows += [Row(f"eps-{name}", "CFG-007", {"rms_norm_eps": wrong[name]}, f"an epsilon of {wrong[name]!r} is taken")
             for name in ("zero", "string", "below-fp32")]  # fmt: skip
    rows.append(
        Row("floats-rounded", "CFG-007", {theta: 123456789, "rms_norm_eps": 3e-6}, "a theta is cut to an integer")
    )
    return rows


def shared(theta: str) -> list[Row]:
    """Rules of the block that drafts and targets are both made of."""
    return [
        *map(absent, ("model_type", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
                      "intermediate_size", "num_hidden_layers", "max_position_embeddings")),
        Row("null-is-absent", "CFG-004", {"head_dim": None}, "null is filled with a library's default"),
        *sizes("intermediate_size"),
        *floats(theta),
        Row("architecture-other", "CFG-012", {"architectures": ["LlamaForCausalLM"]}, "another family is run"),
        Row("architecture-two", "CFG-012", {"architectures": ["DFlashDraftModel", "Qwen3ForCausalLM"]},
            "the first of two names wins"),
        Row("architecture-string", "CFG-012", {"architectures": "DFlashDraftModel"}, "a bare name is taken"),
        Row("model-type-other", "CFG-014", {"model_type": "llama"}, "another family is run", "output"),
        Row("heads-undivided", "CFG-015", {"num_attention_heads": 5}, "query heads share KV heads unevenly", "output"),
        Row("head-dim-odd", "CFG-016", {"head_dim": 9}, "the middle channel is rotated twice or never", "output"),
    ]  # fmt: skip


def full_schema() -> list[Row]:
    """Members that the component schema does not have."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1000000}
    derived = {"layer_types": GONE, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
    return [
        Row("unknown-top-level", "CFG-011", {"novel": {"deep": [1]}, "void": None}, "a newer writer's file is refused"),
        Row("activation-other", "CFG-017", {"hidden_act": "gelu"}, "another gate is computed as SiLU", "output"),
        Row("activation-stated", "CFG-017", {"hidden_act": "silu"}, "the plain gate is refused"),
        Row("bias", "CFG-018", {"attention_bias": True}, "biases are dropped", "output"),
        Row("no-bias-stated", "CFG-018", {"attention_bias": False}, "the plain projection is refused"),
        Row("flag-number", "CFG-008", {"attention_bias": 0}, "0 passes for false"),
        Row("nested-is-number", "CFG-009", {"rope_parameters": 10000}, "a malformed object is skipped"),
        Row("nested-theta-wins", "CFG-019", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000}},
            "a stale top-level theta is used"),
        Row("nested-theta-alone", "CFG-019", {"rope_theta": GONE, "rope_parameters": {"rope_theta": 500000}},
            "only the older place is read"),
        Row("nested-without-theta", "CFG-019", {"rope_theta": 30000, "rope_parameters": {"rope_type": "default"}},
            "a nested object hides the top-level theta"),
        Row("theta-absent", "CFG-020", {"rope_theta": GONE}, "theta 0 or 10000 stands in"),
        Row("theta-null", "CFG-020", {"rope_theta": None, "rope_parameters": None}, "null is read as a theta"),
        Row("rope-yarn", "CFG-021", {"rope_parameters": yarn}, "a scaled RoPE is run as the plain one"),
        Row("rope-scaling-linear", "CFG-021", {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "the older scaling is ignored"),
        Row("rope-partial", "CFG-021", {"rope_parameters": {"rope_theta": 10000, "partial_rotary_factor": 0.5}},
            "half a head is rotated as a whole one"),
        Row("rope-scaling-null", "CFG-021", {"rope_scaling": None}, "null is taken for a scaling"),
        Row("layer-types-few", "CFG-023", {"layer_types": [FULL]}, "layers past the list are full"),
        Row("layers-derived", "CFG-024", derived, "an older file's windows are lost"),
        Row("layers-derived-off", "CFG-024", derived | {"use_sliding_window": False},
            "a window that is switched off is applied"),
        Row("layers-derived-past-depth", "CFG-024", derived | {"sliding_window": GONE, "max_window_layers": 28},
            "a window is wanted that no layer has"),
        Row("layers-derived-unsaid", "CFG-004", derived | {"max_window_layers": GONE},
            "the library's 28 stands in for max_window_layers"),
    ]  # fmt: skip


def windows(switch: Mapping[str, Any]) -> list[Row]:
    """Layer types and windows of a draft. `switch` is what its schema needs besides."""
    hybrid = {"sliding_window": 5, **switch}
    return [
        Row("layer-types-many", "CFG-023", {"layer_types": [FULL, FULL, FULL, FULL]}, "the list is cut"),
        Row("layer-types-misspelt", "CFG-023", {"layer_types": [FULL, "local", FULL]}, "a misspelt layer is full"),
        Row("layers-hybrid", "CFG-026", hybrid | {"layer_types": [SLIDING, SLIDING, FULL]}, "a window is lost"),
        Row("layer-order", "CFG-026", hybrid | {"layer_types": [FULL, SLIDING, FULL]}, "windows are misplaced"),
        Row("window-absent", "CFG-026", {**switch, "layer_types": [SLIDING] * 3}, "a sliding layer sees all context"),
        Row(
            "window-zero", "CFG-005", hybrid | {"layer_types": [SLIDING] * 3, "sliding_window": 0}, "0 means no window"
        ),
        Row("window-unused", "CFG-026", {"sliding_window": 5}, "full layers get the window"),
        Row("window-null", "CFG-026", {"sliding_window": None}, "null is wanted as a size"),
    ]


def drafts(theta: str, switch: Mapping[str, Any]) -> list[Row]:
    """Rules of a draft in both of its schemas. `switch` is what a sliding layer needs besides."""
    mask, taps = "dflash_config.mask_token_id", "dflash_config.target_layer_ids"
    ids = {"true": True, "float": 3.0, "string": "3", "negative": -1, "too-big": LIMIT}
    return [
        Row("plain", "CFG-004", {}, "a member is misread"),
        *texts("num_hidden_layers"),
        *shared(theta),
        *windows(switch),
        *(Row(f"mask-{name}", "CFG-006", {mask: value}, f"a mask id of {value!r} is taken")
          for name, value in ids.items()),
        *(Row(f"tap-{name}", "CFG-006", {taps: [6, value]}, f"a tap id of {value!r} is taken")
          for name, value in ids.items()),
        Row("nested-is-list", "CFG-009", {"dflash_config": [["mask_token_id", 61]]}, "a malformed object is skipped"),
        Row("nested-unknown", "CFG-010", {"dflash_config.causal": True}, "a causal switch is ignored"),
        Row("nested-convolution", "CFG-010", {"dflash_config.conv_kernel_size": 2}, "a convolution is ignored"),
        Row("dflash2", "CFG-013", {"architectures": ["DFlash2DraftModel"]}, "DFlash2 runs as DFlash"),
        Row("taps-unsorted", "CFG-027", {taps: [6, 1, 4]}, "the ids are sorted"),
        Row("taps-empty", "CFG-027", {taps: []}, "a draft without taps is run", "crash"),
        Row("taps-not-list", "CFG-027", {taps: 6}, "one id is taken for a list", "crash"),
        Row("taps-one", "CFG-027", {taps: [8]}, "a single tap, on the last layer, is refused"),
        Row("taps-twice", "CFG-028", {taps: [1, 6, 1]}, "one layer is fed twice"),
        Row("taps-past-depth", "CFG-029", {taps: [1, 9]}, "a tap past the target is read", "crash"),
        Row("mask-absent", "CFG-039", {mask: GONE}, "the pad or end id fills the block"),
        Row("mask-null", "CFG-039", {mask: None}, "null becomes id 0"),
        Row("mask-last-row", "CFG-040", {mask: 63}, "a mask row outside the public ids is refused"),
        Row("mask-past-table", "CFG-040", {mask: 64}, "a row past the table is read", "crash"),
    ]  # fmt: skip


def published(profile: Profile) -> list[Row]:
    """Rules of the published schema."""
    nested, hybrid = "dflash_config.", {"layer_types": [FULL, FULL, SLIDING], "sliding_window": 5}
    rows = [
        *full_schema(),
        Row("flag-string", "CFG-008", {"is_causal": "false"}, "the string false is true"),
        Row("rope-interleaved", "CFG-022", {"is_neox_style": False}, "a head of neighbour pairs is rotated in halves"),
        Row("rope-halves-stated", "CFG-022", {"is_neox_style": True}, "the plain pairing is refused"),
        Row("window-switched-off", "CFG-025", hybrid | {"use_sliding_window": False}, "a runtime drops the window"),
        Row("window-not-switched-on", "CFG-025", hybrid, "a runtime drops the window in silence"),
        Row("nested-mask-wins", "CFG-038", {"mask_token_id": 3}, "a stale top-level mask id is used"),
        Row("nested-taps-win", "CFG-038", {"target_layer_ids": [2, 3]}, "stale top-level taps are used"),
        Row("nested-block-wins", "CFG-038", {"block_size": 8}, "a stale top-level block size is used"),
        Row("top-level-only", "CFG-038", {"mask_token_id": 3, "target_layer_ids": [2, 3], "block_size": 8,
                                          "dflash_config": GONE}, "an older file's members are not found"),
        Row("block-absent", "CFG-038", {nested + "block_size": GONE}, "a block size is made up"),
        Row("hidden-size-other", "CFG-044", {"hidden_size": 32}, "another target's draft is bound", "crash"),
        Row("vocab-size-other", "CFG-044", {"vocab_size": 65}, "another target's draft is bound"),
        Row("target-depth-other", "CFG-044", {"num_target_layers": 10}, "another target's draft is bound"),
        Row("target-depth-unsaid", "CFG-044", {"num_target_layers": GONE}, "a file that gives its taps is refused"),
        Row("trainer-schema", "CFG-045", {"target_num_hidden_layers": 9}, "a trainer's file passes for published"),
        Row("embedding-scale", "CFG-046", {nested + "input_embedding_scale": 4.0}, "a scaled draft is run unscaled"),
        Row("output-multiplier", "CFG-046", {"output_multiplier": 0.5}, "a scaled head is run unscaled"),
        Row("softcap", "CFG-046", {nested + "final_logit_softcapping": 20.0}, "a capped head is run uncapped"),
        Row("scalars-plain", "CFG-046", {nested + "input_embedding_scale": 1.0, nested + "output_multiplier": 1,
                                         nested + "final_logit_softcapping": 0}, "plain scalars are refused"),
        Row("sample-from-anchor", "CFG-047", {nested + "sample_from_anchor": True}, "proposals are off by one slot"),
        Row("draft-vocabulary", "CFG-047", {"draft_vocab_size": 32}, "ids of another table are proposed", "output"),
    ]  # fmt: skip
    causality = symmetric if profile.axes["local_causality"] == "symmetric" else local_when_absent
    return [*rows, *causality(nested + "target_layer_ids")]


def symmetric(taps: str) -> list[Row]:
    """A profile without causal layers or a formula for absent taps."""
    return [
        Row("taps-absent", "CFG-036", {taps: GONE}, "a formula feeds other layers"),
        Row("causal-true", "CFG-043", {"is_causal": True}, "a causal draft runs without its mask"),
        Row("causal-absent", "CFG-043", {"is_causal": GONE}, "a causal layer is made up"),
    ]


def local_when_absent(taps: str) -> list[Row]:
    """A profile with causal local layers and a formula for absent taps."""
    window = ("windows", "CFG-026")
    one = {taps: GONE, "num_hidden_layers": 1, "layer_types": [FULL]}
    hybrid = {"layer_types": [FULL, SLIDING, FULL], "use_sliding_window": True, "sliding_window": 5}
    return [
        Row("taps-absent", "CFG-037", {taps: GONE}, "another formula or count is taken"),
        Row("taps-absent-one-layer", "CFG-037", one, "a one-layer draft divides by zero"),
        Row(
            "causal-absent", "CFG-041", hybrid | {"is_causal": GONE}, "local layers see the whole block", beside=window
        ),
        Row("causal-null", "CFG-041", hybrid | {"is_causal": None}, "null is read as false", beside=window),
        Row("causal-absent-full", "CFG-041", {"is_causal": GONE}, "full layers are causal"),
        Row("causal-true", "CFG-042", hybrid | {"is_causal": True}, "full layers stay symmetric", beside=window),
        Row("causal-false", "CFG-042", hybrid, "local layers stay causal", beside=window),
    ]


def component() -> list[Row]:
    """Rules of the component schema."""
    closed = "a member that changes the model is ignored"
    return [
        *drafts("rope_parameters.rope_theta", {}),
        absent("layer_types"),
        Row("layer-types-few", "CFG-023", {"layer_types": [SLIDING]}, "layers past the list are full"),
        Row("theta-absent", "CFG-020", {"rope_parameters": {}}, "theta 0 or 10000 stands in"),
        Row("taps-absent", "CFG-036", {"dflash_config.target_layer_ids": GONE}, "a formula feeds other layers"),
        Row("closed-causal", "CFG-057", {"is_causal": True}, closed),
        Row("closed-hidden-size", "CFG-057", {"hidden_size": 16}, "a published file passes for a component"),
        Row("closed-rope", "CFG-057", {"rope_parameters.rope_type": "yarn"}, closed),
        Row("closed-block-size", "CFG-010", {"dflash_config.block_size": 5}, "a width is read that the schema has not"),
    ]  # fmt: skip


def cases(name: str, base: Mapping[str, Any], rows: list[Row], **others: Array) -> Iterator[Case]:
    """A case for each row, with the edited config as input `name`."""
    for row in rows:
        inputs = {name: text(edited(base, row.edit)), **others}
        blame = dict([row.beside] if row.beside else [])
        yield Case(row.slug, (row.clause, *blame.values()), inputs, row.catches, row.effect, blame=blame)


@suite("config.read_draft")
def read_draft(profile: Profile) -> Iterator[Case]:
    """Drafts in the profile's own schema."""
    closed = profile.axes["config_schema"] == "component"
    base, rows = (
        (COMPONENT, component()) if closed else (PUBLISHED, [*drafts("rope_theta", SWITCH), *published(profile)])
    )
    yield from cases("draft", base, rows, target=text(edited(TARGET, {})))


@suite("config.convert_draft", profiles=("ninfer",))
def convert_draft(profile: Profile) -> Iterator[Case]:
    """Published drafts, read by the rules of a profile with a schema of its own."""
    rows = [Row("plain", "CFG-004", {}, "a member is misread"), *windows(SWITCH), *published(profile)]
    yield from cases("draft", PUBLISHED, rows, target=text(edited(TARGET, {})))


@suite("config.read_target")
def read_target(profile: Profile) -> Iterator[Case]:
    """Qwen3 targets."""
    hybrid = {"layer_types": [FULL] * 7 + [SLIDING] * 2, "sliding_window": 6}
    rows = [
        Row("plain", "CFG-004", {}, "a member is misread", "output"),
        *texts("num_hidden_layers"),
        absent("vocab_size"), absent("hidden_size"),
        *shared("rope_theta"),
        *full_schema(),
        Row("flag-string", "CFG-008", {"tie_word_embeddings": "false"}, "the string false is true", "output"),
        Row("hybrid", "CFG-026", hybrid | {"use_sliding_window": True}, "windows go to the wrong layers", "output"),
        Row("window-not-switched-on", "CFG-025", hybrid, "a runtime drops the window in silence", "output"),
        Row("window-absent", "CFG-026", {"layer_types": [SLIDING] * 9, "use_sliding_window": True}, "a window is lost"),
        Row("stops-list", "CFG-048", {"eos_token_id": [7, 0, 63]}, "only the first end token ends", "output"),
        Row("stops-null", "CFG-048", {"eos_token_id": None}, "null becomes an end token", "output"),
        Row("stops-past-table", "CFG-048", {"eos_token_id": [7, 64]}, "an id that cannot come is taken", "liveness"),
        Row("stops-negative", "CFG-048", {"eos_token_id": -1}, "a placeholder is taken for an end token", "liveness"),
        Row("tied", "CFG-049", {"tie_word_embeddings": True}, "a head is wanted that the folder has not", "crash"),
        Row("tied-absent", "CFG-049", {"tie_word_embeddings": GONE}, "the head is ignored", "output"),
    ]  # fmt: skip
    yield from cases("target", TARGET, rows)


@suite("config.read_trainer")
def read_trainer(profile: Profile) -> Iterator[Case]:
    """Trainer configs."""
    depth = ("target_layers", "CFG-058")
    rows = [
        Row("plain", "CFG-058", {}, "the taps' number is taken for the target's depth"),
        Row("depth-of-official", "CFG-058", {"target_num_hidden_layers": 36, "target_layer_ids": [1, 17, 33]},
            "the taps' number is taken for the target's depth"),
        Row("unknown-top-level", "CFG-011", {"loss": "dpace"}, "a newer trainer's file is refused", beside=depth),
        *texts("num_hidden_layers"),
        *sizes("num_hidden_layers"),
        *(absent(key) for key in TRAINER if key != "mask_token_id"),
        Row("theta-zero", "CFG-007", {"rope_theta": 0}, "a theta of 0 is taken", "output"),
        Row("mask-absent", "CFG-039", {"mask_token_id": GONE}, "the pad or end id fills the block"),
        Row("mask-negative", "CFG-006", {"mask_token_id": -1}, "a mask id of -1 is taken"),
        Row("mask-past-table", "CFG-040", {"mask_token_id": 64}, "a row past the table is read", "crash"),
        Row("taps-unsorted", "CFG-027", {"target_layer_ids": [2, 0, 1]}, "the ids are sorted", beside=depth),
        Row("taps-empty", "CFG-027", {"target_layer_ids": []}, "a draft without taps is trained", "crash"),
        Row("taps-twice", "CFG-028", {"target_layer_ids": [1, 6, 1]}, "one layer is fed twice"),
        Row("taps-past-depth", "CFG-029", {"target_layer_ids": [1, 4, 9]}, "a tap past the target is read", "crash"),
        Row("taps-miscounted", "CFG-059", {"num_target_layers": 9}, "a published file passes for a trainer's"),
        Row("width-other", "CFG-060", {"target_hidden_size": 32}, "the borrowed embedding does not fit", "crash"),
    ]  # fmt: skip
    yield from cases("trainer", TRAINER, rows)
