"""A request that is kept, forked, restored and continued says what it would have said, from the same proposals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dflash_reference import context, engine, rows, session, state, target
from dflash_reference.names import TokenId
from dflash_reference.request import Settings
from dflash_spec.errors import RequestError, StateError
from dflash_spec.registry import Profile, load_profile
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
PROFILES = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
SECOND = pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
PROMPT = [3, 17, 29, 5, 11, 23, 7]
EXAMPLES = 5
"""Whole requests take 0.1 s each."""
Build = Callable[..., Any]


def held_rows(held: context.Context) -> list[bytes]:
    """Every byte of a draft's context."""
    return [part.view.tobytes() for part in (*held.keys, *held.values, held.positions)]


def drafted(round_: engine.Round) -> list[int]:
    return [] if round_.proposal is None else round_.proposal.proposals.tolist()


@PROFILES
@SECOND
@example_settings(max_examples=EXAMPLES)
@given(rounds=st.integers(0, 4), temperature=st.sampled_from([0.0, 1.5]), seed=st.integers(0, 99))
def test_a_fork_and_its_source_say_what_an_undisturbed_request_says(
    profile: Profile, second: bool, rounds: int, temperature: float, seed: int, tiny: Build
) -> None:
    pair = tiny(profile, second=second)
    settings = Settings(3, 14, temperature=temperature, seed=seed)
    alone = engine.generate(pair.target, pair.draft, PROMPT, settings, profile)
    source = session.opened(pair.target, pair.draft, PROMPT, settings, profile)
    for _ in range(min(rounds, len(alone.accepted))):
        source.play()
    source.catch_up()
    fork = source.fork()
    assert held_rows(fork.rows) == held_rows(source.rows)
    # They take turns, so that whatever they shared would be overwritten by the other.
    while not (source.request.ended and fork.request.ended):
        for one in (source, fork):
            if not one.request.ended:
                one.play()
    assert source.request.tokens == fork.request.tokens == alone.tokens


@PROFILES
@SECOND
@example_settings(max_examples=EXAMPLES)
@given(cut=st.integers(1, len(PROMPT)), first=st.integers(0, 29))
def test_a_restored_prefix_is_not_fed_again_and_changes_nothing(
    profile: Profile, second: bool, cut: int, first: int, tiny: Build
) -> None:
    pair, settings = tiny(profile, second=second), Settings(3, 9)
    # The image comes from a request with another ending, which has gone on meanwhile.
    other = session.opened(pair.target, pair.draft, PROMPT[:cut], settings, profile)
    other.catch_up()
    kept = other.keep()
    assert kept.identity == tuple(PROMPT[:cut])
    other.run()
    rounds: list[engine.Round] = []
    alone = engine.generate(pair.target, pair.draft, PROMPT, settings, profile, rounds.append)
    for _ in range(2):
        again = session.opened(pair.target, pair.draft, PROMPT, settings, profile, kept)
        assert again.pending.positions.tolist() == list(range(cut, len(PROMPT)))
        for round_ in rounds:
            played = again.play()
            assert drafted(played) == drafted(round_)
            assert played.accepted == round_.accepted
        assert again.request.tokens == alone.tokens


@PROFILES
@SECOND
def test_eight_of_twelve_tokens_are_restored_without_reading_a_row_that_was_never_written(
    profile: Profile, second: bool, tiny: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, prompt, settings = tiny(profile, second=second), [*PROMPT, 19, 2, 28, 13, 9], Settings(3, 9)
    rounds: list[engine.Round] = []
    alone = engine.generate(pair.target, pair.draft, prompt, settings, profile, rounds.append)
    append, poisoned = rows.Rows.append, []

    def append_before_poison(self: rows.Rows, new: np.ndarray) -> None:
        append(self, new)
        if self.view.dtype.kind == "f":
            spare = self._buffer[self.length :]
            spare[:] = np.nan
            poisoned.append(len(spare))

    monkeypatch.setattr(rows.Rows, "append", append_before_poison)
    other = session.opened(pair.target, pair.draft, prompt[:8], settings, profile)
    other.catch_up()
    kept = other.keep()
    other.run()
    again = session.opened(pair.target, pair.draft, prompt, settings, profile, kept)
    assert again.rows.length == 8
    assert again.pending.positions.tolist() == [8, 9, 10, 11]
    for round_ in rounds:
        played = again.play()
        assert drafted(played) == drafted(round_)
        assert played.target_logits.tolist() == round_.target_logits.tolist()
    assert again.request.tokens == alone.tokens
    assert max(poisoned) > 8


@PROFILES
def test_the_next_turn_goes_on_from_the_end_of_the_last_one(
    profile: Profile, planted_pair: Callable[[Profile], Any]
) -> None:
    pair = planted_pair(profile)
    prompt = pair.plan.prompts[0]
    said = pair.plan.continuation(prompt, 30)
    settings = Settings(4, 30, stop_ids=(said[11],))
    turn = session.opened(pair.target, pair.draft, prompt, settings, profile)
    while not turn.request.ended:
        last = turn.play()
    assert last.kept < len(last.licensed)
    tokens = turn.request.tokens
    assert tokens == said[: said.index(said[11]) + 1]
    turn.catch_up()
    kept = turn.keep()
    # The stop itself was emitted, and has no row yet.
    assert kept.identity == (*prompt, *tokens[:-1])
    hit = session.opened(pair.target, pair.draft, [*prompt, *tokens[:-1]], Settings(4, 1), profile, kept)
    assert hit.request.tokens == tokens[-1:]
    text = [*prompt, *tokens]
    fresh = session.opened(pair.target, pair.draft, text, Settings(4, 12), profile)
    again = session.opened(pair.target, pair.draft, text, Settings(4, 12), profile, kept)
    accepted = []
    while not fresh.request.ended:
        one, two = fresh.play(), again.play()
        accepted.append(two.accepted)
        assert (one.accepted, drafted(one)) == (two.accepted, drafted(two))
        assert np.array_equal(one.target_logits, two.target_logits)
    assert fresh.request.tokens == again.request.tokens
    assert max(accepted) == 4


@PROFILES
def test_an_exact_hit_samples_from_the_kept_hidden_row(profile: Profile, tiny: Build) -> None:
    pair = tiny(profile)
    settings = Settings(3, 8, temperature=1.5, seed=5)
    first = session.opened(pair.target, pair.draft, PROMPT, settings, profile)
    first.catch_up()
    kept = first.keep()

    def nothing_fed(*given: Any) -> None:
        pytest.fail(f"{given[2]} were fed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "extend", nothing_fed)
        again = session.opened(pair.target, pair.draft, PROMPT, settings, profile, kept)
    assert again.run() == engine.generate(pair.target, pair.draft, PROMPT, settings, profile).tokens


def test_a_request_with_pending_rows_is_neither_kept_nor_forked(tiny: Build) -> None:
    pair = tiny(ZLAB)
    one = session.opened(pair.target, pair.draft, PROMPT, Settings(3, 9), ZLAB)
    for _ in range(2):
        with pytest.raises(StateError, match="expected three equal counts"):
            one.keep()
        with pytest.raises(StateError, match="expected three equal counts"):
            one.fork()
        one.play()
    one.catch_up()
    assert one.keep().image.frontier == one.request.frontier


def test_an_image_of_another_text_or_without_its_context_is_refused(tiny: Build) -> None:
    pair = tiny(ZLAB)
    one = session.opened(pair.target, pair.draft, PROMPT, Settings(3, 9), ZLAB)
    one.catch_up()
    kept = one.keep()
    given = pair.target, pair.draft, [PROMPT[0] + 1, *PROMPT[1:], 9], Settings(3, 9), ZLAB
    with pytest.raises(StateError, match="an image of tokens"):
        session.opened(*given, kept)
    evicted = kept._replace(image=kept.image._replace(draft=context.Context(pair.draft.config)))
    with pytest.raises(StateError, match="7 of the target and 0 of the draft"):
        session.opened(*given, evicted)


def test_an_ended_request_plays_no_round(tiny: Build) -> None:
    pair = tiny(ZLAB)
    one = session.opened(pair.target, pair.draft, PROMPT, Settings(3, 1), ZLAB)
    with pytest.raises(RequestError, match="the request has ended"):
        one.play()
    assert one.run() == [TokenId(one.request.tokens[0])]


def test_an_image_is_a_copy_of_all_that_it_holds(tiny: Build) -> None:
    pair = tiny(NINFER)
    one = session.opened(pair.target, pair.draft, PROMPT, Settings(3, 9), NINFER)
    one.catch_up()
    image = one.keep().image
    before = held_rows(image.draft), [part.view.tobytes() for part in (*image.target.keys, *image.target.values)]
    assert len(before[0][0]) > 0
    held = state.restored(image)
    for part in (*one.request.cache.keys, *one.rows.keys, *held.target.keys, *held.draft.keys):
        part.view[:] = np.nan
    assert before == (
        held_rows(image.draft), [part.view.tobytes() for part in (*image.target.keys, *image.target.values)]
    )  # fmt: skip
