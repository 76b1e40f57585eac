"""Sampling by the authors' package: its filters, its sampled proposals, its accept test and its residual.

Where an op gives uniforms, they take the place of what the package would draw: its coins are those given, and for
`torch.multinomial`, which is not the package's, stands an inverse CDF over the very weights that the package hands to
it. Which weights these are, and how many proposals were accepted, is the package's own doing. The two ops that draw
with randomness of their own run with nothing replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import dflash.model as package
import numpy as np
import torch
from dflash_spec.errors import RequestError
from dflash_spec.tensors import Array
from torch import Tensor

from dflash_vectors.peers import scripted
from dflash_vectors.peers.modules import integer, tensor
from dflash_vectors.peers.scripted import Reply, ScriptedDraft, ScriptedTarget

Answer = dict[str, Any]
LONG = 1 << 16
"""A budget that no scripted run reaches."""
MULTINOMIAL = torch.multinomial


@contextmanager
def refusing() -> Iterator[None]:
    """What the package, or torch on its behalf, raises on settings and weights is a refusal."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError) as error:
        raise RequestError(f"the package refuses: {error}") from error


def drawn(weights: Array, ids: Sequence[int] | Array, uniform: float) -> int:
    """The first of `ids` whose inclusive cumulative weight is above `uniform` times all, else the last with a weight.

    `weights` are by id. Only relative ones count, as for `torch.multinomial`.
    """
    held = np.array([weights[id_] for id_ in ids], dtype=np.float64)
    sums = np.cumsum(held)
    above = np.flatnonzero(sums > uniform * sums[-1])
    return int(ids[above[0]] if len(above) else ids[np.flatnonzero(held > 0)[-1]])


@contextmanager
def handed() -> Iterator[list[Array]]:
    """The weights [rows, V] of every draw that the package asks for; torch's own checks of them stay in force."""
    seen: list[Array] = []

    def multinomial(weights: Tensor, count: int) -> Tensor:
        ids = MULTINOMIAL(weights, count)
        seen.append(weights.numpy().copy())
        return torch.zeros_like(ids)

    with mock.patch.object(torch, "multinomial", multinomial):
        yield seen


@contextmanager
def coins(given: Array) -> Iterator[None]:
    """The package's accept coins are those given [P]."""
    with mock.patch.object(torch, "rand_like", lambda like: tensor(given).reshape(like.shape)):
        yield


def _settings(temperature: Array, top_k: Array, top_p: Array, min_p: Array | float = 0.0) -> dict[str, Any]:
    """Settings as arguments. The package has no min-p, and says so of any but 0 by not taking the argument."""
    more = {"min_p": float(min_p)} if float(min_p) else {}
    return {"temperature": float(temperature), "top_p": float(top_p), "top_k": integer(top_k), **more}


def proc_filter(adjusted: Array, temperature: Array, top_k: Array, min_p: Array, top_p: Array) -> Answer:
    """The probabilities of every id in ascending order. Its `sample` checks the settings, and its draw the rows."""
    settings = _settings(temperature, top_k, top_p, min_p)
    with refusing():
        package.sample(tensor(adjusted), **settings)
    rows, vocabulary = adjusted.shape
    p = package._sampling_probs(tensor(adjusted), **settings).numpy()
    return {"support": np.tile(np.arange(vocabulary), (rows, 1)), "p": p}


def proc_choose(adjusted: Array, temperature: Array) -> Answer:
    """What `sample` does with a row: a request is sampled if it asks for a draw."""
    with handed() as seen, refusing():
        tokens = package.sample(tensor(adjusted), float(temperature))
    return {"greedy": int(not seen), "tokens": np.full(len(adjusted), -1) if seen else tokens.numpy()}


class _Proposed(Exception):
    """The loop has drawn its proposals."""


def proc_propose(logits: Array, temperature: Array, top_k: Array, top_p: Array, u: Array) -> Answer:
    """The first round of the loop, which draws its first token, and then its proposals from these logits."""
    slots, vocabulary = logits.shape
    laws: list[Array] = []

    def multinomial(weights: Tensor, count: int) -> Tensor:
        ids = MULTINOMIAL(weights, count)
        laws.append(weights.numpy().copy())
        if len(laws) > 1:
            raise _Proposed
        return torch.zeros_like(ids)

    draft = ScriptedDraft(0, slots + 1, lambda _: tensor(logits))
    target = ScriptedTarget(vocabulary, [Reply([0])])
    with mock.patch.object(torch, "multinomial", multinomial), refusing(), suppress(_Proposed):
        scripted.generate(draft, target, [0], LONG, sampling=_settings(temperature, top_k, top_p))
    q, every = laws[1], np.arange(vocabulary)
    return {"proposals": [drawn(row, every, float(goal)) for row, goal in zip(q, u, strict=True)], "q": q}


def _dense(ids: Array, weights: Array, vocabulary: int) -> Tensor:
    """Weights [rows, V] by id, of ids and weights [rows, S]; what has the id -1 is not there."""
    made = np.zeros((len(ids), vocabulary), dtype=np.float32)
    for row, row_ids, row_weights in zip(made, ids, weights, strict=True):
        row[row_ids[row_ids >= 0]] = row_weights[row_ids >= 0]
    return tensor(made)


def _verdict(
    proposals: Array, support: Array, p: Array, u_accept: Array, u_terminal: Array,
    q: Tensor, indices: Tensor | None, vocabulary: int,
) -> Answer:  # fmt: skip
    """`_rejection_sample` on coins that are given; the draw from the weights that it ends with follows the support."""
    target = _dense(support, p, vocabulary)[None]
    with coins(u_accept), handed() as seen, refusing():
        accepted, _ = package._rejection_sample(tensor(proposals)[None], target, q, indices)
    row = support[accepted]
    licensed = np.zeros(len(support), dtype=np.int64)
    licensed[:accepted] = proposals[:accepted]
    licensed[accepted] = drawn(seen[0][0], row[row >= 0], float(u_terminal))
    return {"accepted": accepted, "licensed": licensed}


def law_one_hot(proposals: Array, support: Array, p: Array, u_accept: Array, u_terminal: Array) -> Answer:
    """Certain proposals, as a law of the whole vocabulary."""
    vocabulary = int(max(support.max(), proposals.max(initial=0))) + 1
    q = torch.nn.functional.one_hot(tensor(proposals)[None], vocabulary).float()
    return _verdict(proposals, support, p, u_accept, u_terminal, q, None, vocabulary)


def law_sparse(
    proposals: Array, candidates: Array, q: Array, support: Array, p: Array, u_accept: Array, u_terminal: Array
) -> Answer:
    """Proposals over candidates, as DFlash2's; over every id in ascending order, as DFlash's.

    The package's candidates are all ids, so one that is none stands for an id that no row holds.
    """
    vocabulary = int(max(support.max(), candidates.max(initial=0), proposals.max(initial=0))) + 1
    whole = candidates.shape[1] == vocabulary and (candidates == np.arange(vocabulary)).all()
    indices = None if whole else tensor(np.where(candidates < 0, vocabulary, candidates))[None]
    vocabulary += int((candidates < 0).any())
    return _verdict(proposals, support, p, u_accept, u_terminal, tensor(q)[None], indices, vocabulary)


def proc_sample_tokens(support: Array, p: Array, seeds: Array) -> Answer:
    """The package's draw, one at a time, with torch's generator at each seed."""
    weights, drew = tensor(p)[None], []
    for seed in seeds.tolist():
        torch.default_generator.manual_seed(seed)
        drew.append(int(package._sample_probs(weights)))
    return {"tokens": support[drew]}


def law_sample_rounds(
    own_law: Array, proposals: Array, candidates: Array, q: Array, support: Array, p: Array, seeds: Array
) -> Answer:
    """The package's draws of the proposals, its verdict and its last draw, with torch's generator at each seed."""
    vocabulary = int(max(support.max(), candidates.max(), proposals.max())) + 1
    target, ids, laws = _dense(support, p, vocabulary)[None], tensor(candidates)[None], tensor(q)[None]
    certain = torch.nn.functional.one_hot(tensor(proposals)[None], vocabulary).float()
    drew, counts = np.tile(proposals, (len(seeds), 1)), np.zeros(len(seeds), dtype=np.int64)
    licensed = np.zeros((len(seeds), len(support)), dtype=np.int64)
    for place, seed in enumerate(seeds.tolist()):
        torch.default_generator.manual_seed(seed)
        if integer(own_law):
            chosen = ids.gather(-1, package._sample_probs(laws)[..., None])[..., 0]
            drew[place] = chosen[0].numpy()
            accepted, last = package._rejection_sample(chosen, target, laws, ids)
        else:
            accepted, last = package._rejection_sample(tensor(proposals)[None], target, certain)
        counts[place] = accepted
        licensed[place, :accepted] = drew[place, :accepted]
        licensed[place, accepted] = int(last)
    return {"proposals_drawn": drew, "accepted": counts, "licensed": licensed}


OPS: dict[str, Callable[..., Answer]] = {
    "proc.filter": proc_filter,
    "proc.choose": proc_choose,
    "proc.propose": proc_propose,
    "law.one_hot": law_one_hot,
    "law.sparse": law_sparse,
    "proc.sample_tokens": proc_sample_tokens,
    "law.sample_rounds": law_sample_rounds,
}
