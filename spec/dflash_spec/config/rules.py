"""Rules that a draft config and a target config share: names, attention geometry, layer types and RoPE."""

from __future__ import annotations

from dflash_spec.config import members as read
from dflash_spec.config.members import Members
from dflash_spec.errors import UnsupportedConfigError

FULL, SLIDING = "full_attention", "sliding_attention"


def architecture(members: Members, expected: str) -> str:
    """Clause: CFG-012. The one name in `architectures`. Raises ConfigError unless it is `expected`."""
    names = read.require(members, "architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] != expected:
        raise members.wrong("architectures", f"[{expected!r}]", "CFG-012")
    return expected


def model_type(members: Members) -> None:
    """Clause: CFG-014. Raises ConfigError unless `model_type` is `qwen3`, the block both models are made of."""
    if read.require(members, "model_type") != "qwen3":
        raise members.wrong("model_type", "'qwen3'", "CFG-014")


def heads(members: Members) -> tuple[int, int]:
    """Query heads and KV heads.

    Clause: CFG-015. Raises ConfigError unless the KV heads divide the query heads.
    """
    query = read.positive_int(members, "num_attention_heads")
    key = read.positive_int(members, "num_key_value_heads")
    if query % key:
        raise members.wrong("num_key_value_heads", f"a divisor of the {query} query heads", "CFG-015")
    return query, key


def head_dim(members: Members) -> int:
    """Clause: CFG-016. Channels of a head. Raises ConfigError where odd: RoPE pairs the two halves."""
    channels = read.positive_int(members, "head_dim")
    if channels % 2:
        raise members.wrong("head_dim", "an even number", "CFG-016")
    return channels


def activation(members: Members) -> None:
    """Clause: CFG-017. Raises UnsupportedConfigError where `hidden_act` is given and is not `silu`."""
    if members.has("hidden_act") and members.get("hidden_act") != "silu":
        raise members.wrong("hidden_act", "'silu'", "CFG-017", UnsupportedConfigError)


def attention_bias(members: Members) -> None:
    """Clause: CFG-018. Raises UnsupportedConfigError where `attention_bias` is true: no projection has a bias."""
    if read.flag(members, "attention_bias"):
        raise members.wrong("attention_bias", "false", "CFG-018", UnsupportedConfigError)


def theta(members: Members) -> float:
    """The RoPE base.

    Clause: CFG-019 (`rope_parameters.rope_theta` beats top-level `rope_theta`).
    Clause: CFG-020 (ConfigError where neither is given).
    """
    nested = read.inner(members, "rope_parameters")
    if nested.has("rope_theta"):
        return read.positive_float(nested, "rope_theta")
    if not members.has("rope_theta"):
        raise members.wrong("rope_theta", "a value here or in rope_parameters", "CFG-020")
    return read.positive_float(members, "rope_theta")


def plain_rope(members: Members) -> None:
    """Clause: CFG-021. Raises UnsupportedConfigError on any RoPE but the plain one over the whole head.

    Looks at `rope_parameters` and the older `rope_scaling`: a type other than `default`, or any further member
    (a factor, sections, a partial rotary factor other than 1), asks for another rotation.
    """
    for name in ("rope_parameters", "rope_scaling"):
        nested = read.inner(members, name)
        for key, value in nested.values.items():
            plain = {"rope_theta": value, "rope_type": "default", "type": "default", "partial_rotary_factor": 1}
            if value is not None and (key not in plain or value != plain[key]):
                raise nested.wrong(key, "plain RoPE over the whole head", "CFG-021", UnsupportedConfigError)


def rope_style(members: Members) -> None:
    """Clause: CFG-022. Raises UnsupportedConfigError where `is_neox_style` is false: pairs are split halves."""
    if read.flag(members, "is_neox_style") is False:
        raise members.wrong("is_neox_style", "true", "CFG-022", UnsupportedConfigError)


def listed_layer_types(members: Members, layers: int) -> tuple[str, ...]:
    """Clause: CFG-023. `layer_types` as given. Raises ConfigError unless it has one known name for each layer."""
    names = read.require(members, "layer_types")
    if not isinstance(names, list) or len(names) != layers or any(name not in (FULL, SLIDING) for name in names):
        raise members.wrong("layer_types", f"{layers} names, each {FULL} or {SLIDING}", "CFG-023")
    return tuple(names)


def derived_layer_types(members: Members, layers: int) -> tuple[str, ...]:
    """Layer types where `layer_types` is absent.

    Clause: CFG-024. With `use_sliding_window` true the layers from index `max_window_layers` on slide; without it all
    layers are full. Raises ConfigError where `max_window_layers` is needed and absent.
    """
    if not read.flag(members, "use_sliding_window"):
        return (FULL,) * layers
    first = read.index(members, "max_window_layers")
    return tuple(SLIDING if layer >= first else FULL for layer in range(layers))


def layer_types(members: Members, layers: int) -> tuple[str, ...]:
    """One name a layer: the listed ones where `layer_types` is given, else the derived ones."""
    if members.has("layer_types"):
        return listed_layer_types(members, layers)
    return derived_layer_types(members, layers)


def switched_on(members: Members, types: tuple[str, ...]) -> None:
    """Clause: CFG-025. Raises ConfigError where a layer slides and `use_sliding_window` is not true.

    transformers drops the window of such a file in silence.
    """
    if SLIDING in types and read.flag(members, "use_sliding_window") is not True:
        raise members.wrong("use_sliding_window", "true, since layer_types has sliding layers", "CFG-025")


def windows(members: Members, types: tuple[str, ...]) -> tuple[int, ...]:
    """The window of each layer; 0 for a full one.

    Clause: CFG-026. `sliding_window` counts for sliding layers only. Raises ConfigError where one needs it and it is
    absent.
    """
    if SLIDING in types and not members.has("sliding_window"):
        raise members.wrong("sliding_window", "a window, since layer_types has sliding layers", "CFG-026")
    size = read.positive_int(members, "sliding_window") if SLIDING in types else 0
    return tuple(size if name == SLIDING else 0 for name in types)
