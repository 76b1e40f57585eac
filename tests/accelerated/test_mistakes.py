"""Callers' own mistakes: what raises in a request ends it alone, and what is no ticket or checkpoint is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from dflash_accelerated import Engine, RoundTrace
from dflash_accelerated.memory import KvCache
from dflash_spec.errors import DFlashError, RequestError, StateError
from dflash_spec.tensors import Array

Load = Callable[..., Engine]


class Mistake(Exception):
    """What a caller's own function raises."""


def raising(*_: object) -> bytes:
    raise Mistake


class Later:
    """Pieces that raise once so many tokens were asked for."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, token: int) -> bytes:
        self.left -= 1
        return b"%d " % token if self.left >= 0 else raising()


def late(trace: RoundTrace) -> None:
    """An observer that raises in the second round."""
    if trace.index:
        raising()


FAILING: dict[str, Callable[[], tuple[dict[str, Any], type[Exception]]]] = {
    "observer": lambda: ({"observer": raising}, Mistake),
    "observer-later": lambda: ({"observer": late}, Mistake),
    "pieces": lambda: ({"pieces": raising}, Mistake),
    "pieces-later": lambda: ({"pieces": Later(3)}, Mistake),
    "pieces-between-scan-and-text": lambda: ({"pieces": Later(1)}, Mistake),
    "pieces-of-text": lambda: ({"pieces": str}, RequestError),
}


@pytest.mark.parametrize("kind", FAILING)
@pytest.mark.parametrize("place", range(3))
def test_a_request_whose_own_function_raises_ends_alone(random_engine: Engine, kind: str, place: int) -> None:
    change, kind_of_error = FAILING[kind]()
    others = [
        random_engine.request([8, 3, 50 + at], 9, temperature=1.7, seed=at, stop_ids=[], draft_tokens=2 + at)
        for at in range(2)
    ]
    alone = [random_engine.generate_batch([other])[0].tokens for other in others]
    requests = [*others]
    requests.insert(place, random_engine.request([4, 44], 9, stop_ids=[], **change))
    tickets = [random_engine.submit(request) for request in requests]
    bad = tickets.pop(place)
    said: dict[int, tuple[int, ...]] = dict.fromkeys((*tickets, bad), ())
    errors = []
    while made := random_engine.step():
        for ticket, latest in made.items():
            said[ticket] += latest.tokens
            errors += [(ticket, type(latest.error))] if latest.error else []
    assert errors == [(bad, kind_of_error)]
    assert [said[ticket] for ticket in tickets] == alone


@pytest.mark.parametrize("kind", FAILING)
def test_a_lone_call_raises_what_its_own_function_raised(random_engine: Engine, kind: str) -> None:
    change, kind_of_error = FAILING[kind]()
    with pytest.raises(kind_of_error):
        random_engine.generate([4, 44], 9, stop_ids=[], **change)
    assert len(random_engine.generate([4, 44], 9, stop_ids=[]).tokens) == 9


NO_TICKETS = (-1, 99, 1.0, "0", None, [0], True)


@pytest.mark.parametrize("order", ["0", None, 0])
def test_an_order_that_is_no_sequence_of_tickets_is_named(random_engine: Engine, order: Any) -> None:
    with pytest.raises(RequestError, match=f"tickets is {type(order).__name__}, expected a sequence of tickets"):
        random_engine.arrange(order)


@pytest.mark.parametrize("ticket", NO_TICKETS, ids=repr)
@pytest.mark.parametrize("call", ["cancel", "checkpoint", "fork", "arrange"])
def test_what_is_no_ticket_is_named(random_engine: Engine, ticket: Any, call: str) -> None:
    with pytest.raises(RequestError, match="ticket"):
        getattr(random_engine, call)([ticket] if call == "arrange" else ticket)


@pytest.mark.parametrize("found", [5, None, "checkpoint", (0, 0, ())], ids=repr)
def test_what_is_no_request_or_checkpoint_is_named(random_engine: Engine, found: Any) -> None:
    request = random_engine.request([4, 44], 3)
    calls: list[tuple[type[DFlashError], Callable[[], Any]]] = [
        (RequestError, lambda: random_engine.submit(found)),
        (RequestError, lambda: random_engine.generate_batch([request, found])),
        (StateError, lambda: random_engine.release(found)),
        (StateError, lambda: random_engine.replicate(found)),
    ]
    calls += [(StateError, lambda: random_engine.restore(found, request))] if found is not None else []
    for kind, call in calls:
        with pytest.raises(kind, match=f"is {type(found).__name__}, expected"):
            call()
    assert random_engine.step() == {}


def test_a_device_that_there_is_not_and_an_observer_that_is_none_are_named(random_pair: Path, load: Load) -> None:
    with pytest.raises(RequestError, match="device is 'abacus'"):
        load(random_pair, device="abacus")
    with pytest.raises(RequestError, match="device is 'mps'") as error:
        load(random_pair, device="mps")
    assert len(str(error.value)) < 250, "PyTorch lists every backend that it knows"
    with pytest.raises(RequestError, match="observer is int"):
        load(random_pair).request([4], 3, observer=5)  # type: ignore[arg-type]  # that is the point


def test_a_step_within_a_step_is_refused_and_the_others_go_on(random_pair: Path, load: Load) -> None:
    engine = load(random_pair, draft_tokens=4, max_batch=2)

    def grammar(said: Sequence[int]) -> Array:
        engine.step()
        return np.ones(67, bool)

    (alone,) = engine.generate_batch([engine.request([7, 8], 9, stop_ids=[])])
    bad, other = (
        engine.submit(engine.request([1, 2], 9, grammar=grammar)),
        engine.submit(engine.request([7, 8], 9, stop_ids=[])),
    )
    said: tuple[int, ...] = ()
    errors = []
    while made := engine.step():
        said += made[other].tokens if other in made else ()
        errors += [str(latest.error) for latest in made.values() if latest.error]
    assert errors == ["step in the midst of a step, expected one at a time: from one thread, and not from within"]
    assert said == alone.tokens
    with pytest.raises(RequestError, match=f"ticket {bad}"):
        engine.cancel(bad)


def test_a_request_that_is_cancelled_in_the_midst_of_a_step_is_dropped_after_it(random_pair: Path, load: Load) -> None:
    engine, tickets = load(random_pair, draft_tokens=4, max_batch=2), list[int]()

    def grammar(said: Sequence[int]) -> Array:
        if len(said) > 2:
            engine.cancel(tickets[0])
        return np.ones(67, bool)

    (alone,) = engine.generate_batch([engine.request([7, 8], 20, stop_ids=[])])
    tickets += [
        engine.submit(engine.request([1, 2], 20, stop_ids=[], grammar=grammar)),
        engine.submit(engine.request([7, 8], 20, stop_ids=[])),
    ]
    said: dict[int, tuple[int, ...]] = dict.fromkeys(tickets, ())
    while made := engine.step():
        for ticket, latest in made.items():
            said[ticket] += latest.tokens
    assert said[tickets[1]] == alone.tokens
    assert 0 < len(said[tickets[0]]) < 20
    with pytest.raises(RequestError, match=f"ticket {tickets[0]}"):
        engine.cancel(tickets[0])


def test_a_fork_of_what_is_held_is_held(random_pair: Path, load: Load) -> None:
    engine = load(random_pair, draft_tokens=4, max_batch=3)
    for hold in (False, True):
        ticket = engine.submit(engine.request([1, 2], 9, stop_ids=[]), hold=hold)
        engine.step()
        fork = engine.fork(ticket)
        while engine.step():
            pass
        for each in (ticket, fork):
            if hold:
                engine.cancel(each)
            else:
                with pytest.raises(RequestError, match=f"ticket {each}"):
                    engine.cancel(each)


def test_a_request_that_waits_for_a_held_place_is_told(random_pair: Path, load: Load) -> None:
    engine = load(random_pair, draft_tokens=4, max_batch=1)
    held = engine.submit(engine.request([1, 2], 1), hold=True)
    engine.step()
    late = engine.submit(engine.request([7], 1))
    assert (engine.step(), engine.waiting) == ({}, 1)
    engine.cancel(held)
    assert list(engine.step()) == [late]
    assert engine.waiting == 0


def test_a_request_of_another_engines_profile_is_held_against_this_ones(random_pair: Path, load: Load) -> None:
    engine, other = (
        load(random_pair, draft_tokens=4),
        load(random_pair, draft_tokens=4, profile="ninfer", dtype="bfloat16"),
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({"min_p": 0.5}, "profile zlab has no min_p"), ({"presence_penalty": 0.5}, "profile zlab has no penalties"),
    ]  # fmt: skip
    for change, message in cases:
        request = other.request([4, 44], 5, temperature=0.7, **change)
        for call in (engine.submit, lambda each: engine.generate_batch([each])):
            with pytest.raises(RequestError, match=message):
                call(request)
    assert engine.step() == {}


def test_an_engine_says_what_it_is(random_pair: Path, load: Load) -> None:
    found = repr(load(random_pair, draft_tokens=4, max_batch=3, max_context=50, kernels="torch"))
    assert found == (
        "<Engine of Qwen3Target, DFlashDraft: zlab, float32, torch on cpu, draft_tokens=4, max_batch=3, max_context=50>"
    )


def test_a_step_that_fails_drops_every_request_though_their_sequences_do_not_close(
    random_pair: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Target's and draft's are closed, what failed first is raised, and the rest is noted there."""
    engine, closed = load(random_pair, draft_tokens=4, max_batch=3), []
    tickets = [engine.submit(engine.request(prompt, 20)) for prompt in ([1, 2, 3], [7, 8], [9])]
    engine.step()

    def fail(*given: object) -> NoReturn:
        raise ValueError("the forward")

    def unclosed(cache: KvCache) -> NoReturn:
        closed.append(cache.lane)
        raise OSError("still open")

    with monkeypatch.context() as patch:
        patch.setattr(engine.target, "forward", fail)
        patch.setattr(KvCache, "close", unclosed)
        with pytest.raises(ValueError, match="the forward") as error:
            engine.step()
    assert sorted(closed) == [0, 0, 1, 1, 2, 2]
    assert error.value.__notes__ == [f"and ticket {each} was closed with OSError: still open" for each in tickets]
    for ticket in tickets:
        with pytest.raises(RequestError, match=f"ticket {ticket}"):
            engine.cancel(ticket)
    assert engine.step() == {}


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_an_interrupted_step_leaves_no_request_half_way(random_pair: Path, load: Load, calls: int) -> None:
    """Ctrl-C may come in the midst of a round, after which the next one would go on from rows that no token stands for.

    What waits has read nothing yet, and stays.
    """
    left = [calls]

    def interrupt(trace: RoundTrace) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    engine = load(random_pair, draft_tokens=4, max_batch=2)
    prompts = ([1, 2, 3], [7, 8], [9])
    first, second, waiting = (
        engine.submit(engine.request(prompt, 20, observer=observer))
        for prompt, observer in zip(prompts, (interrupt, None, None), strict=True)
    )
    with pytest.raises(KeyboardInterrupt):
        list(iter(engine.step, {}))
    for ticket in (first, second):
        with pytest.raises(RequestError, match=f"ticket {ticket}"):
            engine.cancel(ticket)
    tokens: list[int] = []
    while rounds := engine.step():
        assert list(rounds) == [waiting]
        tokens += rounds[waiting].tokens
    assert tuple(tokens) == engine.generate(prompts[2], 20).tokens
    again = engine.generate_batch([engine.request(prompt, 20) for prompt in prompts])
    assert [each.tokens for each in again] == [engine.decode_plain(prompt, 20).tokens for prompt in prompts]


def failing_once(adapter: Any, name: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the method do its work and then raise, in that many calls from now and never again."""
    true, left = getattr(adapter, name), [calls]

    def call(*given: Any) -> Any:
        made = true(*given)
        left[0] -= 1
        return made if left[0] else raising()

    monkeypatch.setattr(adapter, name, call)


@pytest.mark.parametrize("role_and_method", ["target.forward", "draft.append", "draft.propose"])
@pytest.mark.parametrize("batch", [False, True], ids=["steps", "generate_batch"])
def test_an_engine_goes_on_after_a_joint_forward_that_raised(
    random_pair: Path, load: Load, role_and_method: str, batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran has left, with lanes and counts; what waits stays, and new requests have the tokens of a new engine."""
    role, method = role_and_method.split(".")
    engine: Any = load(random_pair, draft_tokens=4, max_batch=2, profile="ninfer", dtype="bfloat16", max_context=60)
    asked: list[Any] = [([1, 2, 3], {"presence_penalty": 1.0}), ([7, 8], {}), ([9], {"frequency_penalty": 0.5})]
    requests = [engine.request(prompt, 20, stop_ids=[], **options) for prompt, options in asked]
    alone = [engine.generate_batch([request])[0].tokens for request in requests]
    if batch:
        failing_once(getattr(engine, role), method, 4, monkeypatch)
        with pytest.raises(Mistake):
            engine.generate_batch(requests)
    else:
        first, second, waiting = map(engine.submit, requests)
        engine.step()
        failing_once(getattr(engine, role), method, 1, monkeypatch)
        with pytest.raises(Mistake):
            engine.step()
        for ticket in (first, second):
            with pytest.raises(RequestError, match=f"ticket {ticket}, expected one of a request that waits"):
                engine.cancel(ticket)
        said: list[int] = []
        while made := engine.step():
            assert made.keys() == {waiting}
            said += made[waiting].tokens
        assert tuple(said) == alone[2]
    assert engine.target._pool.lanes.free == engine.draft._pool.lanes.free == 2
    assert [answer.tokens for answer in engine.generate_batch(requests)] == alone
