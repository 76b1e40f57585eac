"""Whole requests with masks, grammars, penalties and filters, replayed by the rules said once more.

`law_after` is the target's law after a text: it counts the text afresh for every row, in FP32 of NumPy's, and knows
neither overlays nor rounds. A request is right if its tokens follow from the logits that it recorded, this law and
the published keys.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest
from dflash_reference import draft2, engine, models, operations, rng, target
from dflash_reference.request import Settings
from dflash_spec.errors import DFlashError, RequestError, TensorError
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

NINFER, ZLAB, APRIL = load_profile("ninfer"), load_profile("zlab"), load_profile("zlab-2026-04")
PROMPT = [3, 17, 29, 5, 11, 23, 7]
PUBLIC, WINDOWS = 30, (4, 4)
Build = Callable[..., Any]
Law = dict[int, float]
EXAMPLES = 12
"""Whole requests take 0.1 s each."""
F32 = np.float32


def no_echo(before: Sequence[int]) -> Array:
    """The last token may not stand again."""
    return np.array([not before or token != before[-1] for token in range(PUBLIC)])


def by_turns(before: Sequence[int]) -> list[int]:
    """Even and odd ids by turns, and every seventh id at any time."""
    return [int(token % 2 == len(before) % 2 or token % 7 == 0) for token in range(PUBLIC)]


GRAMMARS = (None, no_echo, by_turns)


def may_stand(settings: Settings, text: Sequence[int]) -> list[bool]:
    grammar = [1] * PUBLIC if settings.grammar is None else settings.grammar(tuple(text))  # type: ignore[arg-type]
    allowed = [1] * PUBLIC if settings.allowed is None else settings.allowed
    return [bool(one and other) for one, other in zip(grammar, allowed, strict=True)]


def law_after(row: Array, text: Sequence[int], asked: Settings, profile: Profile) -> Law:
    """The probability of each token that can follow `text`, in draw order."""
    counts, open_ = Counter(text), may_stand(asked, text)
    x: Law = {}
    for token in range(PUBLIC):
        value = F32(row[token])
        if counts[token] and asked.presence:
            value = value - F32(asked.presence)
        if counts[token] and asked.frequency:
            value = value - F32(asked.frequency) * F32(counts[token])
        if open_[token]:
            x[token] = float(value)
    ranked = sorted(x, key=lambda token: (-x[token], token))
    if asked.temperature == 0:
        return {ranked[0]: 1.0}
    if profile is NINFER:
        ranked = ranked[: asked.top_k if 1 <= asked.top_k <= 19 else 20]
    elif asked.top_k:
        ranked = ranked[: asked.top_k]
    weights = {token: exp((x[token] - x[ranked[0]]) / float(F32(asked.temperature))) for token in ranked}
    total, seen, kept = sum(weights.values()), 0.0, Law()
    for token, weight in weights.items():
        if kept and (weight < asked.min_p or (asked.top_p < 1 and seen >= float(F32(asked.top_p)) * total)):
            break
        kept[token] = weight
        seen += weight
    order = list(kept) if profile is NINFER else sorted(kept)
    return {token: float(F32(kept[token] / seen)) for token in order}


def drawn(law: Law, goal: float) -> int:
    """The first token whose cumulative weight exceeds the goal, else the last that has any."""
    total = 0.0
    for token, weight in law.items():
        total += weight
        if goal < total:
            return token
    return [token for token, weight in law.items() if weight][-1]


def offered_by(round_: engine.Round, asked: Settings, profile: Profile) -> list[Law]:
    """The law of each proposal of a round; a certain one has all the probability."""
    found, proposal = list[Law](), round_.proposal
    for slot in range(round_.extent):
        assert proposal is not None
        if isinstance(proposal, draft2.Proposal):
            found.append(dict(zip(proposal.candidates[slot].tolist(), proposal.q[slot].tolist(), strict=True)))
        elif profile is ZLAB:
            bare = replace(asked, presence=0.0, frequency=0.0, allowed=None, grammar=None)
            found.append(law_after(proposal.logits[slot], (), bare, profile))
        else:
            found.append({int(np.argmax(proposal.logits[slot, :PUBLIC])): 1.0})
    return found


def replayed(rounds: list[engine.Round], first: int, asked: Settings, profile: Profile) -> list[int]:
    """The tokens that the recorded logits and the published keys give."""
    text = [first]
    for round_ in rounds:
        proposals = [] if round_.proposal is None else round_.proposal.proposals[: round_.extent].tolist()
        offers, u = offered_by(round_, asked, profile), asked.seed
        for slot, (offer, token) in enumerate(zip(offers, proposals, strict=True)):
            assert token == drawn(offer, rng.draw(u, round_.frontier + slot, rng.PROPOSAL))
        accepted = 0
        while accepted < round_.extent:
            token, wanted = proposals[accepted], law_after(round_.target_logits[accepted], text, asked, profile)
            q, p = offers[accepted].get(token, 0.0), wanted.get(token, 0.0)
            coin = float(F32(rng.draw(u, round_.frontier + accepted + 1, rng.ACCEPT) * q))
            if not (coin < p or (profile is NINFER and p >= q)):
                break
            text.append(token)
            accepted += 1
        wanted = law_after(round_.target_logits[accepted], text, asked, profile)
        rejected = offers[accepted] if accepted < round_.extent else Law()
        left = {token: max(p - rejected.get(token, 0.0), 0.0) for token, p in wanted.items()}
        key = rng.draw(u, round_.frontier + accepted + 1, rng.CORRECTION if rejected else rng.BONUS)
        text.append(drawn(left, key * sum(left.values()) if rejected else key))
    return text


def logits_after(pair: Any, tokens: list[int], profile: Profile) -> Array:
    """The target's logits of every row of a fresh forward."""
    model = pair.target
    residuals = target.extend(model, target.Cache(model.config), np.array(tokens), profile)
    return target.logits(residuals[-1], model.norm, target.head(model), model.config.eps, profile).logits


def any_settings(profile: Profile, temperatures: tuple[float, ...] = (0.6, 1.3, 2.5)) -> st.SearchStrategy[Settings]:
    penalty = st.sampled_from([0.0, 0.7, -0.9, 1.5]) if profile is NINFER else st.just(0.0)
    return st.builds(
        Settings,
        drafts=st.integers(1, 5),
        max_new=st.integers(1, 12),
        public=st.just(PUBLIC),
        temperature=st.sampled_from(temperatures),
        seed=st.integers(0, 2**64 - 1),
        top_k=st.sampled_from([0, 1, 3, 19, 25]) if profile is not APRIL else st.just(0),
        top_p=st.sampled_from([1.0, 0.9, 0.4]) if profile is not APRIL else st.just(1.0),
        min_p=st.sampled_from([0.0, 0.05, 0.6]) if profile is NINFER else st.just(0.0),
        presence=penalty,
        frequency=penalty,
        allowed=st.sampled_from([None, *(tuple(int(id_ % 4 != rest) for id_ in range(PUBLIC)) for rest in range(4))]),
        grammar=st.sampled_from(GRAMMARS),
    )


KINDS = pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
BOTH = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])


@KINDS
@BOTH
@example_settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_request_follows_from_its_logits_the_rules_and_the_published_keys(
    profile: Profile, second: bool, data: st.DataObject, tiny: Build
) -> None:
    pair, asked = tiny(profile, draft_windows=WINDOWS, second=second), data.draw(any_settings(profile))
    rounds: list[engine.Round] = []
    tokens = engine.generate(pair.target, pair.draft, PROMPT, asked, profile, rounds.append).tokens
    assert len(tokens) == asked.max_new
    prefill = law_after(logits_after(pair, PROMPT, profile)[-1], (), asked, profile)
    assert tokens[0] == drawn(prefill, rng.draw(asked.seed, len(PROMPT), rng.PREFILL))
    assert tokens == replayed(rounds, tokens[0], asked, profile)[: asked.max_new]
    assert all(may_stand(asked, tokens[:place])[token] for place, token in enumerate(tokens))


@BOTH
@example_settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_plain_decoding_follows_from_the_same_rules(profile: Profile, data: st.DataObject, tiny: Build) -> None:
    pair, asked = tiny(profile), data.draw(any_settings(profile, (0.0, 0.6, 2.5)))
    tokens = engine.decode_plain(pair.target, PROMPT, asked, profile)
    rows = logits_after(pair, [*PROMPT, *tokens], profile)
    for place, token in enumerate(tokens):
        frontier = len(PROMPT) + place - 1
        key = (frontier, rng.DECODE) if place else (len(PROMPT), rng.PREFILL)
        assert token == drawn(law_after(rows[frontier], tokens[:place], asked, profile), rng.draw(asked.seed, *key))


@KINDS
@BOTH
@example_settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_greedy_requests_give_the_tokens_of_plain_decoding_under_any_mask_grammar_and_penalty(
    profile: Profile, second: bool, data: st.DataObject, tiny: Build
) -> None:
    pair, asked = tiny(profile, draft_windows=WINDOWS, second=second), data.draw(any_settings(profile, (0.0,)))
    done = engine.generate(pair.target, pair.draft, PROMPT, asked, profile)
    assert done.tokens == engine.decode_plain(pair.target, PROMPT, asked, profile)


@KINDS
@example_settings(max_examples=EXAMPLES)
@given(asked=any_settings(APRIL, (0.0, 9e-6, 0.6, 1.3, 2.5)))
def test_matched_requests_give_the_tokens_of_plain_decoding_at_the_same_seed(
    second: bool, asked: Settings, tiny: Build
) -> None:
    pair = tiny(APRIL, draft_windows=WINDOWS, second=second)
    done = engine.generate(pair.target, pair.draft, PROMPT, asked, APRIL)
    assert done.tokens == engine.decode_plain(pair.target, PROMPT, asked, APRIL)
    assert {len(row) for row in done.proposals} <= {asked.drafts}, "the April revision never shortens a block"


@pytest.mark.parametrize(("profile", "temperature"), [(NINFER, 0.0), (ZLAB, 0.0), (APRIL, 9e-6)])
@KINDS
def test_a_greedy_request_uses_no_uniform(
    profile: Profile, temperature: float, second: bool, tiny: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*keys: Any) -> Any:
        raise AssertionError(f"a uniform is drawn: {keys}")

    monkeypatch.setattr(rng, "uniform", none)
    pair, asked = tiny(profile, draft_windows=WINDOWS, second=second), Settings(3, 9, public=PUBLIC)
    greedy = engine.generate(pair.target, pair.draft, PROMPT, asked, profile).tokens
    cold = replace(asked, temperature=temperature, seed=5)
    assert engine.generate(pair.target, pair.draft, PROMPT, cold, profile).tokens == greedy


PENALTIES = [(0.0, 0.0), (6.0, 1.5), (10.0, 2.5), (-3.0, -2.0)]


@pytest.mark.parametrize(("presence", "frequency"), PENALTIES)
@pytest.mark.parametrize("grammar", [False, True], ids=["free", "grammar"])
def test_a_planted_draft_under_penalties_is_judged_as_plain_decoding_is(
    presence: float, frequency: float, grammar: bool, planted_pair: Callable[[Profile], Any]
) -> None:
    pair = planted_pair(NINFER)
    public, prompt = pair.plan.public, pair.plan.prompts[0]

    def rule(before: Sequence[int]) -> Array:
        return np.array([bool(len(before) % 5 or token % 2) for token in range(public)])

    asked = Settings(4, 50, public=public, presence=presence, frequency=frequency, grammar=rule if grammar else None)
    done = engine.generate(pair.target, pair.draft, prompt, asked, NINFER)
    assert done.tokens == engine.decode_plain(pair.target, prompt, asked, NINFER)
    assert set(done.accepted) >= {0, 2}
    free = engine.generate(pair.target, pair.draft, prompt, Settings(4, 50, public=public), NINFER)
    assert (done.tokens == free.tokens) == (presence == 0 and not grammar)


def test_the_prompt_is_not_punished_and_the_first_token_is(planted_pair: Callable[[Profile], Any]) -> None:
    pair = planted_pair(NINFER)
    asked = Settings(None, 2, public=pair.plan.public, presence=40.0)
    first, _ = engine.decode_plain(pair.target, pair.plan.prompts[0], Settings(None, 2, public=14), NINFER)
    # The whole vocabulary stands in the prompt, so counting it would change nothing; one token of it would.
    prompt = [*pair.plan.prompts[0]]
    assert first in prompt
    assert engine.decode_plain(pair.target, prompt, asked, NINFER)[0] == first
    forced = replace(asked, allowed=tuple(int(token == first or token == 2) for token in range(14)))
    assert engine.decode_plain(pair.target, prompt, forced, NINFER) == [first, 2]


@pytest.mark.parametrize("profile", [NINFER, ZLAB, APRIL], ids=lambda profile: profile.name)
@example_settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_stop_ends_a_sampled_text_where_it_first_stands(profile: Profile, data: st.DataObject, tiny: Build) -> None:
    pair, asked = tiny(profile, draft_windows=WINDOWS, second=True), data.draw(any_settings(profile))
    free = engine.generate(pair.target, pair.draft, PROMPT, asked, profile)
    stop = data.draw(st.sampled_from(free.tokens))
    done = engine.generate(pair.target, pair.draft, PROMPT, replace(asked, stop_ids=(stop,)), profile)
    assert done.tokens == free.tokens[: free.tokens.index(stop) + 1]


def test_sampled_rounds_reach_every_kind_of_end(tiny: Build) -> None:
    """The replays above hold for rounds without proposals, with a rejection, and with none; here is that they occur."""
    for profile in (NINFER, ZLAB):
        pair, rounds = tiny(profile, draft_windows=WINDOWS, second=True), list[engine.Round]()
        for seed in range(4):
            asked = Settings(4, 25, public=PUBLIC, temperature=1.0, seed=seed)
            engine.generate(pair.target, pair.draft, PROMPT, asked, profile, rounds.append)
        assert any(0 < round_.accepted < round_.extent for round_ in rounds)
        assert any(0 < round_.accepted == round_.extent for round_ in rounds)
        assert any(round_.extent == 0 for round_ in rounds) == (profile is NINFER)


@pytest.mark.parametrize("profile", [ZLAB, APRIL], ids=lambda profile: profile.name)
@pytest.mark.parametrize("spare", [0, 1, 2, 5])
def test_a_full_cache_ends_a_sampled_request_too(profile: Profile, spare: int, tiny: Build) -> None:
    pair = tiny(profile)
    prompt = [token % PUBLIC for token in range(pair.target.config.max_positions - spare)]
    asked = Settings(3, 50, public=PUBLIC, temperature=0.8, seed=3)
    assert len(engine.generate(pair.target, pair.draft, prompt, asked, profile).tokens) == spare + 1


def test_the_authors_proposals_above_zero_are_draws_and_not_argmaxes(tiny: Build) -> None:
    pair, rounds = tiny(ZLAB), list[engine.Round]()
    asked = Settings(4, 30, public=PUBLIC, temperature=1.5, top_k=6, seed=1)
    engine.generate(pair.target, pair.draft, PROMPT, asked, ZLAB, rounds.append)
    taken = [round_.proposal for round_ in rounds if round_.proposal is not None]
    assert all(isinstance(proposal, engine.Drawn) for proposal in taken)
    argmaxes = [np.argmax(proposal.logits[:, :PUBLIC], axis=1).tolist() for proposal in taken]  # type: ignore[union-attr]
    assert sum(proposal.proposals.tolist() != best for proposal, best in zip(taken, argmaxes, strict=True)) > 10
    assert {int((law > 0).sum()) for proposal in taken for law in proposal.q} == {6}  # type: ignore[union-attr]


def test_a_grammar_is_asked_about_every_row_that_can_be_reached_and_no_other(
    planted_pair: Callable[[Profile], Any],
) -> None:
    pair, seen = planted_pair(NINFER), list[tuple[int, ...]]()
    rounds: list[engine.Round] = []
    prompt, public = pair.plan.prompts[0], pair.plan.public
    forbidden = pair.plan.continuation(prompt, 12)[7]

    def grammar(before: Sequence[int]) -> Array:
        seen.append(tuple(before))
        assert forbidden not in before, "a proposal that was forbidden is followed no further"
        return np.array([token != forbidden for token in range(public)])

    asked = Settings(4, 24, public=public, grammar=grammar)
    tokens = engine.generate(pair.target, pair.draft, prompt, asked, NINFER, rounds.append).tokens
    expected, text = [()], tokens[:1]
    for round_ in rounds:
        proposals = [] if round_.proposal is None else round_.proposal.proposals[: round_.extent].tolist()
        reach = proposals.index(forbidden) if forbidden in proposals else len(proposals)
        expected += [(*text, *proposals[:count]) for count in range(reach + 1)]
        text = [*text, *round_.licensed.tolist()]
    assert seen == expected
    assert any(forbidden in round_.proposal.proposals for round_ in rounds if round_.proposal is not None)


def inputs_of(pair: Any, **changes: Any) -> dict[str, Any]:
    tensors = {f"target.{name}": values for name, values in pair.target.weights.items()}
    return tensors | {f"draft.{name}": values for name, values in pair.draft.weights.items()} | {
        "target_config": np.frombuffer(pair.target_text, np.uint8),
        "draft_config": np.frombuffer(pair.draft_text, np.uint8),
        "prompt": np.array(PROMPT), "drafts": 3, "max_new": 8, "stop_ids": np.array([], np.int32), "public": PUBLIC,
        "temperature": 1.25, "seed": np.uint64(2**64 - 1),
    } | changes  # fmt: skip


FREE = {"top_k": 0, "min_p": 0.0, "top_p": 1.0, "presence": 0.0, "frequency": 0.0, "allowed": np.ones(31, np.uint8)}


@BOTH
def test_the_op_of_a_sampled_request_is_that_of_a_request_where_nothing_is_asked_for(
    profile: Profile, tiny: Build
) -> None:
    pair = tiny(profile)
    given_ = inputs_of(pair)
    plain, sampled = operations.run("engine.generate", given_, profile), operations.run(
        "engine.sample", given_ | FREE, profile
    )  # fmt: skip
    assert list(sampled) == ["proposals", "tokens", "accepted"]
    assert {name: values.tolist() for name, values in sampled.items()} == {
        name: values.tolist() for name, values in plain.items()
    }


def test_the_op_hands_every_setting_on(tiny: Build) -> None:
    pair, allowed = tiny(NINFER), (np.arange(31) % 5 != 1).astype(np.uint8)
    asked = {"top_k": 7, "min_p": 0.5, "top_p": 0.875, "presence": 0.75, "frequency": -0.25, "allowed": allowed}
    got = operations.run("engine.sample", inputs_of(pair) | asked, NINFER)
    settings = Settings(
        3, 8, public=PUBLIC, temperature=1.25, seed=2**64 - 1, **(asked | {"allowed": allowed[:PUBLIC]})
    )  # fmt: skip
    assert got["tokens"].tolist() == engine.generate(pair.target, pair.draft, PROMPT, settings, NINFER).tokens
    free = operations.run("engine.sample", inputs_of(pair) | FREE, NINFER)["tokens"].tolist()
    for name, value in {"top_k": 1, "min_p": 1.0, "top_p": 0.0, "presence": 3.0, "frequency": -3.0}.items():
        other = operations.run("engine.sample", inputs_of(pair) | FREE | {name: value}, NINFER)["tokens"].tolist()
        assert other != free, name


MASK = "expected 0 or 1 for each of the 31 public ids"
WRONG: list[tuple[Profile, dict[str, Any], type[DFlashError], str]] = [
    (NINFER, {"top_k": 2.0}, RequestError, "top_k is 2.0, expected an integer"),
    (NINFER, {"top_k": 2**31}, RequestError, "top_k is 2147483648, expected -2147483648 to 2147483647"),
    (ZLAB, {"top_k": -1}, RequestError, "top_k is -1, expected 0 to 2147483647"),
    (NINFER, {"top_p": "1"}, RequestError, "top_p is '1', expected a number"),
    (NINFER, {"top_p": True}, RequestError, "top_p is True, expected a number"),
    (NINFER, {"top_p": 1.5}, RequestError, "top_p is 1.5, expected 0 to 1"),
    (NINFER, {"top_p": float("nan")}, RequestError, "top_p is nan, expected 0 to 1"),
    (ZLAB, {"top_p": 0}, RequestError, "top_p is 0, expected above 0 and at most 1"),
    (NINFER, {"min_p": -0.1}, RequestError, "min_p is -0.1, expected 0 to 1"),
    (NINFER, {"min_p": None}, RequestError, "min_p is None, expected a number"),
    (ZLAB, {"min_p": 0.1}, RequestError, "min_p is 0.1, expected 0.0: profile zlab has no such filter"),
    (APRIL, {"top_k": 5}, RequestError, "top_k is 5, expected 0: profile zlab-2026-04 has no such filter"),
    (NINFER, {"presence": float("inf")}, RequestError, "presence is inf, expected a finite number of F32"),
    (NINFER, {"frequency": float("nan")}, RequestError, "frequency is nan, expected a finite number of F32"),
    (NINFER, {"frequency": -(10**400)}, RequestError, "expected a finite number of F32"),
    (NINFER, {"presence": "0"}, RequestError, "presence is '0', expected a number"),
    (ZLAB, {"presence": 0.5}, RequestError, "presence is 0.5, expected 0: profile zlab has no penalties"),
    (ZLAB, {"frequency": -0.5}, RequestError, "frequency is -0.5, expected 0: profile zlab has no penalties"),
    (NINFER, {"allowed": [1] * 30}, RequestError, f"allowed is int64 of shape [30], {MASK}"),
    (NINFER, {"allowed": [2] * 31}, RequestError, f"allowed is int64 of shape [31], {MASK}"),
    (NINFER, {"allowed": [1.0] * 31}, RequestError, f"allowed is float64 of shape [31], {MASK}"),
    (NINFER, {"allowed": [[1], [1, 1]]}, RequestError, "allowed is list, expected an array on the host"),
    (NINFER, {"allowed": np.zeros(31, bool)}, TensorError, "logits row 0: the largest is -inf"),
    (NINFER, {"grammar": lambda before: [1] * 32}, RequestError, f"grammar is int64 of shape [32], {MASK}"),
    (NINFER, {"grammar": lambda before: [True] * 31 if len(before) < 3 else [False] * 31}, TensorError, "is -inf"),
]


@pytest.mark.parametrize(("profile", "wrong", "error", "message"), WRONG, ids=range(len(WRONG)))
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_setting_that_cannot_be_is_refused_by_name_at_every_temperature(
    profile: Profile, wrong: dict[str, Any], error: type[DFlashError], message: str, temperature: float, tiny: Build
) -> None:
    pair, asked = tiny(profile), Settings(3, 6, temperature=temperature, **wrong)
    with pytest.raises(error, match=re.escape(message)):
        engine.generate(pair.target, pair.draft, PROMPT, asked, profile)
    with pytest.raises(error, match=re.escape(message)):
        engine.decode_plain(pair.target, PROMPT, asked, profile)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@BOTH
def test_a_target_that_turns_nan_is_refused_and_no_token_comes_of_it(
    profile: Profile, temperature: float, tiny: Build
) -> None:
    pair = tiny(profile)
    spoilt = dict(pair.target.weights)
    spoilt["model.norm.weight"] = np.where(np.arange(20) == 3, np.nan, spoilt["model.norm.weight"])
    asked = Settings(3, 6, public=PUBLIC, temperature=temperature)
    with pytest.raises(TensorError, match="logits row 0: the largest is nan"):
        engine.generate(models.Target(pair.target.config, spoilt), pair.draft, PROMPT, asked, profile)


def test_settings_may_be_numpys_numbers(tiny: Build) -> None:
    pair = tiny(NINFER)
    scalars: Any = np  # its numbers are no `int` or `float` to a type checker
    plain = Settings(3, 8, (), PUBLIC, 0.5, 9, (), 5, 0.75, 0.125, 1.5, -0.5, tuple([1, 0, 1] * 10))
    number = replace(
        plain, top_k=scalars.int64(5), top_p=scalars.float32(0.75), min_p=scalars.float64(0.125),
        presence=scalars.float32(1.5), frequency=scalars.float16(-0.5), allowed=np.array([1, 0, 1] * 10) == 1,
    )  # fmt: skip
    expected = engine.generate(pair.target, pair.draft, PROMPT, plain, NINFER)
    assert engine.generate(pair.target, pair.draft, PROMPT, number, NINFER) == expected
