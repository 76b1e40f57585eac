"""A thousand requests of mixed settings: the engine, in batches of any size, says what the reference says alone.

Both draw the same keyed uniforms, so tokens, proposals and accepted counts must be equal, and not only their law. Only
a near tie can part them: logits that add up in another order may lie on the other side of a coin. A request that parts
is therefore served once more by the reference, which is shown the engine's logits: these may be no further from its own
than rounding can move them, and by them it must say, word for word, what the engine said.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from dflash_accelerated import Engine, Generation, RoundTrace
from dflash_accelerated.protocols import Segment
from dflash_reference import draft, draft2, selector
from dflash_reference import engine as reference
from dflash_reference.models import Draft, Target, draft_of
from dflash_reference.request import Settings
from dflash_spec.config import read_draft_config, read_target_config
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from dflash_vectors import perturb, planted

REQUESTS = 250
"""Of each profile and version."""
PLAIN = 25
"""Of each profile, without a draft."""
SHOWN = 6
"""How many requests of each are shown to the reference in any case, so that this is known to work."""
LEAST = 3
"""How often each accepted count, 0 to K, must occur among them."""
PARTED = {"zlab": 0.01, "ninfer": 0.04}
"""The largest share that may part at near ties. BF16 rounds at every stage, so that most of its logits are a rounding
away from the reference's; of FP32's, none is by more than some 1e-5."""
DRAFTS = 5
SIZES: dict[str, Any] = {
    "gaps": ((1, 6, 2, 3), (4, 2, 5, 1)), "drafts": DRAFTS, "target_windows": (0, 0), "draft_windows": (14,),
    "taps": (0,), "hidden": 32, "code": 24, "heads": 2, "kv_heads": 2, "head_dim": 16, "intermediate": 20, "idle": 15,
    "padding": 4, "rank": 6, "candidates": 8,
}  # fmt: skip
"""As few layers and channels as let a draft follow: the reference takes nearly all of the time."""
SOFT = 0.5
"""The scale of the target's head, so that several tokens have a chance."""


@dataclass(frozen=True)
class Pair:
    """A planted pair as both load it."""

    plan: planted.Planted
    folder: Path
    profile: str

    @cached_property
    def models(self) -> tuple[Target, Draft]:
        config = read_target_config(self.folder / "target")
        read = read_draft_config(self.folder / "draft", load_profile(self.profile), config, "published")
        return Target(config, self.plan.target), draft_of(read, self.plan.draft)

    @cached_property
    def engine(self) -> Engine:
        return Engine.from_pretrained(
            self.folder / "target", self.folder / "draft", profile=self.profile, draft_tokens=DRAFTS,
            public_tokens=self.plan.public,
        )  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """One request, in the words of neither. The trace fills while the engine serves it."""

    prompt: list[int]
    count: int
    drafts: int
    stops: tuple[int, ...]
    allowed: tuple[int, ...] | None
    grammar: Callable[[Sequence[int]], Array] | None
    numbers: dict[str, float]
    seed: int
    trace: list[RoundTrace] = field(default_factory=list)

    def to_engine(self) -> dict[str, Any]:
        penalties = {f"{name}_penalty": self.numbers.get(name, 0.0) for name in ("presence", "frequency")}
        filters = {name: value for name, value in self.numbers.items() if name not in ("presence", "frequency")}
        return {
            "prompt_ids": self.prompt, "max_new_tokens": self.count, "stop_ids": self.stops, "seed": self.seed,
            "allowed_tokens": self.allowed, "grammar": self.grammar, "observer": self.trace.append, **filters,
            **penalties,
        }  # fmt: skip

    def to_reference(self, public: int) -> Settings:
        allowed = None if self.allowed is None else np.isin(np.arange(public), self.allowed)
        own: dict[str, Any] = {**self.numbers, "allowed": allowed, "grammar": self.grammar}
        return Settings(self.drafts, self.count, self.stops, public, seed=self.seed, **own)


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    accepted: list[int]
    proposals: list[list[int]]

    @staticmethod
    def of(made: Generation | reference.Generation) -> Answer:
        proposals = [[int(token) for token in each] for each in made.proposals]
        return Answer([int(token) for token in made.tokens], [int(count) for count in made.accepted], proposals)


def never_twice(public: int) -> Callable[[Sequence[int]], Array]:
    """No token stands next to itself."""

    def mask(said: Sequence[int]) -> Array:
        return np.isin(np.arange(public), said[-1:], invert=True)

    return mask


def in_turns(public: int) -> Callable[[Sequence[int]], Array]:
    """Of three tokens the third is even, the first is no multiple of three."""

    def mask(said: Sequence[int]) -> Array:
        ids = np.arange(public)
        masks: list[Array] = [ids % 3 != 0, ids >= 0, ids % 2 == 0]
        return masks[len(said) % 3]

    return mask


def asked(pair: Pair, number: int) -> Asked:
    """Request `number` of a pair: prompts that the draft can follow and cut ones, and every setting at some value."""
    pick, plan = random.Random(f"{pair.profile}/{pair.plan.options.backend}/{number}"), pair.plan
    prompt = plan.prompts[pick.randrange(len(plan.prompts))]
    if pick.random() < 0.2:
        prompt = [pick.randrange(plan.public) if pick.random() < 0.3 else token for token in prompt]
    numbers: dict[str, float] = {
        "temperature": pick.choice([0.0, 0.0, 0.4, 0.7, 1.0, 1.0, 1.7]),
        "top_k": pick.choice([0, 0, 0, 1, 3, 7, 19, 25]),
        "top_p": pick.choice([1.0, 1.0, 0.95, 0.7, 0.2]),
    }
    if pair.profile == "ninfer":
        numbers["min_p"] = pick.choice([0.0, 0.0, 0.02, 0.3, 1.0])
        numbers["presence"] = pick.choice([0.0, 0.0, 0.0, -0.5, 0.6, 2.5])
        numbers["frequency"] = pick.choice([0.0, 0.0, 0.0, -0.3, 0.4, 1.6])
    public = range(plan.public)
    return Asked(
        prompt=prompt[pick.choice([0, 0, 3, 8, 15]) :],
        count=pick.randint(1, 11),
        drafts=pick.choice([1, 2, 3, 4, 5, 5]),
        stops=tuple(pick.sample(public, pick.choice([0, 0, 1, 3]))),
        allowed=tuple(pick.sample(public, pick.randint(2, plan.public - 1))) if pick.random() < 0.15 else None,
        grammar=pick.choice([never_twice, in_turns])(plan.public) if pick.random() < 0.15 else None,
        numbers=numbers,
        seed=pick.getrandbits(64),
    )


@pytest.fixture(scope="module")
def load_soft(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Pair]:
    def load(profile: str, backend: str) -> Pair:
        dtype = "BF16" if profile == "ninfer" else "F32"
        plan = planted.pair("small", backend=backend, dtype=dtype, **SIZES)
        plan = replace(plan, target={**plan.target, "lm_head.weight": plan.target["lm_head.weight"] * SOFT})
        folder = tmp_path_factory.mktemp(backend)
        planted.write(folder, plan, dtype)
        return Pair(plan, folder, profile)

    return load


def by_engine(pair: Pair, requests: Sequence[Asked]) -> list[Answer]:
    """In batches of 1 to 8, one after another, all by the same engine."""
    made, pick, start = list[Answer](), random.Random(len(requests)), 0
    while start < len(requests):
        batch = requests[start : start + pick.randint(1, 8)]
        own = [pair.engine.request(draft_tokens=each.drafts, **each.to_engine()) for each in batch]
        made += [Answer.of(each) for each in pair.engine.generate_batch(own)]
        start += len(batch)
    return made


def by_reference(pair: Pair, request: Asked) -> Answer:
    settings = request.to_reference(pair.plan.public)
    return Answer.of(reference.generate(*pair.models, request.prompt, settings, load_profile(pair.profile)))


def spread(pair: Pair) -> dict[str, float]:
    """How far rounding moves logits of the target, and what the draft's choice rests on: the bound of composites."""

    def rounds() -> list[reference.Round]:
        kept: list[reference.Round] = []
        settings = Settings(DRAFTS, 11, (), pair.plan.public)
        reference.generate(*pair.models, pair.plan.prompts[0], settings, load_profile(pair.profile), kept.append)
        return kept

    exact, furthest = rounds(), {"target": 0.0, "draft": 0.0}
    for repetition in range(perturb.REPETITIONS):
        with perturb.perturbed(f"{pair.profile}/{repetition}"):
            moved = rounds()
        for one, other in zip(moved, exact, strict=True):
            furthest["target"] = max(furthest["target"], distance(one.target_logits, other.target_logits))
            if one.proposal and other.proposal:
                furthest["draft"] = max(furthest["draft"], distance(resting_on(one), resting_on(other)))
    return {name: perturb.MULTIPLE * value for name, value in furthest.items()}


def resting_on(round_: reference.Round) -> Array:
    assert round_.proposal is not None
    own = round_.proposal.unary if isinstance(round_.proposal, draft2.Proposal) else round_.proposal.logits
    return np.sort(own, axis=1)


def distance(left: Array, right: Array) -> float:
    return float(np.abs(left - right).max())


@contextmanager
def shown(pair: Pair, request: Asked, bounds: dict[str, float]) -> Iterator[None]:
    """The reference sees the engine's logits, of a round and of the first token, in place of its own.

    Each must lie within the bound of what it would have seen itself.
    """
    state = pair.engine.target.open(len(request.prompt))
    (first,) = pair.engine.target.forward([Segment(state, torch.tensor(request.prompt))], (), "last")
    assert first.logits is not None
    rows = [first.logits, *(trace.stages["target.logits"] for trace in request.trace)]
    seen, places = iter(rows), [-1]
    own_logits, own_first, own_second = reference.logits_of, draft.propose, draft2.propose

    def logits_of(*args: Any) -> Array:
        places[0] += 1
        given = next(seen).float().numpy().astype(np.float64)
        assert distance(given, own_logits(*args)) <= bounds["target"]
        return given

    def stage(name: str) -> Array:
        return request.trace[places[0]].stages[name].float().numpy().astype(np.float64)

    def propose(*args: Any) -> draft.Proposal:
        done, logits, public = own_first(*args), stage("logits"), pair.plan.public
        assert distance(logits[:, :public], done.logits[:, :public]) <= bounds["draft"]
        return done._replace(logits=logits, proposals=logits[:, :public].argmax(axis=1))

    def propose_second(*args: Any) -> draft2.Proposal:
        temperature, u, profile = args[-3:]
        done, ids, unary = own_second(*args), stage("candidates").astype(np.int64), stage("unary")
        assert distance(unary, done.unary) <= bounds["draft"]
        scores, q = stage("scores"), stage("q")
        if temperature:
            np.testing.assert_allclose(q, [selector.softened(row, temperature) for row in scores], atol=2.0**-20)
            ranks = [selector.drawn(*step, profile) for step in zip(q, u, strict=False)]
        else:
            ranks = scores.argmax(axis=1).tolist()
        return done._replace(candidates=ids, unary=unary, scores=scores, q=q, proposals=ids[range(len(ids)), ranks])

    with (
        mock.patch.object(reference, "logits_of", logits_of), mock.patch.object(draft, "propose", propose),
        mock.patch.object(draft2, "propose", propose_second),
    ):  # fmt: skip
        yield


@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
def test_every_request_gets_the_references_tokens_proposals_and_counts(
    load_soft: Callable[[str, str], Pair], profile: str, backend: str
) -> None:
    pair = load_soft(profile, backend)
    requests = [asked(pair, number) for number in range(REQUESTS)]
    start = time.process_time()
    expected = [by_reference(pair, each) for each in requests]
    middle = time.process_time()
    made = by_engine(pair, requests)
    end = time.process_time()
    parted = [at for at in range(REQUESTS) if made[at] != expected[at]]
    bounds = spread(pair)
    for at in {*parted, *range(SHOWN)}:
        with shown(pair, requests[at], bounds):
            assert by_reference(pair, requests[at]) == made[at], f"request {at}: {requests[at]}"
    counts = Counter(count for each in expected for count in each.accepted)
    print(f"\n{profile}, {backend}: {REQUESTS} requests, {sum(len(each.tokens) for each in expected)} tokens; accepted "
          + ", ".join(f"{count}: {counts[count]}" for count in range(DRAFTS + 1))
          + f"; parted at near ties {len(parted)}, {len(parted) / REQUESTS:.1%}, bounds {bounds}"
          + f"; {middle - start:.1f} s by the reference, {end - middle:.1f} s by the engine")  # fmt: skip
    assert min(counts[count] for count in range(DRAFTS + 1)) >= LEAST
    assert len(parted) <= PARTED[profile] * REQUESTS


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
def test_plain_decoding_says_what_the_references_says(load_soft: Callable[[str, str], Pair], profile: str) -> None:
    pair, parted = load_soft(profile, "dflash"), 0
    for number in range(REQUESTS, REQUESTS + PLAIN):
        request = asked(pair, number)
        made = list(pair.engine.decode_plain(**request.to_engine()).tokens)
        if made != plain(pair, request):
            parted += 1
            with shown(pair, request, spread(pair)):
                assert made == plain(pair, request)
    print(f"\n{profile}: {PLAIN} requests without a draft, parted at near ties {parted}")
    assert parted <= PARTED[profile] * PLAIN


def plain(pair: Pair, request: Asked) -> list[int]:
    settings = request.to_reference(pair.plan.public)
    tokens = reference.decode_plain(pair.models[0], request.prompt, settings, load_profile(pair.profile))
    return [int(token) for token in tokens]
