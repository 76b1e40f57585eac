"""A small right engine in NumPy, whose parts the controls replace by wrong ones.

It verifies many rounds at once, with uniforms that are given or with its own, so that a wrong part is wrong in both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_spec.errors import UnsupportedError
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
DRAFT, ACCEPT, LAST = 0, 100, 200
"""Purposes of the engine's own uniforms; a slot counts on from its purpose."""


class Engine:
    """Answers the ops whose law can be judged. `ops` are those that it declares."""

    def __init__(self, profile: str, ops: tuple[str, ...]) -> None:
        self._profile, self._ops = load_profile(profile), ops

    def describe(self) -> dict[str, Any]:
        name = type(self).__name__
        return {"name": name, "version": "", "profile": self._profile.name, "ops": [*self._ops], "note": "control"}

    def run(self, op: str, inputs: dict[str, Array]) -> dict[str, Any]:
        """The outputs of an op by name. Raises UnsupportedError for one that it does not declare."""
        if op not in self._ops:
            raise UnsupportedError(f"op {op}: not declared")
        answer: dict[str, Any] = getattr(self, op.replace(".", "_"))(**inputs)
        return answer

    # -- the parts

    def accepts(self, p: Array, q: Array, u: Array) -> Array:
        """Whether proposals of probability q [N] pass, where the target's is p [N] and their coins are u [N]."""
        passed = u.astype(np.float32) * q < p
        return np.asarray(passed | (p >= q) if self._profile.axes["accept_test"] == "covered_or_strict" else passed)

    def rest(self, ids: Array, p: Array, law: dict[int, float], rejected: int) -> Array:
        """The weights [S] that a correction is drawn with, after a proposal that was drawn from `law`."""
        del rejected
        q = np.array([law.get(int(id_), 0.0) for id_ in ids])
        left = np.maximum(p.astype(np.float64) - q, 0.0)
        if left.any():
            return np.asarray(left)
        top = self._profile.axes["zero_residual"] == "top_token"
        return np.asarray(np.eye(len(p))[0] if top else p, np.float64)

    def bonus(self, ids: Array, p: Array, last: int) -> Array:
        """The weights [S] that a bonus is drawn with after the proposal `last`."""
        del ids, last
        return np.asarray(p, np.float64)

    def draw(self, ids: Array, weights: Array, u: Array) -> Array:
        """One id for each of u [N]."""
        sums = np.cumsum(weights)
        ranks = np.searchsorted(sums, u * sums[-1], side="right")
        return np.asarray(ids[np.minimum(ranks, np.flatnonzero(weights > 0)[-1])])

    def mass(self, ranked: Array, left: Array) -> float:
        """What top-p takes its share of: ranked weights [V], of which top-k left [S]."""
        del ranked
        return float(left.sum())

    def coin(self, coins: Array, slot: int) -> Array:
        """The uniforms [N] of a slot's test, of coins [N, P]."""
        return np.asarray(coins[:, slot])

    def last_coin(self, coins: Array, last: Array, slot: int) -> Array:
        """The uniforms [N] of the draw that ends rounds in `slot`."""
        del coins, slot
        return last

    def uniform(self, seeds: Array, purpose: int) -> Array:
        """Uniforms of its own, multiples of 2^-24, one for each seed."""
        with np.errstate(over="ignore"):
            state = seeds.astype(np.uint64) + GOLDEN * np.uint64(purpose + 1)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray((state ^ (state >> np.uint64(31))) >> np.uint64(40)).astype(np.float64) * 2.0**-24

    def last_uniform(self, seeds: Array) -> Array:
        return self.uniform(seeds, LAST)

    # -- the ops

    def verify(
        self, drawn: Array, candidates: Array, q: Array, support: Array, p: Array, coins: Array, last: Array
    ) -> tuple[Array, Array]:
        """(accepted [N], licensed [N, P + 1]) of proposals drawn [N, P]; the laws are those of the ops."""
        count, slots = drawn.shape
        going, accepted = np.ones(count, bool), np.zeros(count, np.int64)
        licensed = np.zeros((count, slots + 1), np.int64)
        for slot in range(slots):
            ids = drawn[:, slot]
            wanted, offered = _weights(ids, support[slot], p[slot]), _weights(ids, candidates[slot], q[slot])
            going = going & self.accepts(wanted, offered, self.coin(coins, slot))
            accepted += going
            licensed[going, slot] = ids[going]
        for slot in range(slots + 1):
            here = np.flatnonzero(accepted == slot)
            us, ids = self.last_coin(coins, last, slot), drawn[:, min(slot, slots - 1)]
            for token in np.unique(ids[here]).tolist():
                own = here[ids[here] == token]
                if slot < slots:
                    law = dict(zip(candidates[slot].tolist(), q[slot].tolist(), strict=True))
                    weights = self.rest(support[slot], p[slot], law, token)
                else:
                    weights = self.bonus(support[slot], p[slot], token)
                licensed[own, slot] = self.draw(support[slot], weights, us[own])
        return accepted, licensed

    def law_sparse(
        self,
        proposals: Array,
        candidates: Array,
        q: Array,
        support: Array,
        p: Array,
        u_accept: Array,
        u_terminal: Array,
    ) -> dict[str, Any]:
        accepted, licensed = self.verify(
            proposals[None], candidates, q, support, p, u_accept[None].astype(np.float64),
            np.array([float(u_terminal)]),
        )  # fmt: skip
        return {"accepted": accepted[0], "licensed": licensed[0]}

    def law_one_hot(
        self, proposals: Array, support: Array, p: Array, u_accept: Array, u_terminal: Array
    ) -> dict[str, Any]:
        certain = np.ones((len(proposals), 1), np.float32)
        return self.law_sparse(proposals, proposals[:, None], certain, support, p, u_accept, u_terminal)

    def law_match(self, proposals: Array, support: Array, p: Array, u: Array) -> dict[str, Any]:
        drawn = self.proc_draw(support, p, u)["tokens"]
        same = np.cumprod(drawn[:-1] == proposals)
        accepted = int(same.sum())
        return {"accepted": accepted, "licensed": np.where(np.arange(len(u)) <= accepted, drawn, 0)}

    def proc_draw(self, support: Array, p: Array, u: Array) -> dict[str, Any]:
        rows = zip(support, p, u, strict=True)
        return {"tokens": np.array([self.draw(ids, row, np.array([float(goal)]))[0] for ids, row, goal in rows])}

    def proc_filter(
        self, adjusted: Array, temperature: Array, top_k: Array, min_p: Array, top_p: Array
    ) -> dict[str, Any]:
        cap, columns = int(self._profile.axes["sampling_cap"]), adjusted.shape[1]
        size = min(int(top_k) if 1 <= top_k < (cap or columns) else cap or columns, columns)
        ids, shares = np.argsort(-adjusted, axis=1, kind="stable")[:, :size], np.zeros((len(adjusted), size))
        for row, logits in enumerate(adjusted.astype(np.float64)):
            ranked = np.sort(np.exp((logits - logits.max()) / float(temperature)))[::-1]
            left = ranked[:size]
            kept = left >= float(min_p) * left[0]
            if top_p < 1:
                kept &= np.cumsum(left) - left < float(top_p) * self.mass(ranked, left)
            shares[row] = np.where(kept, left, 0.0) / left[kept].sum()
        if cap:
            return {"support": np.where(shares > 0, ids, -1), "p": shares.astype(np.float32)}
        spread = np.zeros(adjusted.shape, np.float32)
        np.put_along_axis(spread, ids, shares.astype(np.float32), axis=1)
        return {"support": np.tile(np.arange(columns), (len(adjusted), 1)), "p": spread}

    def proc_sample_tokens(self, support: Array, p: Array, seeds: Array) -> dict[str, Any]:
        return {"tokens": self.draw(support, p, self.last_uniform(seeds))}

    def law_sample_rounds(
        self, own_law: Array, proposals: Array, candidates: Array, q: Array, support: Array, p: Array, seeds: Array
    ) -> dict[str, Any]:
        slots = range(len(proposals))
        drawn = np.tile(proposals, (len(seeds), 1))
        if own_law:
            drawn = np.stack(
                [self.draw(candidates[s], q[s], self.uniform(seeds, DRAFT + s)) for s in slots], axis=1
            )  # fmt: skip
        coins = np.stack([self.uniform(seeds, ACCEPT + s) for s in slots], axis=1)
        accepted, licensed = self.verify(drawn, candidates, q, support, p, coins, self.last_uniform(seeds))
        return {"proposals_drawn": drawn, "accepted": accepted, "licensed": licensed}


def _weights(ids: Array, row: Array, weights: Array) -> Array:
    """The weight [N] of each of ids [N] in a row; 0 where it is not in it."""
    same = ids[:, None] == row[None]
    return np.asarray(np.where(same, weights[None], np.float32(0)).sum(axis=1))
