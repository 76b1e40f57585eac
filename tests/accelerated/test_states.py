"""Checkpoints, forks, restores and replicas of submitted requests; lanes that are reserved once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest
import torch
from dflash_accelerated import Checkpoint, Engine, Generation, Numerics, Request, Round
from dflash_accelerated.lanes import Lanes
from dflash_accelerated.memory import KvCache, KvPool
from dflash_accelerated.models.dflash2 import DFlash2Draft
from dflash_accelerated.models.qwen3 import Qwen3Target
from dflash_accelerated.protocols import Segment
from dflash_spec.errors import RequestError, StateError
from dflash_spec.registry import load_profile

Load = Callable[..., Engine]
PROMPT = [9, 31, 2, 50, 50, 7, 12, 40, 3]
PROFILES: dict[str, dict[str, Any]] = {"zlab": {}, "ninfer": {"profile": "ninfer", "dtype": torch.bfloat16}}
VARIANTS = [(second, profile) for second in (False, True) for profile in PROFILES]


@pytest.fixture(params=VARIANTS, ids=lambda each: f"{'dflash2' if each[0] else 'dflash'}-{each[1]}")
def engine(request: pytest.FixtureRequest, random_pair: Path, random_pair2: Path, load: Load) -> Engine:
    """An engine of its own for each test, with windows shorter than the prompt."""
    second, profile = request.param
    return load(random_pair2 if second else random_pair, draft_tokens=4, max_batch=3, max_checkpoints=3,
                **PROFILES[profile])  # fmt: skip


@pytest.fixture
def one(random_pair2: Path, load: Load) -> Engine:
    return load(random_pair2, draft_tokens=4, max_batch=3, max_checkpoints=2)


def asked(engine: Engine, prompt: Sequence[int] = PROMPT, count: int = 25, **options: Any) -> Request:
    given: dict[str, Any] = {"stop_ids": [], "temperature": 0.7, "seed": 3} | options
    return engine.request(prompt, count, **given)


def finish(engine: Engine, tickets: Sequence[int], rounds: dict[int, list[Round]] | None = None) -> list[Generation]:
    """What the tickets say, to the end."""
    made: dict[int, list[Round]] = {ticket: [] for ticket in tickets} | (rounds or {})
    while latest := engine.step():
        for ticket, each in latest.items():
            made.setdefault(ticket, []).append(each)
    return [Generation.of(made[ticket]) for ticket in tickets]


def alone(engine: Engine, request: Request) -> Generation:
    return engine.generate_batch([request])[0]


def advanced(engine: Engine, request: Request, steps: int) -> tuple[int, list[Round]]:
    ticket = engine.submit(request)
    return ticket, [engine.step()[ticket] for _ in range(steps)]


def test_a_checkpoint_is_no_event_to_its_request(engine: Engine) -> None:
    ticket, rounds = advanced(engine, asked(engine), 4)
    said = [token for each in rounds for token in each.tokens]
    name = engine.checkpoint(ticket)
    assert name.tokens == (*PROMPT, *said[:-1]), "the last token is read by no model yet"
    assert finish(engine, [ticket], {ticket: rounds}) == [alone(engine, asked(engine))]


def test_a_restored_prefix_is_not_read_again_and_changes_no_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket, _ = advanced(engine, asked(engine), 5)
    name = engine.checkpoint(ticket)
    finish(engine, [ticket])
    read, forward = [], engine.target.forward

    def counted(segments: Sequence[Segment], *rest: Any) -> Any:
        read.append([len(segment.ids) for segment in segments])
        return forward(segments, *rest)

    for more in ([], [5], [5, 44, 1, 8, 8, 20, 6]):
        request = asked(engine, [*name.tokens, *more], temperature=0.0)
        whole = alone(engine, request)
        monkeypatch.setattr(engine.target, "forward", counted)
        restored = engine.restore(name, request)
        read.clear()
        first = engine.step()
        assert read == ([[len(more)]] if more else []), "only the rest of the prompt is read"
        assert finish(engine, [restored], {restored: [first[restored]]})[0].tokens == whole.tokens
        monkeypatch.undo()


@pytest.mark.usefixtures("products_row_by_row")
def test_a_fork_says_what_its_source_says_or_what_another_seed_says(engine: Engine) -> None:
    penalty: dict[str, Any] = {"frequency_penalty": 0.5} if engine.numerics.profile.name == "ninfer" else {}
    ticket, rounds = advanced(engine, asked(engine, **penalty), 3)
    same, other = engine.fork(ticket), engine.fork(ticket, seed=4)
    assert len({ticket, same, other}) == 3
    with pytest.raises(RequestError, match="3 places are taken"):
        engine.fork(ticket)
    source, twin, stranger = finish(engine, [ticket, same, other], {t: list(rounds) for t in (ticket, same, other)})
    assert source == twin == alone(engine, asked(engine, **penalty))
    assert stranger.tokens != source.tokens
    said = sum(len(each.tokens) for each in rounds)
    assert stranger.tokens[:said] == source.tokens[:said]


def test_an_image_and_its_replica_hold_the_same_bits_and_outlive_the_request(engine: Engine) -> None:
    ticket, _ = advanced(engine, asked(engine), 5)
    name = engine.checkpoint(ticket)
    replica = engine.replicate(name)
    engine.cancel(ticket)
    images = engine._images
    one, other = images.get(name), images.get(replica)
    for mine, theirs in ((one.target, other.target), (cast(Any, one.draft), cast(Any, other.draft))):
        for part, copy in zip(mine.parts, theirs.parts, strict=True):
            assert torch.equal(part.contiguous().view(torch.uint8), copy.contiguous().view(torch.uint8))
            assert part.data_ptr() != copy.data_ptr()
    engine.release(name)
    finish(engine, [engine.submit(asked(engine, [60 - at for at in range(30)]))])
    request = asked(engine, [*replica.tokens, 5, 44], temperature=0.0)
    assert finish(engine, [engine.restore(replica, request)])[0].tokens == alone(engine, request).tokens


def test_an_ended_request_that_is_held_can_be_kept_and_goes_on_in_the_next_turn(engine: Engine) -> None:
    ticket = engine.submit(asked(engine, count=11), hold=True)
    answer = finish(engine, [ticket])[0].tokens
    name = engine.checkpoint(ticket)
    assert name.tokens == (*PROMPT, *answer[:-1])
    with pytest.raises(StateError, match=f"ticket {ticket} has ended"):
        engine.fork(ticket)
    engine.cancel(ticket)
    with pytest.raises(RequestError, match=f"ticket {ticket}"):
        engine.checkpoint(ticket)
    turn = asked(engine, [*PROMPT, *answer, 21, 33], temperature=0.0)
    assert finish(engine, [engine.restore(name, turn)])[0].tokens == alone(engine, turn).tokens


@pytest.mark.parametrize("hold", ["x", 1, None])
def test_hold_is_true_or_false(one: Engine, hold: Any) -> None:
    ticket, _ = advanced(one, asked(one), 1)
    name = one.checkpoint(ticket)
    for submit in (one.submit, lambda request, hold: one.restore(name, request, hold)):
        with pytest.raises(RequestError) as error:
            submit(asked(one, [*name.tokens, 5]), hold=hold)
        assert str(error.value) == f"hold is {hold!r}, expected True or False"


def test_names_of_released_images_and_of_other_engines_are_refused(one: Engine, random_pair2: Path, load: Load) -> None:
    ticket, _ = advanced(one, asked(one), 2)
    name = one.checkpoint(ticket)
    other = load(random_pair2, draft_tokens=4)
    with pytest.raises(StateError, match="another engine's"):
        other.restore(name, asked(other, name.tokens))
    one.release(name)
    again = one.checkpoint(ticket)
    assert again.slot == name.slot
    for use in (one.release, one.replicate, lambda stale: one.restore(stale, asked(one, stale.tokens))):
        with pytest.raises(StateError, match=f"generation {name.generation} of image slot {name.slot}"):
            use(name)
    one.replicate(again)
    for keep in (lambda: one.checkpoint(ticket), lambda: one.replicate(again)):
        with pytest.raises(StateError, match=r"^2 checkpoints held, of max_checkpoints 2: release a checkpoint$"):
            keep()


def test_slots_for_images_cost_nothing_until_they_hold_one(random_pair2: Path, load: Load) -> None:
    engine = load(random_pair2, draft_tokens=4, max_checkpoints=2**31 - 1)
    ticket, _ = advanced(engine, asked(engine), 2)
    names = [engine.checkpoint(ticket) for _ in range(3)]
    engine.release(names[1])
    names.append(engine.checkpoint(ticket))
    assert [name.slot for name in names] == [0, 1, 2, 1]


def test_a_prompt_of_another_text_and_an_image_without_all_of_its_context_are_refused(one: Engine) -> None:
    ticket, _ = advanced(one, asked(one), 3)
    name = one.checkpoint(ticket)
    for prompt, place in (([*name.tokens[:-1], 66], len(name.tokens) - 1), (name.tokens[:4], 4)):
        with pytest.raises(StateError, match=f"parts at {place} from the image's {len(name.tokens)}"):
            one.restore(name, asked(one, prompt))
    image = one._images.get(name)
    draft = cast(Any, image.draft)
    one._images.held[name.slot] = image._replace(draft=draft._replace(length=draft.length - 1))
    with pytest.raises(StateError, match=f"and {draft.length - 1} of the draft, expected three equal counts"):
        one.restore(name, asked(one, name.tokens))


def test_a_request_whose_checkpoint_is_released_while_it_waits_ends_with_that_error(one: Engine) -> None:
    ticket, _ = advanced(one, asked(one), 2)
    name = one.checkpoint(ticket)
    waiting = one.restore(name, asked(one, name.tokens))
    one.release(name)
    made = one.step()
    assert made[waiting].finish_reason == "error"
    assert isinstance(made[waiting].error, StateError)
    assert not made[ticket].error


def test_a_round_that_ended_with_an_error_is_no_point_to_keep(one: Engine) -> None:
    def breaking(said: tuple[int, ...]) -> torch.Tensor:
        if len(said) > 3:
            raise ValueError("no rule")
        return torch.ones(67, dtype=torch.bool)

    ticket = one.submit(asked(one, grammar=breaking), hold=True)
    while one.step():
        pass
    with pytest.raises(StateError, match=r"of a verify, .* expected three equal counts and no row of a verify"):
        one.checkpoint(ticket)


def test_no_request_makes_a_buffer_grow(one: Engine) -> None:
    target, draft = cast(Qwen3Target, one.target), cast(DFlash2Draft, one.draft)
    made: set[tuple[int, ...]] = set()
    for turn in range(4):
        for at in range(7):
            one.submit(asked(one, [(at + turn + 3 * place) % 60 for place in range(5 + at)], count=9))
        while one.step():
            stores = (target._pool.store, draft._pool.store, draft.rings.store)
            made.add(tuple(part.data_ptr() for store in stores for part in store[:2]))
        assert {len(part) for store in stores for part in store[:2]} == {one.max_batch}
    assert len(made) == 1, "a buffer has moved"
    assert target._pool.lanes.free == draft.rings.lanes.free == one.max_batch


def test_a_sequence_past_the_lanes_is_refused_and_others_go_on(one: Engine) -> None:
    streams = [one.stream(PROMPT, 9, stop_ids=[]) for _ in range(3)]
    for stream in streams:
        next(stream)
    with pytest.raises(RequestError, match="all 3 lanes are taken, expected a free one"):
        next(one.stream(PROMPT, 9))
    ticket = one.submit(asked(one))
    assert isinstance(one.step()[ticket].error, RequestError)
    streams[0].close()
    assert next(one.stream(PROMPT, 9)).tokens
    assert [len(list(stream)) > 0 for stream in streams] == [False, True, True]


def test_the_order_of_rows_is_a_permutation_and_changes_no_answer(one: Engine) -> None:
    requests = [asked(one, [5, 6, at], seed=at, temperature=0.0) for at in range(3)]
    tickets = [one.submit(each) for each in requests]
    rounds: dict[int, list[Round]] = {ticket: [] for ticket in tickets}
    going = list(tickets)
    while made := one.step():
        for ticket, each in made.items():
            rounds[ticket].append(each)
        going = [ticket for ticket in going if not rounds[ticket][-1].finish_reason]
        going = going[1:] + going[:1]
        one.arrange(going)
    assert [Generation.of(rounds[ticket]).tokens for ticket in tickets] == [
        alone(one, each).tokens for each in requests
    ]
    with pytest.raises(RequestError, match="in some order"):
        one.arrange([7])


def test_a_lane_is_lent_until_its_holder_ends_or_is_forgotten() -> None:
    class Holder:
        pass

    lanes, holder, forgotten = Lanes(2), Holder(), Holder()
    loan = lanes.lend(holder)
    lanes.lend(forgotten)
    assert (loan.lane, lanes.free) == (0, 0)
    del forgotten
    assert lanes.free == 1
    loan.end()
    loan.end()
    assert lanes.free == 2
    with pytest.raises(RequestError, match="lane 1 of 2 was given back"):
        lanes.give(1)


def test_rows_that_do_not_fit_are_not_loaded() -> None:
    numerics = Numerics.of(load_profile("zlab"))
    pools = [KvPool(2, 1, 4, numerics, torch.device("cpu")) for _ in range(2)]
    cache, small = (pool.open(rows) for pool, rows in zip(pools, (9, 4), strict=True))
    cache.advance(5)
    with pytest.raises(StateError, match="5 positions in rows"):
        small.load(cache.view())
    small.advance(3)
    cache.load(small.view())
    assert cache.length == 3
    with pytest.raises(StateError, match="5 positions in rows"):
        cache.load(small.view()._replace(length=5))


def test_adapters_whose_states_cannot_be_kept_say_so(one: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(KvCache, "load")
    ticket, _ = advanced(one, asked(one), 2)
    with pytest.raises(StateError, match="a KvCache, expected a state with view and load"):
        one.checkpoint(ticket)


def test_a_checkpoint_is_a_value(one: Engine) -> None:
    ticket, _ = advanced(one, asked(one), 2)
    name = one.checkpoint(ticket)
    assert name == Checkpoint(name.slot, name.generation, name.tokens)
    assert one._images.get(name).tokens == name.tokens


def test_lanes_are_taken_and_given_by_several_threads_at_once() -> None:
    lanes, failed, before = Lanes(3), list[Exception](), sys.getswitchinterval()

    def use() -> None:
        try:
            for _ in range(20_000):
                lanes.give(lanes.take())
        except Exception as error:
            failed.append(error)

    threads = [Thread(target=use) for _ in range(3)]
    sys.setswitchinterval(1e-6)
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(before)
    assert (failed, lanes.free) == ([], 3)
    assert [lanes.take() for _ in range(3)] == [0, 1, 2]
