"""What makes a planted draft a DFlash2 draft: convolutions that it cannot do without, and a selector that decides.

The draft's unary scores waver between the right token and the decoy: which leads depends on the token before, and has
nothing to do with the plan. The selector's codebooks settle each slot as the plan wants it. So the walk parts from the
unary argmax where the decoy leads and the plan keeps the right token, and where it is the other way round.

Only + − × ÷ √ in a fixed order, so that every machine builds the same bytes.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.planted.options import Options
from dflash_vectors.planted.vocabulary import CONSTANT, FLAG, Vocabulary

LEAD = 0.9
"""The decoy's code in every copied row, against the right token's 1."""
SPREAD = 0.12
"""Scale of what the token before adds to that."""
FLAGGED = 0.3
"""What a flag adds to that."""
STEADY = 3.0
"""Gain of the constant in a copied row, from which the selector's hidden row is made."""
RIGHT, WRONG = 0.7, 2.0
"""By how much the selector makes the plan's choice lead, the right token or the decoy, against a whole code's 1."""
RIVAL = 2.0
"""The decoy's entry in the successor codebook."""
ANSWER = 0.3
"""What the other ranks add to the token that follows, against a whole code's 1."""
KERNEL = 0.06
"""Scale of the convolutions' increments."""


def convolution(key: str, options: Options) -> dict[str, Array]:
    """Base kernels [2, taps, hidden] and kernel projection [2 · taps · groups, hidden], without the branch's prefix.

    Tap 0 of the output side has signs and scales of its own; the other taps and the increments add a little of the
    rows before.
    """
    taps, hidden = options.conv_taps, options.hidden
    base = inputs.uniform(f"{key}/base", (2, taps, hidden), -0.15, 0.15, "F32")
    base[:, 0] = inputs.uniform(f"{key}/here", (2, hidden), 0.6, 1.4, "F32")
    base[1, 0] *= _signs(f"{key}/signs", (hidden,))
    rows = 2 * taps * (hidden // options.conv_group)
    return {
        "base_kernel": base,
        "kernel_projection.weight": inputs.weights(f"{key}/projection", (rows, hidden), "F32", KERNEL),
    }


def wavering(key: str, options: Options) -> Array:
    """[code] weights of the copied code in the decoy's part of a row: the token before sways the unary scores."""
    return inputs.normal_like(f"{key}/sway", (options.code,), SPREAD / options.code**0.5, "F32")


def mixing(key: str, options: Options, words: Vocabulary, fold: Array) -> tuple[tuple[int, ...], Array]:
    """The channels that a copied row carries, and what each adds [code + 1, carried], with the gains `fold` [code].

    A code channel adds itself and a part of the decoy; so do flag and constant, which is kept besides.
    """
    decoy, sway = words.codes[words.decoy], wavering(key, options)
    parts = [np.eye(options.code) + decoy[:, np.newaxis] * sway, decoy * (FLAGGED / FLAG), decoy * (LEAD / CONSTANT)]
    code = fold[:, np.newaxis] * np.column_stack(parts)
    steady = np.zeros((1, code.shape[1]))
    steady[0, -1] = STEADY
    return (*range(options.code), options.flag, options.constant), np.concatenate([code, steady])


def leads(key: str, options: Options, words: Vocabulary) -> dict[int, float]:
    """Token -> by how much the decoy leads in the row that proposes what follows it, against a whole code's 1."""
    sway, found = wavering(key, options), {}
    for token, following in words.successor.items():
        read = following if options.tied else token
        along = sum(float(weight * sign) for weight, sign in zip(sway, words.codes[read], strict=True))
        apart = 1.0 - float(np.sum(words.codes[read] * words.codes[words.decoy])) / options.code
        found[token] = (LEAD - 1.0 + along + FLAGGED * (following in words.mispredicted)) * apart
    return found


def selector(key: str, options: Options, words: Vocabulary, norm: Array) -> dict[str, Array]:
    """The selector's three tensors. `norm` [hidden] are the weights of the draft's last norm.

    Rank 0 settles a slot between the decoy and the rest, by the token before. The other ranks hold a signature of each
    token, which what follows the token answers.
    """
    rank, unit = options.rank, options.code / (CONSTANT * STEADY)
    gains = inputs.uniform(f"{key}/gains", (rank,), 0.5, 1.0, "F32") * _signs(f"{key}/signs", (rank,))
    projection = inputs.weights(f"{key}/hidden", (rank, options.hidden), "F32", 0.1)
    projection[:, options.constant] += gains / norm[options.constant]
    loud = sqrt(ANSWER * unit / sum(abs(float(gain)) for gain in gains[1:]))
    signatures = loud * _signs(f"{key}/signatures", (options.vocabulary, rank))
    before = signatures + inputs.normal_like(f"{key}/predecessor", signatures.shape, 0.1, "F32")
    after = inputs.normal_like(f"{key}/successor", signatures.shape, 0.1, "F32")
    after[words.decoy, 0] = RIVAL
    per = unit / (float(gains[0]) * RIVAL)
    for token, lead in leads(key.removesuffix("/selector"), options, words).items():
        following = words.successor[token]
        wrong = following in words.mispredicted
        before[token, 0] = ((WRONG if wrong else -RIGHT) - lead) * per
        if following != token:
            after[following, 1:] += signatures[token, 1:] * np.sign(gains[1:])
    for token, other in words.twin.items():
        after[other] = after[token]
    return {
        "hidden_projection.weight": projection,
        "predecessor_codebook": before,
        "successor_codebook": after,
    }


def _signs(key: str, shape: tuple[int, ...]) -> Array:
    return np.where(inputs.hashes(key, shape) >> np.uint64(63), 1.0, -1.0)
