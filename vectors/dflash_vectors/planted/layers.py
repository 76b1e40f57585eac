"""Layers of a planted pair: keyed noise, and attention that copies a channel block over one exact distance.

Only + − × ÷ √ in a fixed order, so that every machine builds the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.errors import PlanError
from dflash_vectors.planted.options import POSITIONS, Options

GAIN = 0.7
"""Gain of a noise layer's projections: its branches add about a fifth of the residual row's scale."""
FAINT_GAIN = 0.01
"""Gain of the noise that fills a copying layer's projections."""
SCORE = 24.0
"""Attention score of one channel pair at the copied distance; 16 pairs lead every other distance by 16."""
COPIED = 4.0
"""Scale of the copied code against the residual row's own channels."""
LEAD = 8.0
"""The least by which the copied distance must lead: any other one has at most 1/2981 of its weight then."""
TERMS = 14


def noise_layer(key: str, options: Options, layers: int) -> dict[str, Array]:
    """One of `layers` Qwen3 layers, every tensor keyed and non-zero, in published names without the layer's prefix."""
    hidden, heads, kv = options.hidden, options.heads * options.head_dim, options.kv_heads * options.head_dim
    shapes = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (options.intermediate, hidden),
        "mlp.up_proj": (options.intermediate, hidden),
        "mlp.down_proj": (hidden, options.intermediate),
    }
    norms = {
        "input_layernorm": hidden,
        "post_attention_layernorm": hidden,
        "self_attn.q_norm": options.head_dim,
        "self_attn.k_norm": options.head_dim,
    }
    layer = {f"{name}.weight": inputs.weights(f"{key}/{name}", shape, "F32", GAIN) for name, shape in shapes.items()}
    layer.update(
        {f"{name}.weight": inputs.norm_weights(f"{key}/{name}", (size,), "F32") for name, size in norms.items()}
    )
    for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        layer[name] *= sqrt(share(layers))
        layer[name][[options.constant, options.flag]] *= sqrt(share(layers))
    return layer


def share(layers: int) -> float:
    """What counts of the square of one noise layer's output, where a model has so many layers: in sum no more than two.

    A pair reads the codes below the last layer, positions off the constant channel and the plan off the flag, which
    both get the square root of it once more: the noise of six whole layers reaches half a flag.
    """
    return min(1.0, 2 / max(1, layers - 1))


@dataclass(frozen=True)
class Copy:
    """What a copying layer reads and adds.

    distance: positions back. window: the layer's, 0 for a full one. query_norm, source_norm: [hidden] weights of the
    norms that produced the rows which give the queries, and the keys and values. carried: the channels that the values
    hold. mixed: [rows, carried] what each of these adds to the first channels of the row.
    """

    distance: int
    window: int
    query_norm: Array
    source_norm: Array
    carried: tuple[int, ...]
    mixed: Array


def copying_attention(key: str, options: Options, copy: Copy) -> dict[str, Array]:
    """Attention tensors that copy the code of the row `copy.distance` back, whatever the rows hold.

    Queries and keys come from the constant channel alone, so each channel pair turns with the position and the
    score is a sum of cos(frequency · (distance − copied distance)), largest at the copied distance.
    Raises PlanError where another one scores nearly as much.
    """
    found = lead(options, copy)
    if found < LEAD:
        raise PlanError(
            f"head_dim {options.head_dim}, theta {options.theta:g}: distance {copy.distance} leads by {found:.1f}, "
            f"expected {LEAD:g} at least, to copy from it alone"
        )
    hidden, size, width = options.hidden, options.head_dim, options.kv_heads * options.head_dim
    group = options.heads // options.kv_heads
    q_norm, q_turn = _direction(f"{key}/q", options, copy.distance)
    k_norm, k_turn = _direction(f"{key}/k", options, 0)
    q_proj = inputs.weights(f"{key}/q_proj", (options.heads * size, hidden), "F32", FAINT_GAIN)
    k_proj = inputs.weights(f"{key}/k_proj", (width, hidden), "F32", FAINT_GAIN)
    v_proj = inputs.weights(f"{key}/v_proj", (width, hidden), "F32", FAINT_GAIN)
    o_proj = inputs.weights(f"{key}/o_proj", (hidden, options.heads * size), "F32", FAINT_GAIN)
    q_proj[:, options.constant] = np.concatenate([q_turn] * options.heads) / copy.query_norm[options.constant]
    k_proj[:, options.constant] = np.concatenate([k_turn] * options.kv_heads) / copy.source_norm[options.constant]
    shares = [(head % group + 1) / (group * (group + 1) / 2) for head in range(options.heads)]
    for channel, source in enumerate(copy.carried):
        v_proj[channel, source] += 1.0 / copy.source_norm[source]
        for head in range(channel // size * group, (channel // size + 1) * group):
            column = head * size + channel % size
            o_proj[: len(copy.mixed), column] += COPIED * shares[head] * copy.mixed[:, channel]
    tensors = {
        "q_proj": q_proj,
        "k_proj": k_proj,
        "v_proj": v_proj,
        "o_proj": o_proj,
        "q_norm": q_norm,
        "k_norm": k_norm,
    }
    return {f"self_attn.{name}.weight": value for name, value in tensors.items()}


def lead(options: Options, copy: Copy) -> float:
    """By how much the score of the copied distance exceeds that of any other one at which a row may be seen."""
    behind = (copy.window or POSITIONS) - 1 - copy.distance
    apart = np.arange(1.0, max(behind, copy.distance + options.drafts) + 1)
    frequencies = options.theta ** -np.linspace(0, 1, options.head_dim // 2, endpoint=False)
    return SCORE * float((1 - np.cos(np.outer(apart, frequencies))).sum(axis=1).min())


def _direction(key: str, options: Options, distance: int) -> tuple[Array, Array]:
    """A head norm's weights [D], and the raw row [D] that leaves it as unit pairs turned back by `distance`.

    The weights are scaled so that a query and a key pair of equal phase score SCORE.
    """
    size, half = options.head_dim, options.head_dim // 2
    weights = inputs.norm_weights(f"{key}_norm", (size,), "F32") + 0.5
    unit = np.zeros(size)
    for pair, (cosine, sine) in enumerate(_turns(options, distance)):
        unit[pair], unit[pair + half] = 0.8 * cosine + 0.6 * sine, 0.6 * cosine - 0.8 * sine
    raw = unit / weights
    square = sum(float(value) * float(value) for value in raw) / size
    return weights * (sqrt(SCORE * sqrt(float(size))) * sqrt(square)), raw


def _turns(options: Options, distance: int) -> list[tuple[float, float]]:
    """cos and sin of frequency_j · distance for the D/2 channel pairs, by series and repeated products."""
    ratio, size = options.theta, options.head_dim // 2
    while size > 1:
        ratio, size = sqrt(ratio), size // 2
    frequency, turns = 1.0, []
    for _ in range(options.head_dim // 2):
        step = _small_turn(frequency)
        cosine, sine = 1.0, 0.0
        for _ in range(distance):
            cosine, sine = cosine * step[0] - sine * step[1], cosine * step[1] + sine * step[0]
        turns.append((cosine, sine))
        frequency /= ratio
    return turns


def _small_turn(angle: float) -> tuple[float, float]:
    """cos and sin of an angle of at most 1, by their series."""
    parts, term = [0.0, 0.0], 1.0
    for power in range(2 * TERMS):
        parts[power % 2] += term if power % 4 < 2 else -term
        term *= angle / (power + 1)
    return parts[0], parts[1]
