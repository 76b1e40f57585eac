"""The tokens of a planted pair: disjoint cycles, a decoy, and codes that tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.errors import PlanError
from dflash_vectors.planted.options import Options

CONSTANT = 2.0
"""Value of the constant channel in every embedding row."""
FLAG = 4.0
"""Value of the flag channel in a flagged token's row; the layers' noise in that channel stays far below it."""
OTHER = 0.5
"""Scale of the channels that carry nothing."""
FAINT = 0.25
"""Scale of the code channels in rows that are no text (the mask's and the padding's)."""
POOL = 64


@dataclass(frozen=True)
class Vocabulary:
    """`successor` is the target's next token. The draft proposes `decoy` in the place of a `mispredicted` token.

    `twin` gives the second id of a token where there are twins. codes: [public, code] of +1 and -1, 0 for idle ids;
    all but twins' differ in three channels of ten.
    """

    cycles: tuple[tuple[int, ...], ...]
    decoy: int
    successor: dict[int, int]
    mispredicted: frozenset[int]
    twin: dict[int, int]
    codes: Array


def vocabulary(key: str, options: Options) -> Vocabulary:
    """Cycles over ids in keyed order; in each the gaps say which tokens are mispredicted."""
    ids = [int(id_) for id_ in np.argsort(inputs.hashes(f"{key}/ids", (options.public,)), kind="stable")]
    length, count = options.cycle, len(options.gaps) * options.cycle
    cycles = tuple(tuple(ids[start : start + length]) for start in range(0, count, length))
    decoy = ids[-1]
    successor = {decoy: decoy}
    mispredicted = []
    for cycle, gaps in zip(cycles, options.gaps, strict=True):
        successor.update(zip(cycle, cycle[1:] + cycle[:1], strict=True))
        mispredicted += [cycle[place] for place in accumulate(gaps[:-1], initial=0)]
    codes = _codes(f"{key}/codes", options, idle_ids(ids, options))
    twin = dict(zip(ids[:count], ids[count : 2 * count], strict=True)) if options.twins else {}
    for token, other in twin.items():
        successor[other] = successor[token]
        codes[other] = codes[token]
    return Vocabulary(cycles, decoy, successor, frozenset(mispredicted), twin, codes)


def idle_ids(ids: Sequence[int], options: Options) -> frozenset[int]:
    """Those of the public ids, in keyed order, that no text holds: the ones before the decoy."""
    return frozenset(ids[len(ids) - 1 - options.idle : -1])


def _codes(key: str, options: Options, idle: frozenset[int]) -> Array:
    """Rows of signs, each the first of its keyed candidates that no earlier row resembles too much; 0 for idle ids.

    Two rows may agree in at most 70 % of the channels, so a row's product with itself exceeds any other by 60 %.
    """
    limit = int(0.4 * options.code)
    chosen = np.zeros((0, options.code), dtype=np.int64)
    codes = np.zeros((options.public, options.code))
    for token in sorted(set(range(options.public)) - idle):
        for attempt in range(POOL):
            bits = inputs.hashes(f"{key}/{token}/{attempt}", (options.code,)) >> np.uint64(63)
            candidate = 2 * bits.astype(np.int64) - 1
            if not len(chosen) or int((chosen * candidate).sum(axis=1).max()) <= limit:
                chosen = np.concatenate([chosen, candidate[None]])
                codes[token] = candidate
                break
        else:
            raise PlanError(f"no code of {options.code} channels is left for token {token} of {options.public}")
    return codes


def embedding(key: str, options: Options, words: Vocabulary) -> Array:
    """[vocabulary, hidden] float64: code, constant, flag, and keyed values in the other channels.

    The flag stands on the token whose code the draft copies: the mispredicted one itself if the head is tied,
    else the one before it.
    """
    rows = inputs.normal_like(f"{key}/rows", (options.vocabulary, options.hidden), OTHER, "F32")
    spoken = np.flatnonzero(words.codes[:, 0])
    rows[spoken, : options.code] = words.codes[spoken]
    rows[options.public :, : options.code] *= FAINT / OTHER
    rows[:, options.constant] = CONSTANT
    rows[:, options.flag] = 0.0
    for cycle in words.cycles:
        for token in cycle:
            told = token if options.tied else words.successor[token]
            rows[token, options.flag] = FLAG * (told in words.mispredicted)
    for token, other in words.twin.items():
        rows[other, options.flag] = rows[token, options.flag]
    return rows
