"""Whole requests: the tokens of plain decoding whatever the width, and rounds that go as planned."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dflash_reference import context, draft, engine, models, processing, rng, rows, target
from dflash_reference.names import Position, TokenId
from dflash_reference.request import Settings
from dflash_spec.errors import ConfigError, DFlashError, RequestError, TensorError
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
PROFILES = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
PROMPT = [3, 17, 29, 5, 11, 23, 7]
Build = Callable[..., Any]
EXAMPLES = 25
"""Whole requests take 0.1 s each."""


@st.composite
def chunkings(draw: st.DrawFn) -> tuple[int, ...]:
    cuts = sorted(draw(st.sets(st.integers(1, len(PROMPT) - 1), max_size=3)))
    return tuple(stop - start for start, stop in zip([0, *cuts], [*cuts, len(PROMPT)], strict=True))


@PROFILES
@example_settings(max_examples=EXAMPLES)
@given(drafts=st.integers(1, 6), max_new=st.integers(1, 12), chunks=chunkings(), start=st.integers(0, 23))
def test_any_width_and_any_chunking_give_the_tokens_of_plain_decoding(
    profile: Profile, drafts: int, max_new: int, chunks: tuple[int, ...], start: int, tiny: Build
) -> None:
    pair = tiny(profile)
    prompt = [(token + start) % 30 for token in PROMPT]
    plain = engine.decode_plain(pair.target, prompt, Settings(None, max_new), profile)
    got = engine.generate(pair.target, pair.draft, prompt, Settings(drafts, max_new, chunks=chunks), profile)
    assert got.tokens == plain
    assert len(plain) == max_new


@PROFILES
@pytest.mark.parametrize("drafts", [1, 2, 3, 4])
def test_a_planted_draft_is_followed_up_to_its_planned_slots(
    profile: Profile, drafts: int, planted_pair: Callable[[Profile], Any]
) -> None:
    pair, count = planted_pair(profile), 60
    prompt = pair.plan.prompts[0]
    done = engine.generate(pair.target, pair.draft, prompt, Settings(drafts, count, public=pair.plan.public), profile)
    assert done.tokens == pair.plan.continuation(prompt, count)
    planned = pair.plan.expected_accepted(prompt, drafts, count)
    # The plan leaves out that the tail of a budget narrows the block.
    whole = sum(1 for row in done.proposals if len(row) == drafts)
    assert done.accepted[:whole] == planned[:whole]
    assert set(done.accepted[:whole]) >= {0, drafts}
    assert whole > count // (drafts + 1) - 2


@PROFILES
def test_every_round_proposes_from_a_context_that_reaches_its_anchor_and_holds_committed_rows_only(
    profile: Profile, planted_pair: Callable[[Profile], Any]
) -> None:
    pair = planted_pair(profile)
    rounds: list[engine.Round] = []
    prompt = pair.plan.prompts[0]
    done = engine.generate(pair.target, pair.draft, prompt, Settings(4, 40), profile, rounds.append)
    text = np.array(prompt + done.tokens)
    plain = target.prefill(
        pair.target, target.Cache(pair.target.config), text, [len(text)], pair.draft.config.taps, profile
    )
    covered = 0
    for round_ in rounds:
        assert round_.features.tolist() == plain.features[covered : covered + len(round_.features)].tolist()
        covered += len(round_.features)
        assert covered == round_.frontier
        assert round_.anchor == text[covered]
        held = context.Context(pair.draft.config)
        context.materialise(pair.draft, held, plain.features[:covered], np.arange(covered), profile)
        fresh = draft.propose(
            pair.draft, held, pair.target.embedding, target.head(pair.target), round_.anchor,
            Position(covered), 4, round_.extent, pair.target.config.vocab_size, profile,
        )  # fmt: skip
        assert round_.proposal is None or round_.proposal.hidden.tolist() == fresh.hidden.tolist()
        assert round_.target_logits.shape == (round_.extent + 1, pair.target.config.vocab_size)
    assert {round_.accepted for round_ in rounds} >= {0, 2, 3, 4}


def test_rows_that_a_commit_cut_are_not_read_again(
    planted_pair: Callable[[Profile], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = planted_pair(ZLAB)
    prompt, settings = pair.plan.prompts[0], Settings(4, 40)
    clean = engine.generate(pair.target, pair.draft, prompt, settings, ZLAB)
    cut, poisoned = rows.Rows.cut, []

    def poison_what_is_cut(self: rows.Rows, length: int) -> None:
        poisoned.append(self.length - length)
        self.view[length:] = np.nan
        cut(self, length)

    monkeypatch.setattr(rows.Rows, "cut", poison_what_is_cut)
    assert engine.generate(pair.target, pair.draft, prompt, settings, ZLAB) == clean
    assert max(poisoned) == 4


@PROFILES
@example_settings(max_examples=EXAMPLES)
@given(drafts=st.integers(1, 5), max_new=st.integers(1, 14), data=st.data())
def test_a_stop_id_ends_the_text_where_it_first_stands(
    profile: Profile, drafts: int, max_new: int, data: st.DataObject, tiny: Build
) -> None:
    pair = tiny(profile)
    free = engine.decode_plain(pair.target, PROMPT, Settings(None, max_new), profile)
    stop = data.draw(st.sampled_from(free))
    settings = Settings(drafts, max_new, stop_ids=(stop, 30))
    done = engine.generate(pair.target, pair.draft, PROMPT, settings, profile)
    assert done.tokens == free[: free.index(stop) + 1]
    assert bool(done.accepted) == (stop != free[0] and max_new > 1)


@PROFILES
def test_a_rejected_proposal_that_is_a_stop_id_ends_nothing(
    profile: Profile, planted_pair: Callable[[Profile], Any]
) -> None:
    pair = planted_pair(profile)
    prompt, decoy = pair.plan.prompts[0], pair.plan.words.decoy
    done = engine.generate(pair.target, pair.draft, prompt, Settings(4, 40, stop_ids=(decoy,)), profile)
    assert len(done.tokens) == 40
    assert any(decoy in row for row in done.proposals)


@pytest.mark.parametrize("spare", [0, 1, 2, 5])
def test_a_full_cache_ends_the_request_with_the_token_after_its_last_row(spare: int, tiny: Build) -> None:
    pair = tiny(NINFER)
    capacity = pair.target.config.max_positions
    prompt = [token % 30 for token in range(capacity - spare)]
    done = engine.generate(pair.target, pair.draft, prompt, Settings(3, 50), NINFER)
    assert len(done.tokens) == spare + 1
    assert done.tokens == engine.decode_plain(pair.target, prompt, Settings(None, 50), NINFER)


def test_the_budgets_tail_narrows_the_block_as_the_profile_says(tiny: Build) -> None:
    for profile, widths in ((NINFER, [3, 3, 2, 1, 0]), (ZLAB, [3, 3, 3, 2, 1])):
        pair = tiny(profile)
        rounds: list[engine.Round] = []
        done = engine.generate(pair.target, pair.draft, PROMPT, Settings(3, 6), profile, rounds.append)
        assert done.accepted == [0] * 5, "this pair accepts nothing"
        assert [len(row) for row in done.proposals] == widths
        assert [round_.proposal is None for round_ in rounds] == [width == 0 for width in widths]


def draw(chance: dict[int, float], seed: int, position: int, purpose: int) -> TokenId:
    """The draw with a published key, by the rules in words; `chance` is in rank order and may lack mass."""
    total, goal = 0.0, rng.draw(seed, position, purpose)
    if purpose == rng.CORRECTION:
        goal *= sum(chance.values())
    for token, weight in chance.items():
        total += weight
        if goal < total:
            return TokenId(token)
    return TokenId([token for token, weight in chance.items() if weight][-1])


def chances(logits: Array, request: Settings) -> list[dict[int, float]]:
    support, p = processing.distribution(logits, request.temperature, 30, NINFER)
    return [dict(zip(ids.tolist(), row.tolist(), strict=True)) for ids, row in zip(support, p, strict=True)]


def logits_after(pair: Any, tokens: list[int]) -> Array:
    """The target's logits of every row of a fresh forward."""
    model = pair.target
    residuals = target.extend(model, target.Cache(model.config), np.array(tokens), NINFER)
    return target.logits(residuals[-1], model.norm, target.head(model), model.config.eps, NINFER).logits


def replay(rounds: list[engine.Round], request: Settings) -> list[TokenId]:
    """The tokens after the first that the recorded logits and the published keys give."""
    tokens: list[TokenId] = []
    for round_ in rounds:
        chance = chances(round_.target_logits, request)
        proposals = [] if round_.proposal is None else round_.proposal.proposals.tolist()
        accepted = 0
        for token in proposals:
            u = rng.draw(request.seed, round_.frontier + accepted + 1, rng.ACCEPT)
            if not u < chance[accepted].get(token, 0.0):
                break
            tokens.append(token)
            accepted += 1
        row, purpose = chance[accepted], rng.BONUS
        if accepted < len(proposals):
            row, purpose = {token: w for token, w in row.items() if token != proposals[accepted]}, rng.CORRECTION
        tokens.append(draw(row, request.seed, round_.frontier + accepted + 1, purpose))
    return tokens


SAMPLED = st.builds(
    Settings,
    drafts=st.integers(1, 5),
    max_new=st.just(9),
    public=st.just(30),
    temperature=st.sampled_from([0.25, 0.75, 1.5]),
    seed=st.integers(0, 2**64 - 1),
)


@example_settings(max_examples=EXAMPLES)
@given(request=SAMPLED)
def test_sampled_rounds_follow_the_published_keys(request: Settings, tiny: Build) -> None:
    pair = tiny(NINFER)
    rounds: list[engine.Round] = []
    tokens = engine.generate(pair.target, pair.draft, PROMPT, request, NINFER, rounds.append).tokens
    first = chances(logits_after(pair, PROMPT), request)[-1]
    assert tokens[0] == draw(first, request.seed, len(PROMPT), rng.PREFILL)
    assert tokens[1:] == replay(rounds, request)[: len(tokens) - 1]


@example_settings(max_examples=EXAMPLES)
@given(request=SAMPLED)
def test_plain_sampled_decoding_follows_the_published_keys(request: Settings, tiny: Build) -> None:
    pair = tiny(NINFER)
    tokens = engine.decode_plain(pair.target, PROMPT, request, NINFER)
    rows_ = chances(logits_after(pair, [*PROMPT, *tokens]), request)
    for index, token in enumerate(tokens):
        frontier = len(PROMPT) + index - 1
        key = (frontier, rng.DECODE) if index else (len(PROMPT), rng.PREFILL)
        assert token == draw(rows_[frontier], request.seed, *key)


def test_a_sampled_planted_draft_is_accepted_at_every_count(planted_pair: Callable[[Profile], Any]) -> None:
    pair = planted_pair(NINFER)
    settings = Settings(4, 60, public=pair.plan.public, temperature=0.5, seed=11)
    done = engine.generate(pair.target, pair.draft, pair.plan.prompts[0], settings, NINFER)
    assert set(done.accepted) >= {0, 2, 3, 4}
    assert done == engine.generate(pair.target, pair.draft, pair.plan.prompts[0], settings, NINFER)


NORMAL = "expected 0 or 1.1754943508222875e-38 to 3.4028234663852886e+38, the normal numbers of F32"
BAD: list[tuple[list[int], Settings, type[DFlashError], str]] = [
    ([], Settings(3, 5), RequestError, "prompt of 0 tokens, expected 1 to 96"),
    ([1] * 97, Settings(3, 5), RequestError, "prompt of 97 tokens, expected 1 to 96"),
    ([1, 31], Settings(3, 5), RequestError, r"prompt\[1\] is 31, expected 0 to 30"),
    ([1, -1], Settings(3, 5), RequestError, r"prompt\[1\] is -1, expected 0 to 30"),
    ([1, 2], Settings(0, 5), ConfigError, "draft_tokens: found 0, expected 1 to 15"),
    ([1, 2], Settings(16, 5), ConfigError, "draft_tokens: found 16, expected 1 to 15"),
    ([1, 2], Settings(3, 0), RequestError, "max_new is 0, expected 1 to 2147483647"),
    ([1, 2], Settings(3, 5, public=2), RequestError, r"prompt\[1\] is 2, expected 0 to 1"),
    ([1, 2], Settings(3, 5, public=32), RequestError, "public is 32, expected 1 to 31"),
    ([1, 2], Settings(3, 5, temperature=-0.5), RequestError, "temperature is -0.5, expected a finite number"),
    ([1, 2], Settings(3, 5, temperature=float("nan")), RequestError, "temperature is nan, expected a finite number"),
    ([1, 2], Settings(3, 5, seed=-1), RequestError, "seed is -1, expected 0 to"),
    ([1, 2], Settings(3, 5, chunks=(1, 2)), RequestError, "expected positive lengths that add up to 2"),
]

WRONG: list[tuple[Any, dict[str, Any], str]] = [
    ([1.7], {}, "prompt[0] is 1.7, expected an integer"),
    ([True], {}, "prompt[0] is True, expected an integer"),
    (["1"], {}, "prompt[0] is '1', expected an integer"),
    ([2**70], {}, "prompt[0] is an integer of 71 bits, expected 0 to 30"),
    ("abc", {}, "prompt is 'abc', expected a sequence of integers"),
    (None, {}, "prompt is None, expected a sequence of integers"),
    (np.array([1.7]), {}, "prompt is float64 of shape [1], expected integers [T]"),
    (np.array([True]), {}, "prompt is bool of shape [1], expected integers [T]"),
    (np.array([[1]]), {}, "prompt is int64 of shape [1, 1], expected integers [T]"),
    ([1], {"max_new": "3"}, "max_new is '3', expected an integer"),
    ([1], {"max_new": 2.5}, "max_new is 2.5, expected an integer"),
    ([1], {"max_new": None}, "max_new is None, expected an integer"),
    ([1], {"max_new": True}, "max_new is True, expected an integer"),
    ([1], {"max_new": 2**31}, "max_new is 2147483648, expected 1 to 2147483647"),
    ([1], {"max_new": 10**5000}, ", expected 1 to 2147483647"),
    ([1], {"public": 2.0}, "public is 2.0, expected an integer"),
    ([1], {"public": "9"}, "public is '9', expected an integer"),
    ([1], {"seed": 1.0}, "seed is 1.0, expected an integer"),
    ([1], {"seed": None}, "seed is None, expected an integer"),
    ([1], {"stop_ids": [2**70]}, "stop_ids[0] is an integer of 71 bits, expected 0 to 30"),
    ([1], {"stop_ids": ["x"]}, "stop_ids[0] is 'x', expected an integer"),
    ([1], {"stop_ids": (5, -1)}, "stop_ids[1] is -1, expected 0 to 30"),
    ([1], {"stop_ids": (31,)}, "stop_ids[0] is 31, expected 0 to 30"),
    ([1], {"stop_ids": (9,), "public": 9}, "stop_ids[0] is 9, expected 0 to 8"),
    ([1], {"stop_ids": 5}, "stop_ids is 5, expected a sequence of integers"),
    ([1], {"stop_ids": None}, "stop_ids is None, expected a sequence of integers"),
    ([1], {"temperature": "0.5"}, "temperature is '0.5', expected a number"),
    ([1], {"temperature": True}, "temperature is True, expected a number"),
    ([1], {"temperature": None}, "temperature is None, expected a number"),
    ([1], {"temperature": float("inf")}, "temperature is inf, expected a finite number of at least 0"),
    ([1], {"temperature": 10**400}, "temperature is inf, expected a finite number of at least 0"),
    ([1], {"temperature": -5e-324}, "temperature is -5e-324, expected a finite number of at least 0"),
    *(([1], {"temperature": t}, f"temperature is {t}, {NORMAL}") for t in (5e-324, 1e-320, 1e-300, 1e-45, 1e-38)),
    *(([1], {"temperature": t}, f"temperature is {t}, {NORMAL}") for t in (3.41e38, 1e300)),
    ([1], {"chunks": ("1",)}, "chunks[0] is '1', expected an integer"),
    ([1], {"chunks": (1.0,)}, "chunks[0] is 1.0, expected an integer"),
    ([1], {"chunks": 1}, "chunks is 1, expected a sequence of integers"),
    ([1], {"chunks": (1, 0)}, "chunks[1] is 0, expected 1 to 1"),
]


@pytest.mark.parametrize(("prompt", "wrong", "message"), WRONG, ids=[row[2] for row in WRONG])
def test_an_argument_of_another_type_or_range_is_refused_by_name(
    prompt: Any, wrong: dict[str, Any], message: str, tiny: Build
) -> None:
    pair, asked = tiny(NINFER), Settings(**({"drafts": 3, "max_new": 5} | wrong))
    with pytest.raises(RequestError, match=re.escape(message)):
        engine.generate(pair.target, pair.draft, prompt, asked, NINFER)
    with pytest.raises(RequestError, match=re.escape(message)):
        engine.decode_plain(pair.target, prompt, asked, NINFER)


@pytest.mark.parametrize("drafts", ["3", 2.5, True, [3]])
def test_a_draft_count_that_is_no_integer_is_refused_by_name(drafts: Any, tiny: Build) -> None:
    pair = tiny(NINFER)
    with pytest.raises(ConfigError, match=r"draft_tokens: found .*, expected an integer"):
        engine.generate(pair.target, pair.draft, PROMPT, Settings(drafts, 5), NINFER)


class HostTensor:
    """What an array of another library looks like to NumPy."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.values)


@pytest.mark.parametrize("array", [np.array, HostTensor, lambda ids: [np.int16(id_) for id_ in ids]])
def test_numpys_numbers_and_arrays_are_arguments_like_pythons_own(
    array: Callable[[list[int]], Any], tiny: Build
) -> None:
    pair = tiny(NINFER)
    plain = Settings(3, 6, (30,), 31, 0.5, 2**63, (3, 4))
    scalars: Any = np  # its integers are no `int` to a type checker
    number = Settings(
        scalars.int64(3), scalars.uint8(6), array([30]), scalars.int32(31), scalars.float32(0.5),
        scalars.uint64(2**63), array([3, 4]),
    )  # fmt: skip
    expected = engine.generate(pair.target, pair.draft, PROMPT, plain, NINFER)
    assert engine.generate(pair.target, pair.draft, array(PROMPT), number, NINFER) == expected


@pytest.mark.parametrize("temperature", [2.0**-126, float(np.finfo(np.float32).max)])
def test_the_extreme_temperatures_serve_and_the_smallest_is_greedy(temperature: float, tiny: Build) -> None:
    pair = tiny(NINFER)
    done = engine.generate(pair.target, pair.draft, PROMPT, Settings(3, 9, temperature=temperature), NINFER)
    greedy = engine.generate(pair.target, pair.draft, PROMPT, Settings(3, 9), NINFER)
    assert (done.tokens == greedy.tokens) == (temperature < 1)


@PROFILES
def test_a_request_ends_where_the_draft_has_no_more_positions(profile: Profile, tiny: Build) -> None:
    pair, positions = tiny(profile), len(PROMPT) + 5
    short = models.Draft(dataclasses.replace(pair.draft.config, max_positions=positions), pair.draft.weights)
    done = engine.generate(pair.target, short, PROMPT, Settings(3, 50), profile)
    assert done.tokens == engine.decode_plain(pair.target, PROMPT, Settings(None, 6), profile)
    with pytest.raises(RequestError, match="prompt of 13 tokens, expected 1 to 12"):
        engine.generate(pair.target, short, [1] * (positions + 1), Settings(3, 50), profile)


@pytest.mark.parametrize(("prompt", "settings", "error", "message"), BAD, ids=[row[3] for row in BAD])
def test_a_bad_request_is_refused_with_what_was_found_and_expected(
    prompt: list[int], settings: Settings, error: type[DFlashError], message: str, tiny: Build
) -> None:
    pair = tiny(NINFER)
    with pytest.raises(error, match=message):
        engine.generate(pair.target, pair.draft, prompt, settings, NINFER)


def test_a_draft_of_another_target_is_refused(tiny: Build, planted_pair: Callable[[Profile], Any]) -> None:
    with pytest.raises(TensorError, match="draft: hidden size 32, expected the target's 20"):
        engine.generate(tiny(ZLAB).target, planted_pair(ZLAB).draft, PROMPT, Settings(3, 5), ZLAB)
    shallow = tiny(ZLAB, target_windows=(0, 5), taps=(1, 0)).target
    with pytest.raises(TensorError, match=r"draft: taps \[2, 0\], expected ids below 2"):
        engine.generate(shallow, tiny(ZLAB).draft, PROMPT, Settings(3, 5), ZLAB)
