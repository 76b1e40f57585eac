"""Whatever the width, the chunks and the profile: the tokens are plain decoding's, and ends are where they belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_accelerated import Engine, Round
from dflash_vectors.planted import Planted

Load = Callable[..., Engine]
Pairs = Callable[[str], tuple[Path, Planted]]

PROFILES: dict[str, dict[str, Any]] = {
    "zlab": {},
    "zlab-bf16": {"dtype": torch.bfloat16},
    "ninfer": {"profile": "ninfer", "dtype": torch.bfloat16},
}
PROMPT = [11, 3, 47, 29, 5, 61, 2, 2, 19, 37, 41, 7, 13]


@pytest.mark.parametrize("drafts", [1, 4, 15])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("preset", ["standard", "tied"])
def test_any_width_gives_the_tokens_and_counts_that_the_pair_was_planted_for(
    planted_pair: Pairs, load: Load, preset: str, profile: str, drafts: int
) -> None:
    folder, plan = planted_pair(preset)
    engine = load(folder, draft_tokens=drafts, public_tokens=plan.public, **PROFILES[profile])
    counts: Counter[int] = Counter()
    for prompt in plan.prompts:
        made = engine.generate(prompt, 61)
        assert list(made.tokens) == plan.continuation(prompt, 61)
        assert list(made.accepted[:-1]) == plan.expected_accepted(prompt, drafts, 61)[: len(made.accepted) - 1]
        counts.update(made.accepted[:-1])
    print(f"{preset} {profile} K={drafts} accepted: {dict(sorted(counts.items()))}")
    assert counts[0] > 0
    assert counts[drafts] > 0


@pytest.mark.parametrize("drafts", [1, 2, 5, 16])
def test_a_draft_that_is_never_right_costs_rounds_and_no_token(random_pair: Path, load: Load, drafts: int) -> None:
    engine = load(random_pair, draft_tokens=drafts)
    made, plain = engine.generate(PROMPT, 43), engine.decode_plain(PROMPT, 43)
    assert made.tokens == plain.tokens
    assert sum(made.accepted) < len(made.accepted)
    assert plain.accepted == (0,) * 42


@pytest.mark.parametrize("chunk", [1, 5, 12, 13, 400])
def test_a_prompt_in_chunks_gives_the_tokens_and_proposals_of_the_whole(
    planted_pair: Pairs, load: Load, chunk: int
) -> None:
    folder, plan = planted_pair("standard")
    engine = load(folder, draft_tokens=7)
    assert engine.generate(plan.prompts[1], 37, prefill_chunk=chunk) == engine.generate(plan.prompts[1], 37)


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
@pytest.mark.parametrize("budget", [1, 2, 4, 5, 6, 7])
def test_a_budget_is_met_exactly_and_the_last_blocks_shrink(
    planted_pair: Pairs, load: Load, profile: str, budget: int
) -> None:
    folder, plan = planted_pair("small")
    engine = load(folder, draft_tokens=4, **PROFILES[profile])
    made = engine.generate(plan.prompts[0], budget)
    assert list(made.tokens) == plan.continuation(plan.prompts[0], budget)
    assert made.finish_reason == "length"
    left = budget - 1
    for accepted, proposals in zip(made.accepted, made.proposals, strict=True):
        assert len(proposals) == min(4, left if profile == "zlab" else left - 1)
        left -= accepted + 1


def test_a_last_round_without_proposals_is_a_plain_step(random_pair: Path, load: Load) -> None:
    engine = load(random_pair, draft_tokens=3, profile="ninfer", dtype=torch.bfloat16)
    made = engine.generate(PROMPT, 2)
    assert made.proposals == ((),)
    assert made.accepted == (0,)
    assert made.tokens == engine.decode_plain(PROMPT, 2).tokens


def test_a_stop_id_inside_a_round_is_the_last_token(planted_pair: Pairs, load: Load) -> None:
    folder, plan = planted_pair("standard")
    prompt, engine = plan.prompts[0], load(folder, draft_tokens=15)
    expected = plan.continuation(prompt, 30)
    stop = expected[9]
    first = expected.index(stop)
    made = engine.generate(prompt, 200, stop_ids=[stop])
    assert list(made.tokens) == expected[: first + 1]
    assert made.finish_reason == "stop"
    assert made.accepted[-1] > len(made.tokens) - 2


def test_of_two_stop_ids_in_one_round_the_first_ends_it(planted_pair: Pairs, load: Load) -> None:
    folder, plan = planted_pair("standard")
    expected = plan.continuation(plan.prompts[0], 30)
    made = load(folder, draft_tokens=15).generate(plan.prompts[0], 200, stop_ids=[expected[11], expected[8]])
    assert list(made.tokens) == expected[:9]
    assert made.accepted[-1] > 11 - 2


def test_a_first_token_that_stops_ends_before_any_proposal(planted_pair: Pairs, load: Load) -> None:
    folder, plan = planted_pair("standard")
    prompt, engine = plan.prompts[0], load(folder, draft_tokens=15)
    stop = plan.continuation(prompt, 1)
    made = engine.generate(prompt, 50, stop_ids=stop)
    assert (list(made.tokens), made.accepted, made.proposals, made.finish_reason) == (stop, (), (), "stop")


def test_a_rejected_proposal_that_is_a_stop_id_ends_nothing(planted_pair: Pairs, load: Load) -> None:
    folder, plan = planted_pair("standard")
    engine = load(folder, draft_tokens=15)
    made = engine.generate(plan.prompts[0], 80)
    assert engine.stop_ids[0] in {token for proposals in made.proposals for token in proposals}
    assert made.finish_reason == "length"


def test_the_targets_own_stop_ids_hold_unless_a_request_names_others(
    write_random_pair: Callable[..., Path], load: Load, tmp_path: Path
) -> None:
    silent = load(write_random_pair(tmp_path / "silent", target={"eos_token_id": None}), draft_tokens=2)
    tokens = silent.generate(PROMPT, 20).tokens
    engine = load(write_random_pair(tmp_path / "own", target={"eos_token_id": tokens[6]}), draft_tokens=2)
    assert engine.generate(PROMPT, 20).tokens == tokens[: tokens.index(tokens[6]) + 1]
    assert engine.generate(PROMPT, 20, stop_ids=[]).tokens == tokens


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
@pytest.mark.parametrize("room", [0, 1, 4])
def test_a_full_context_ends_the_answer_one_token_past_it(
    planted_pair: Pairs, load: Load, profile: str, room: int
) -> None:
    folder, plan = planted_pair("small")
    prompt = plan.prompts[0]
    engine = load(folder, draft_tokens=4, max_context=len(prompt) + room, **PROFILES[profile])
    made = engine.generate(prompt, 100)
    assert list(made.tokens) == plan.continuation(prompt, room + 1)
    assert made.finish_reason == "capacity"


def test_a_stream_yields_the_rounds_of_generate_as_they_end(planted_pair: Pairs, load: Load) -> None:
    folder, plan = planted_pair("standard")
    engine = load(folder, draft_tokens=15)
    made = engine.generate(plan.prompts[2], 50)
    rounds = list(engine.stream(plan.prompts[2], 50))
    assert rounds[0] == Round(made.tokens[:1])
    assert tuple(token for each in rounds for token in each.tokens) == made.tokens
    assert tuple(each.proposals for each in rounds[1:]) == made.proposals
    assert [each.finish_reason for each in rounds] == [None] * (len(rounds) - 1) + ["length"]


def test_streams_of_one_engine_read_in_turns_do_not_mix(planted_pair: Pairs, load: Load) -> None:
    folder, plan = planted_pair("standard")
    engine = load(folder, draft_tokens=6)
    streams = [engine.stream(prompt, 29) for prompt in plan.prompts]
    tokens: list[list[int]] = [[] for _ in streams]
    for _ in range(29):
        for stream, own in zip(streams, tokens, strict=True):
            own.extend(token for each in [next(stream, None)] if each for token in each.tokens)
    assert tokens == [plan.continuation(prompt, 29) for prompt in plan.prompts]


def test_closing_a_stream_early_leaves_the_engine_as_it_was(planted_pair: Pairs, load: Load) -> None:
    folder, plan = planted_pair("standard")
    engine = load(folder, draft_tokens=6)
    stream = engine.stream(plan.prompts[0], 40)
    next(stream)
    next(stream)
    stream.close()
    assert list(engine.generate(plan.prompts[0], 40).tokens) == plan.continuation(plan.prompts[0], 40)
