"""A target and a draft made of keyed numbers: every row depends on the whole text before it.

Logits are multiples of 1/8, exact in every dtype. Some vocabularies are followed by padding, which would win.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.law.configs import BACKENDS, PENALTIES, Config, choices

Tokens = tuple[int, ...]
STEP, LIMIT = 0.125, 2.5
PADDING = {3: (40.0, 44.0), 7: (41.0,), 23: (38.0, 42.0, 36.0)}
"""Vocabulary -> logits of the ids after it, which are not public."""
PROMPT: Tokens = (2, 1, 2, 0)
ANCHOR = 2
"""The first token that the request has emitted. The prompt holds it too, where it must not count."""
LEAN = 6.0
"""Logits by which a draft prefers a stop id in its slot, and shuns it elsewhere."""
NEVER = -2048.0
"""A logit whose weight is 0 in FP32 at every temperature."""
MISTAKES = 4
"""A draft follows the target's likeliest text but for every fourth slot or so, where its row is another."""


@cache
def target_logits(vocabulary: int, text: Tokens) -> Array:
    """The target's logits after a text: [V], and those of the padding."""
    row = inputs.lattice(f"law/target/{vocabulary}/{text}", (vocabulary,), STEP, LIMIT)
    return np.append(row, PADDING.get(vocabulary, ()))


@cache
def likeliest(vocabulary: int, text: Tokens, count: int) -> Tokens:
    """The `count` tokens that the target's raw logits prefer after a text."""
    for _ in range(count):
        text += (int(np.argmax(target_logits(vocabulary, text)[:vocabulary])),)
    return text[len(text) - count :]


def allowed_ids(config: Config, emitted: Tokens) -> Array:
    """Which ids the request's mask allows after what it has emitted: bool [V]."""
    allowed = np.ones(config.vocabulary, dtype=np.bool_)
    mask = PENALTIES[config.penalty].mask
    if mask == "fixed":
        allowed[1] = False
    elif mask == "moving":
        allowed[(sum(emitted) + len(emitted)) % config.vocabulary] = False
    return allowed


def stop_ids(config: Config) -> frozenset[int]:
    """The ids that end the request."""
    last = config.vocabulary - 1
    return frozenset({"none": (), "two": (0, last)}.get(config.stop, (last,)))


def _leaning(config: Config, slot: int) -> Array:
    """What a draft adds to its logits so that stop ids stand where the request wants them: [V]."""
    lean = np.zeros(config.vocabulary)
    where = {"first": 0, "last": config.drafts - 1}.get(config.stop)
    if where is not None:
        lean[-1] = LEAN if slot == where else -LEAN
    elif config.stop == "ending":
        lean[-1] = NEVER
    return lean


@cache
def draft_logits(config: Config, text: Tokens, slot: int) -> Array:
    """The draft's logits of a slot of the block that follows a text, [V]. Where it draws, few ids are likely."""
    size, key = config.vocabulary, f"law/draft/{config.vocabulary}/{text}/{slot}"
    row = inputs.lattice(key, (size,), STEP, LIMIT)
    if int(inputs.hashes(f"{key}/mistaken", (1,))[0]) % MISTAKES:
        row = row / 4 + target_logits(size, text + likeliest(size, text, slot))[:size]
    row = row + _leaning(config, slot)
    if BACKENDS[config.backend].drafter == "rows":
        row[np.argsort(-row, kind="stable")[choices(config) :]] = NEVER
    return row


@cache
def candidates(config: Config, text: Tokens, slot: int) -> Array:
    """The ids among which a selector chooses in a slot, best unary score first: [C]."""
    return np.argsort(-draft_logits(config, text, slot), kind="stable")[: choices(config)]


@cache
def edge_scores(config: Config, text: Tokens, slot: int, before: int) -> Array:
    """The selector's scores of a slot's candidates after the token `before`: [C]."""
    ids = candidates(config, text, slot)
    edges = inputs.lattice(f"law/edges/{config.vocabulary}/{text}/{slot}/{before}", (len(ids),), STEP, LIMIT)
    return draft_logits(config, text, slot)[ids] + edges
