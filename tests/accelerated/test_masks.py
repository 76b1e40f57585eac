"""What a request may say: masks, grammars and penalties, inside a block as in plain decoding; and what stops it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from dflash_accelerated import Engine, Generation, Request, Round
from dflash_accelerated.counts import TokenCounts
from dflash_accelerated.protocols import LendingVocabulary, Segment, TargetStep
from dflash_accelerated.rounds import counted
from dflash_spec.errors import RequestError, TensorError
from dflash_spec.tensors import Array
from dflash_vectors.planted import Planted

Load = Callable[..., Engine]
Pairs = Callable[..., tuple[Path, Planted]]

PROMPT = [9, 31, 2, 50, 50, 7]
WORDS = 67
PROFILES: dict[str, dict[str, Any]] = {"zlab": {}, "ninfer": {"profile": "ninfer", "dtype": torch.bfloat16}}


def varied(said: Sequence[int]) -> Array:
    """Of four tokens in a row no two are equal."""
    return np.isin(np.arange(WORDS), list(said[-3:]), invert=True)


def obeys(tokens: Sequence[int]) -> bool:
    return all(varied(tokens[:at])[token] for at, token in enumerate(tokens))


@pytest.fixture(params=["zlab", "ninfer"])
def engine(request: pytest.FixtureRequest, random_pair: Path, load: Load) -> Engine:
    """A pair whose draft is almost never right, in each profile."""
    return load(random_pair, draft_tokens=4, **PROFILES[request.param])


@pytest.fixture
def ninfer(random_pair: Path, load: Load) -> Engine:
    return load(random_pair, draft_tokens=4, **PROFILES["ninfer"])


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_only_allowed_tokens_are_emitted_though_others_are_proposed(engine: Engine, temperature: float) -> None:
    allowed = {3, 8, 21, 34, 55}
    own: dict[str, Any] = {"temperature": temperature, "seed": 4, "stop_ids": ()}
    free = engine.generate(PROMPT, 40, **own)
    made = engine.generate(PROMPT, 40, allowed_tokens=sorted(allowed), **own)
    assert set(made.tokens) <= allowed
    assert not set(free.tokens) <= allowed
    assert {token for tokens in made.proposals for token in tokens} - allowed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_is_obeyed_and_never_asked_about_a_text_that_it_forbids(engine: Engine, temperature: float) -> None:
    asked: list[tuple[int, ...]] = []

    def grammar(said: tuple[int, ...]) -> Array:
        asked.append(said)
        return varied(said)

    own: dict[str, Any] = {"temperature": temperature, "seed": 9, "stop_ids": ()}
    made = engine.generate(PROMPT, 40, grammar=grammar, **own)
    assert obeys(made.tokens)
    assert not obeys(engine.generate(PROMPT, 40, **own).tokens)
    assert all(obeys(said) for said in asked)
    assert {made.tokens[:length] for length in range(len(made.tokens))} <= set(asked)
    assert any(said != made.tokens[: len(said)] for said in asked), "no proposal was asked about and then rejected"


def test_a_grammar_and_allowed_tokens_hold_together(engine: Engine) -> None:
    even = range(0, WORDS, 2)
    made = engine.generate(PROMPT, 30, grammar=varied, allowed_tokens=even, stop_ids=[])
    assert obeys(made.tokens)
    assert {token % 2 for token in made.tokens} == {0}
    as_tensors = engine.generate(
        PROMPT, 30, grammar=lambda said: torch.from_numpy(varied(said)), allowed_tokens=torch.tensor(even), stop_ids=[]
    )
    assert as_tensors == made


CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a grammar": {"grammar": varied},
    "presence": {"presence_penalty": 1.75},
    "frequency": {"frequency_penalty": 0.4375},
    "a reward": {"presence_penalty": -1.5, "frequency_penalty": 0.3125},
    "all": {"presence_penalty": 0.5, "frequency_penalty": 0.75, "grammar": varied, "allowed_tokens": range(40)},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
def test_greedy_tokens_are_plain_decodings_whatever_is_masked_or_penalised(
    random_pair: Path, random_pair2: Path, load: Load, second: bool, change: str
) -> None:
    engine = load(random_pair2 if second else random_pair, draft_tokens=4, **PROFILES["ninfer"])
    own: dict[str, Any] = {**CHANGES[change], "stop_ids": ()}
    made = engine.generate(PROMPT, 40, **own)
    assert made.tokens == engine.decode_plain(PROMPT, 40, **own).tokens
    assert change == "nothing" or made.tokens != engine.generate(PROMPT, 40, stop_ids=[]).tokens


@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
def test_a_proposal_that_repeats_one_of_its_own_block_is_penalised_for_it(
    planted_pair: Pairs, load: Load, backend: str
) -> None:
    """A cycle of tokens that the draft knows, until penalties drive the target out of it, also inside blocks."""
    folder, plan = planted_pair("small", backend)
    engine = load(folder, draft_tokens=4, public_tokens=plan.public, **PROFILES["ninfer"])
    own: dict[str, Any] = {"presence_penalty": 0.25, "frequency_penalty": 3.0, "stop_ids": ()}
    made = engine.generate(plan.prompts[0], 50, **own)
    assert made.tokens == engine.decode_plain(plan.prompts[0], 50, **own).tokens
    assert list(made.tokens) != plan.continuation(plan.prompts[0], 50)
    assert max(made.accepted) == 4


def test_prompts_are_not_penalised_and_the_first_token_is(ninfer: Engine) -> None:
    (first,) = ninfer.generate(PROMPT, 1, stop_ids=[]).tokens
    same = ninfer.generate([*PROMPT, first], 1, presence_penalty=1e30, stop_ids=[])
    assert same.tokens == ninfer.generate([*PROMPT, first], 1, stop_ids=[]).tokens
    made = ninfer.generate(PROMPT, 60, presence_penalty=1e30, stop_ids=[])
    assert made.tokens[0] == first
    assert len(set(made.tokens)) == 60, "a token was said twice, though 67 are there"


def test_a_lane_starts_at_nothing_and_counts_every_occurrence() -> None:
    counts = TokenCounts(9, torch.device("cpu"))
    one, two = counts.take(), counts.take([3, 3])
    counts.add([one, two, two, one, two], [4, 3, 8, 4, 8])
    assert counts.rows([one, two, one]).tolist() == [
        [0, 0, 0, 0, 2, 0, 0, 0, 0], [0, 0, 0, 3, 0, 0, 0, 0, 2], [0, 0, 0, 0, 2, 0, 0, 0, 0]
    ]  # fmt: skip
    counts.give(two)
    three = counts.take([5])
    assert counts.rows([three]).tolist() == [[0, 0, 0, 0, 0, 1, 0, 0, 0]]
    assert three == two
    assert counts.rows([one]).tolist() == [[0, 0, 0, 0, 2, 0, 0, 0, 0]]


def test_a_lane_of_counts_comes_back_however_its_request_ends(ninfer: Engine) -> None:
    """At its end, cancelled while it runs, forked, or as a stream that nobody reads to its end."""
    counted = [cast(Any, each)._decider._counts for each in (ninfer._speculative, ninfer._plain)]
    planned = [each.held for each in counted]
    own: dict[str, Any] = {"presence_penalty": 0.5, "stop_ids": ()}
    for _ in range(ninfer.max_batch + 1):
        ninfer.generate(PROMPT, 3, **own)
        ninfer.decode_plain(PROMPT, 3, **own)
        next(stream := ninfer.stream(PROMPT, 9, **own))
        stream.close()
        ticket = ninfer.submit(ninfer.request(PROMPT, 9, **own))
        ninfer.step()
        ninfer.cancel(ninfer.fork(ticket))
        ninfer.cancel(ticket)
    assert all(each.held is before for each, before in zip(counted, planned, strict=True))


def test_certain_rounds_count_what_they_license_and_others_what_they_keep() -> None:
    assert list(counted([5, 6, 7], 2, own_law=False)) == [5, 6, 7]
    assert list(counted([5, 6, 7], 2, own_law=True)) == [5, 6]


class Broken(Exception):
    """What a grammar of somebody else's raises."""


def breaking(said: tuple[int, ...]) -> Array:
    if len(said) >= 6:
        raise Broken("no rule")
    return varied(said)


GRAMMARS: dict[str, tuple[Any, str]] = {
    "a list": (lambda said: [True] * WORDS, f"grammar gave list, expected an array or tensor of bool [{WORDS}]"),
    "integers": (
        lambda said: np.ones(WORDS, int),
        f"grammar gave int64, expected an array or tensor of bool [{WORDS}]",
    ),
    "short": (lambda said: np.ones(5, bool), "grammar gave a mask of shape [5], expected [67]"),
    "nothing": (
        lambda said: np.zeros(WORDS, bool),
        "no allowed id is possible at position 5, expected",
    ),
}


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("call", ["generate", "decode_plain"])
def test_an_answer_of_a_grammar_that_is_no_mask_is_named(ninfer: Engine, kind: str, call: str) -> None:
    grammar, message = GRAMMARS[kind]
    with pytest.raises(RequestError) as error:
        getattr(ninfer, call)(PROMPT, 5, grammar=grammar)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_grammar_that_ends_in_nothing_matters_only_where_it_is_read(ninfer: Engine, temperature: float) -> None:
    """After one word nothing may follow. Proposed, but not said, it stops nobody; said, it does."""
    own: dict[str, Any] = {"temperature": temperature, "seed": 2, "stop_ids": ()}
    made = ninfer.generate(PROMPT, 20, **own)
    word = next(token for tokens in made.proposals for token in tokens if token not in made.tokens)

    def grammar(said: tuple[int, ...]) -> Array:
        return np.full(WORDS, word not in said)

    assert ninfer.generate(PROMPT, 20, grammar=grammar, **own) == made
    with pytest.raises(RequestError, match="no allowed id is possible at position 6"):
        ninfer.generate(PROMPT, 20, grammar=grammar, allowed_tokens=[word], **own)


def served(engine: Engine, requests: Sequence[Request]) -> list[list[Round]]:
    tickets = [engine.submit(each) for each in requests]
    rounds: dict[int, list[Round]] = {ticket: [] for ticket in tickets}
    while made := engine.step():
        for ticket, latest in made.items():
            rounds[ticket].append(latest)
    return [rounds[ticket] for ticket in tickets]


@pytest.mark.parametrize("place", range(3))
def test_a_request_whose_grammar_raises_ends_alone(engine: Engine, place: int) -> None:
    requests = [engine.request([*PROMPT, at], 14, temperature=0.4 * at, stop_ids=[]) for at in range(3)]
    alone = [Generation.of(*served(engine, [each])) for each in requests]
    failing = engine.request([*PROMPT, place], 14, temperature=0.4 * place, grammar=breaking, stop_ids=[])
    rounds = served(engine, [failing if at == place else each for at, each in enumerate(requests)])
    for at in range(3):
        if at != place:
            assert Generation.of(rounds[at]) == alone[at]
    last = rounds[place][-1]
    assert (last.finish_reason, last.tokens, type(last.error)) == ("error", (), Broken)
    with pytest.raises(Broken, match="no rule"):
        engine.generate(PROMPT, 14, grammar=breaking, stop_ids=[])
    stream = engine.stream(PROMPT, 14, grammar=breaking, stop_ids=[])
    with pytest.raises(Broken):
        list(stream)
    assert Generation.of(*served(engine, [requests[place]])) == alone[place]


def poisoned(engine: Engine, monkeypatch: pytest.MonkeyPatch, value: float, frontier: int, column: int) -> None:
    """Let the target say `value` for id 5, in that column of the pass that starts at `frontier`, for any request."""
    forward = engine.target.forward

    def bad(segments: Sequence[Segment], *rest: Any) -> Sequence[TargetStep]:
        starts = [segment.state.length for segment in segments]
        steps = forward(segments, *rest)
        for start, step in zip(starts, steps, strict=True):
            if start == frontier and step.logits is not None and column < len(step.logits):
                step.logits[column, 5] = value
        return list(steps)  # without the ids that were best before

    monkeypatch.setattr(engine.target, "forward", bad)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_no_numbers_ends_its_own_request(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, value: float, temperature: float
) -> None:
    own: dict[str, Any] = {"temperature": temperature, "seed": 3, "stop_ids": ()}
    other = engine.request(PROMPT * 2, 20, **own)
    expected = Generation.of(*served(engine, [other]))
    poisoned(engine, monkeypatch, value, len(PROMPT), 0)
    message = f"target logits at position {len(PROMPT)}: {value} at id 5, expected finite numbers"
    with pytest.raises(TensorError, match=message):
        engine.generate(PROMPT, 20, **own)
    failed, kept = served(engine, [engine.request(PROMPT, 20, **own), other])
    assert [each.finish_reason for each in failed] == [None, "error"]
    assert str(failed[-1].error) == message
    assert (failed[-1].tokens, failed[-1].accepted) == ((), 0)
    assert Generation.of(kept) == expected


def test_a_row_that_is_no_numbers_is_refused_also_where_a_mask_hides_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(engine, monkeypatch, math.nan, len(PROMPT), 0)
    with pytest.raises(TensorError, match="target logits at position 6: nan at id 5"):
        engine.generate(PROMPT, 20, allowed_tokens=[4, 6, 8], stop_ids=[])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_nobody_reads_may_hold_anything(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    own: dict[str, Any] = {"temperature": temperature, "seed": 3, "stop_ids": ()}
    expected = engine.generate(PROMPT, 20, **own)
    assert expected.accepted[0] < 3
    poisoned(engine, monkeypatch, math.nan, len(PROMPT), 4)
    assert engine.generate(PROMPT, 20, **own) == expected


def test_a_draft_of_no_numbers_is_rejected_and_a_correction_by_it_refused(
    random_pair: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(random_pair, draft_tokens=4)
    lent = cast(LendingVocabulary, engine.target.vocabulary)
    logits = lent.logits
    monkeypatch.setattr(lent, "logits", lambda hidden: logits(hidden) * math.nan)
    with pytest.raises(TensorError, match=r"the draft's law at position 6: NaN, expected probabilities"):
        engine.generate(PROMPT, 20, temperature=1.0, stop_ids=[])
    assert engine.generate(PROMPT, 20, stop_ids=[]).tokens == engine.decode_plain(PROMPT, 20, stop_ids=[]).tokens
