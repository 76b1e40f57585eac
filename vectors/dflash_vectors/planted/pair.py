"""Planted pairs: a Qwen3 target, and a DFlash or DFlash2 draft that follows it up to chosen slots.

The target walks around one of several token cycles. The draft's copying layer looks exactly one cycle back into the
context, where the same token stood before, and so proposes what the target will say; tokens that carry a flag make
it propose a decoy instead. Every other tensor is keyed noise, so all of the arithmetic matters to the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.errors import PlanError
from dflash_vectors.planted import dflash2
from dflash_vectors.planted.layers import GAIN, Copy, copying_attention, noise_layer
from dflash_vectors.planted.options import DTYPES, POSITIONS, PRESETS, SECOND, Options
from dflash_vectors.planted.vocabulary import FLAG, Vocabulary, embedding, vocabulary

PEAK = 13.0
"""Logit of the right token, about."""
DECOY = 2.5
"""How much the decoy's code outweighs the true one where the draft is made to go wrong."""
NEAR = 0.05
"""Scale of the logit difference of twins; BF16 values near PEAK lie 0.0625 apart."""
PROMPT_EXTRA = 18


@dataclass(frozen=True)
class Planted:
    """A pair in published names, as float64 arrays that hold values of `options.dtype`.

    `prompts` has one prompt a cycle, longer than the distance that the draft copies over; the first token after it is
    mispredicted, so the first round starts a gap. `public` ids are text; the mask's row is the first past them.
    """

    options: Options
    target_config: dict[str, Any]
    draft_config: dict[str, Any]
    target: dict[str, Array]
    draft: dict[str, Array]
    prompts: list[list[int]]
    public: int
    words: Vocabulary

    def expected_next(self, token: int) -> int:
        """The token that the target says after `token`."""
        return self.words.successor[token]

    def continuation(self, prompt: list[int], count: int) -> list[int]:
        """The `count` tokens that plain greedy decoding gives after `prompt`."""
        tokens = [prompt[-1]]
        for _ in range(count):
            tokens.append(self.expected_next(tokens[-1]))
        return tokens[1:]

    def expected_accepted(self, prompt: list[int], drafts: int, count: int) -> list[int]:
        """Accepted proposals of each round up to `count` new tokens, where a block holds as many as the budget leaves.

        In profile ninfer, whose blocks hold one fewer, the last round may accept one fewer.
        """
        tokens, accepted, place = self.continuation(prompt, count), [], 0
        while place + 1 < count:
            run = 0
            while run < drafts and place + run + 1 < count and tokens[place + run + 1] not in self.words.mispredicted:
                run += 1
            accepted.append(run)
            place += run + 1
        return accepted


def pair(preset: str = "standard", **options: Any) -> Planted:
    """Build a pair from a preset (`standard`, `tied` or `small`) and the options that differ from it.

    `backend="dflash2"` makes the draft DFlash2's.

    Raises PlanError for an unknown preset, and for options that contradict each other or that no draft could follow;
    TypeError for an unknown option.
    """
    if preset not in PRESETS:
        raise PlanError(f"preset {preset!r}, expected one of {', '.join(PRESETS)}")
    second = SECOND.get(preset, {}) if options.get("backend") == "dflash2" else {}
    chosen = replace(PRESETS[preset], **{**second, **options})
    key = f"planted/{chosen.seed}"
    words = vocabulary(key, chosen)
    target = _target(f"{key}/target", chosen, words)
    draft = _draft(f"{key}/draft", chosen, words, target["model.norm.weight"])
    length = chosen.cycle + PROMPT_EXTRA
    starts = (-length) % chosen.cycle
    return Planted(
        options=chosen,
        target_config=target_config(chosen, words.decoy),
        draft_config=draft_config(chosen),
        target={name: inputs.represent(value, chosen.dtype) for name, value in target.items()},
        draft={name: inputs.represent(value, chosen.dtype) for name, value in draft.items()},
        prompts=[[cycle[(starts + i) % chosen.cycle] for i in range(length)] for cycle in words.cycles],
        public=chosen.public,
        words=words,
    )


def _target(key: str, options: Options, words: Vocabulary) -> dict[str, Array]:
    """Noise layers; the head turns each code into its successor, or the last layer copies it if the head is tied."""
    table = embedding(key, options, words)
    scale = PEAK / options.code
    norm = scale * inputs.norm_weights(f"{key}/norm", (options.hidden,), "F32")
    norm[options.flag] /= FLAG * FLAG  # else a tied head would read the flag as likeness to every flagged token
    tensors = {"model.embed_tokens.weight": table, "model.norm.weight": norm}
    last = len(options.target_windows) - 1
    for index in range(len(options.target_windows)):
        layer = noise_layer(f"{key}/layer/{index}", options, last + 1)
        if options.tied and index == last:
            source = layer["input_layernorm.weight"]
            mixing = plain_mixing(options, np.ones(options.code), np.zeros(options.code))
            copy = Copy(options.cycle - 1, options.target_windows[index], source, source, *mixing)
            layer.update(copying_attention(f"{key}/copy", options, copy))
        tensors.update({f"model.layers.{index}.{name}": value for name, value in layer.items()})
    if not options.tied:
        head = inputs.normal_like(f"{key}/head", (options.vocabulary, options.hidden), scale / 4, "F32")
        for token, successor in words.successor.items():
            head[successor, : options.code] = scale * words.codes[token] / norm[: options.code]
        for token, other in words.twin.items():
            shift = inputs.weights(f"{key}/twin/{token}", (1, options.hidden), "F32", NEAR)[0]
            head[other] = head[token] + shift / norm
        tensors["lm_head.weight"] = head
    return tensors


def _draft(key: str, options: Options, words: Vocabulary, target_norm: Array) -> dict[str, Array]:
    """Noise layers, of which one copies; its rows are scaled so that the target's head reads them as the target's."""
    hidden, tapped = options.hidden, options.flag + 1
    fc = inputs.weights(f"{key}/fc", (hidden, len(options.taps) * hidden), "F32", GAIN / 8)
    diagonal = np.arange(tapped)
    # A DFlash2 draft leans on its lowest tap, whose rows are nearest to the codes: its unary scores are a close race.
    slots = np.argsort(options.taps, kind="stable") if options.second else range(len(options.taps))
    for place, slot in enumerate(slots):
        fc[diagonal, slot * hidden + diagonal] += 1.0 / (place + 1)
    norm = inputs.norm_weights(f"{key}/norm", (hidden,), "F32")
    context_norm = inputs.norm_weights(f"{key}/hidden_norm", (hidden,), "F32")
    tensors = {"fc.weight": fc, "hidden_norm.weight": context_norm, "norm.weight": norm}
    fold = target_norm[: options.code] / norm[: options.code] * (options.code / PEAK)
    for index in range(len(options.draft_windows)):
        layer = noise_layer(f"{key}/layer/{index}", options, len(options.draft_windows))
        if index == options.copy_layer:
            query = layer["input_layernorm.weight"]
            mixing = (
                dflash2.mixing(key, options, words, fold)
                if options.second
                else plain_mixing(options, fold, DECOY / FLAG * words.codes[words.decoy])
            )
            copy = Copy(options.distance, options.draft_windows[index], query, context_norm, *mixing)
            layer.update(copying_attention(f"{key}/copy", options, copy))
        if options.second:
            layer = convolved(f"{key}/layer/{index}", options, layer)
        tensors.update({f"layers.{index}.{name}": value for name, value in layer.items()})
    if options.second:
        selector = dflash2.selector(f"{key}/selector", options, words, norm)
        tensors.update({f"candidate_selector.{name}": value for name, value in selector.items()})
    return tensors


def plain_mixing(options: Options, fold: Array, decoy: Array) -> tuple[tuple[int, ...], Array]:
    """The channels that a copied row carries, and what each adds [code, carried], with the gains `fold` [code]: itself,
    and `decoy` [code] if flagged."""
    return (*range(options.code), options.flag), np.column_stack([np.diag(fold), fold * decoy])


def convolved(key: str, options: Options, layer: dict[str, Array]) -> dict[str, Array]:
    """`layer` with a convolution around both branches, whose scales the branches' last projections undo."""
    added = {}
    for branch, last in (("attention_conv", "self_attn.o_proj.weight"), ("mlp_conv", "mlp.down_proj.weight")):
        tensors = dflash2.convolution(f"{key}/{branch}", options)
        added[last] = layer[last] / tensors["base_kernel"][1, 0][:, np.newaxis]
        added |= {f"{branch}.{name}": value for name, value in tensors.items()}
    return {**layer, **added}


def _common_config(options: Options, windows: tuple[int, ...]) -> dict[str, Any]:
    local = max(windows)
    config = {
        "model_type": "qwen3",
        "vocab_size": options.vocabulary,
        "hidden_size": options.hidden,
        "intermediate_size": options.intermediate,
        "num_hidden_layers": len(windows),
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.kv_heads,
        "head_dim": options.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": options.eps,
        "rope_parameters": {"rope_theta": options.theta, "rope_type": "default"},
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
        "dtype": DTYPES[options.dtype],
    }
    if local:
        config |= {"use_sliding_window": True, "sliding_window": local, "max_window_layers": 0}
    return config


def target_config(options: Options, decoy: int) -> dict[str, Any]:
    """The target's `config.json`. Its stop id is the decoy, which the draft proposes and the target never says."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        **_common_config(options, options.target_windows),
        "tie_word_embeddings": options.tied,
        "eos_token_id": decoy,
    }


def draft_config(options: Options) -> dict[str, Any]:
    """The draft's `config.json` in the published schema."""
    config = {
        "architectures": ["DFlash2DraftModel" if options.second else "DFlashDraftModel"],
        **_common_config(options, options.draft_windows),
        "tie_word_embeddings": False,
        "num_target_layers": len(options.target_windows),
        "dflash_config": {
            "block_size": options.drafts + 1,
            "mask_token_id": options.mask_id,
            "target_layer_ids": list(options.taps),
            **_second_config(options),
        },
    }
    if options.is_causal is not None:
        config["is_causal"] = options.is_causal
    return config


def _second_config(options: Options) -> dict[str, int]:
    """The members that DFlash2 adds to `dflash_config`."""
    if not options.second:
        return {}
    return {
        "conv_kernel_size": options.conv_taps,
        "conv_group_size": options.conv_group,
        "selector_rank": options.rank,
        "selector_top_k": options.candidates,
    }


def component_config(options: Options) -> dict[str, Any]:
    """The draft's config in NInfer's closed schema, which has no causality key: its local layers see both ways."""
    published = draft_config(options)
    kept = (
        "architectures", "model_type", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
        "num_hidden_layers", "max_position_embeddings", "rms_norm_eps", "layer_types",
    )  # fmt: skip
    config = {name: published[name] for name in kept}
    config["rope_parameters"] = {"rope_theta": options.theta}
    config["dflash_config"] = {
        "target_layer_ids": list(options.taps),
        "mask_token_id": options.mask_id,
        **_second_config(options),
    }
    if "sliding_window" in published:
        config["sliding_window"] = published["sliding_window"]
    return config
