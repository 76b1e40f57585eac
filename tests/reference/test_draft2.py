"""The DFlash2 draft: its branches, its context, its block, and whole requests."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dflash_reference import (
    commit,
    context,
    conv,
    draft,
    draft2,
    engine,
    head,
    layer,
    models,
    num,
    operations,
    processing,
    ring,
    rng,
    selector,
)
from dflash_reference import target as target_model
from dflash_reference.names import Position, TokenId
from dflash_reference.request import Settings
from dflash_spec.errors import ConfigError, UnsupportedConfigError
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from dflash_vectors import inputs
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
PROFILES = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
PROMPT = [3, 17, 29, 5, 11, 23, 7]
WINDOWS = (4, 4)
Build = Callable[..., Any]
EXAMPLES = 12
"""Whole requests take 0.1 s each."""


def held_rows(pair: Any, profile: Profile, rows: int) -> context.Context:
    """A context of `rows` rows."""
    config = pair.draft.config
    features = inputs.normal_like(
        "draft2/features", (rows, len(config.taps) * config.hidden_size), 1.0, profile.dtypes["ACT"]
    )
    held = context.Context(config)
    context.materialise(pair.draft, held, features, np.arange(rows), profile)
    return held


def propose(
    pair: Any, profile: Profile, drafts: int, extent: int, temperature: float = 0.0, seed: int = 5
) -> draft2.Proposal:
    """A proposal after nine context rows."""
    head_rows = target_model.head(pair.target)
    keys = rng.proposal_keys(9, drafts, NINFER).keys.T
    u = rng.to_uniform(rng.draw_key(seed, *keys))
    live = drafts if profile is NINFER else extent
    return draft2.propose(
        pair.draft, held_rows(pair, profile, 9), pair.target.embedding, head_rows, TokenId(3), Position(9),
        drafts, extent, 30, temperature, u[:live], profile,
    )  # fmt: skip


@PROFILES
@given(base=st.integers(0, 5000))
def test_prepared_rows_are_projected_as_they_are_and_then_head_normed_and_rotated(profile: Profile, base: int) -> None:
    dtype = profile.dtypes["ACT"]
    prepared, positions = inputs.uniform("draft2/p", (3, 8), -2, 2, dtype), np.array([base, base + 1, base + 7])
    weights = [inputs.weights(f"draft2/{name}", (12, 8), dtype) for name in "qkv"]
    norms = [inputs.norm_weights(f"draft2/{name}n", (6,), dtype) for name in "qk"]
    given_: Any = (prepared, *weights, *norms, positions, 100.0, 1e-6, profile)
    got = draft2.qkv(*given_)
    raws = [num.round_to(num.contract(prepared, w), dtype).reshape(3, 2, 6) for w in weights]
    assert got.v.tolist() == raws[2].tolist()
    for raw, norm, kept, rotated in zip(raws, norms, (got.q_raw, got.k_raw), (got.q, got.k), strict=False):
        normed = layer.head_norm(raw, norm, 1e-6)
        if profile is ZLAB:
            normed = num.round_to(normed, dtype)
        assert kept.tolist() == raw.tolist()
        assert rotated.tolist() == num.round_to(layer.rope(normed, positions, 100.0, profile), dtype).tolist()


def test_the_authors_heads_are_those_of_dflash_and_the_engines_skip_one_rounding() -> None:
    for profile, alike in ((ZLAB, True), (NINFER, False)):
        dtype = profile.dtypes["ACT"]
        x, weights = inputs.uniform("draft2/x", (16, 8), -2, 2, dtype), inputs.weights("draft2/w", (12, 8), dtype)
        norm = inputs.norm_weights("draft2/n", (6,), dtype)
        given_: Any = (weights, weights, weights, norm, norm, np.arange(16), 100.0, 1e-6, profile)
        first = layer.qkv(x, np.ones(8), *given_)
        second = draft2.qkv(first.n, *given_)
        assert (first.q.tolist() == second.q.tolist()) == alike
        assert first.v.tolist() == second.v.tolist()


@PROFILES
def test_the_product_reads_gate_through_silu_and_up_as_it_is(profile: Profile) -> None:
    got = draft2.mlp(
        np.array([[2.0, 3.0]]), np.array([[0.0, 0.0], [64.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]), profile
    )
    assert got.product.tolist() == [[0.0, 384.0]]


@pytest.mark.parametrize("chunks", [[11], [1, 4, 6], [5, 5, 1]], ids=["whole", "uneven", "even"])
def test_the_ring_holds_the_rows_that_the_context_shows_inside_the_window(chunks: list[int], tiny: Build) -> None:
    pair, capacity = tiny(NINFER, draft_windows=WINDOWS, second=True), 4
    model, config = pair.draft, pair.draft.config
    held = held_rows(pair, NINFER, sum(chunks))
    features = inputs.normal_like("draft2/features", (sum(chunks), 40), 1.0, "BF16")
    c = context.feature(features, model.fc, model.hidden_norm, config.eps, NINFER).c
    stacked = [np.stack([getattr(w, name) for w in model.layers]) for name in ("k_proj", "v_proj", "k_norm")]
    key = value = np.zeros((1, config.layers, capacity, config.kv_heads, config.head_dim))
    frontier = 0
    for chunk in chunks:
        at = np.arange(frontier, frontier + chunk)
        key, value, after = ring.materialize(
            c[at][np.newaxis], at[np.newaxis], np.array([chunk]), np.array([0]), stacked[0], stacked[1],
            stacked[0], stacked[1], stacked[2], config.theta, config.eps, key, value, np.array([frontier]), NINFER,
        )  # fmt: skip
        frontier = int(after[0])
    assert frontier == held.length
    for index in range(config.layers):
        for position in range(frontier - capacity, frontier):
            assert key[0, index, position % capacity].tolist() == held.keys[index].view[position].tolist()
            assert value[0, index, position % capacity].tolist() == held.values[index].view[position].tolist()


@PROFILES
def test_context_rows_are_not_convolved(profile: Profile, tiny: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = tiny(profile, draft_windows=WINDOWS, second=True)
    plain = [rows.view.tolist() for rows in held_rows(pair, profile, 5).keys]
    monkeypatch.setattr(conv, "convolve", lambda *_: pytest.fail("a context row was convolved"))
    assert [rows.view.tolist() for rows in held_rows(pair, profile, 5).keys] == plain


@PROFILES
def test_a_forward_leaves_the_context_as_it_was(profile: Profile, tiny: Build) -> None:
    pair = tiny(profile, draft_windows=WINDOWS, second=True)
    held = held_rows(pair, profile, 9)
    before = [rows.view.copy() for rows in (*held.keys, *held.values, held.positions)]
    x = pair.target.embedding[[3, 30, 30]]
    draft.forward(pair.draft, held, x, np.arange(9, 12), profile, draft2.decoder_layer)
    after = [rows.view for rows in (*held.keys, *held.values, held.positions)]
    assert [rows.tolist() for rows in after] == [rows.tolist() for rows in before]


@PROFILES
def test_nothing_of_a_block_reaches_the_next_one(profile: Profile, tiny: Build) -> None:
    pair = tiny(profile, draft_windows=WINDOWS, second=True)
    held, x = held_rows(pair, profile, 9), pair.target.embedding[[3, 30, 30, 30]]
    alone = draft.forward(pair.draft, held, x, np.arange(9, 13), profile, draft2.decoder_layer)
    draft.forward(pair.draft, held, -3 * x[:2], np.arange(9, 11), profile, draft2.decoder_layer)
    again = draft.forward(pair.draft, held, x, np.arange(9, 13), profile, draft2.decoder_layer)
    assert again.hidden.tolist() == alone.hidden.tolist()


def test_a_whole_block_is_computed_and_walked_whatever_the_extent(tiny: Build) -> None:
    pair = tiny(NINFER, draft_windows=WINDOWS, second=True)
    tail, whole, narrow = (propose(pair, NINFER, drafts, extent, 1.0) for drafts, extent in ((5, 2), (5, 5), (2, 2)))
    assert tail.hidden.shape[0] == len(tail.proposals) == 5
    assert tail.hidden.tolist() == whole.hidden.tolist()
    assert tail.proposals.tolist() == whole.proposals.tolist()
    assert tail.hidden[:2].tolist() != narrow.hidden.tolist()


def test_the_authors_tail_block_is_the_block_of_its_live_rows(tiny: Build) -> None:
    pair = tiny(ZLAB, draft_windows=WINDOWS, second=True)
    tail, narrow = propose(pair, ZLAB, 5, 2), propose(pair, ZLAB, 2, 2)
    assert tail.hidden.tolist() == narrow.hidden.tolist()
    assert tail.hidden.shape[0] == len(tail.proposals) == 2


@PROFILES
@pytest.mark.parametrize("temperature", [0.0, 0.75])
def test_a_proposal_is_the_walk_of_the_hidden_rows_after_the_final_norm(
    profile: Profile, temperature: float, tiny: Build
) -> None:
    pair = tiny(profile, draft_windows=WINDOWS, second=True)
    got = propose(pair, profile, 4, 4, temperature)
    best = head.top(got.hidden, target_model.head(pair.target), np.arange(31), 30, 1.0, 0.0, 6, profile)
    g = selector.project(got.hidden, pair.draft.selector.projection, profile).g
    u = rng.to_uniform(rng.draw_key(5, *rng.proposal_keys(9, 4, NINFER).keys.T))
    books = pair.draft.selector.predecessor, pair.draft.selector.successor
    walk = selector.walk(best.candidates, best.unary, g, *books, TokenId(3), temperature, u, profile)
    assert got.candidates.tolist() == best.candidates.tolist()
    assert (got.proposals.tolist(), got.q.tolist()) == (walk.proposals.tolist(), walk.q.tolist())
    assert got.candidates.max() < 30


@PROFILES
@pytest.mark.parametrize("extent", [0, 2, 4])
def test_the_whole_op_names_its_stages_and_rows(profile: Profile, extent: int, tiny: Build) -> None:
    pair = tiny(profile, draft_windows=WINDOWS, second=True)
    rows = 4 if profile is NINFER else extent
    features = inputs.normal_like("draft2/features", (9, 40), 1.0, profile.dtypes["ACT"])
    given_ = {f"draft.{name}": values for name, values in pair.draft.weights.items()} | {
        "config": inputs.text(pair.draft_text), "target_config": inputs.text(pair.target_text),
        "embedding": pair.target.embedding, "head": target_model.head(pair.target), "features": features,
        "anchor": 3, "drafts": 4, "extent": extent, "public": 30, "temperature": np.float32(0.0), "u": np.zeros(rows),
    }  # fmt: skip
    got = operations.run("draft2.block", given_, profile)
    assert list(got) == ["c", "layer.0", "layer.1", "hidden", "candidates", "proposals", "q"]
    assert got["layer.1"].shape[0] == rows + 1
    assert got["hidden"].shape[0] == len(got["proposals"]) == rows
    if rows:
        assert got["proposals"].tolist() == propose(pair, profile, 4, extent).proposals.tolist()


def test_a_draft_of_one_backend_does_not_run_as_the_other(tiny: Build) -> None:
    first, second = tiny(ZLAB), tiny(ZLAB, draft_windows=WINDOWS, second=True)
    with pytest.raises(ConfigError, match="Draft: a config of DFlash2DraftModel"):
        models.Draft(second.draft.config, second.draft.weights)
    with pytest.raises(ConfigError, match="Draft2: a config of DFlashDraftModel"):
        models.Draft2(first.draft.config, first.draft.weights)
    for pair, run in ((second, draft.block), (first, draft2.block)):
        own: dict[str, Any] = {"temperature": 0.0, "u": np.zeros(2)} if run is draft2.block else {}
        with pytest.raises(UnsupportedConfigError, match="architectures"):
            run(
                config=inputs.text(pair.draft_text), target_config=inputs.text(pair.target_text),
                draft=pair.draft.weights, embedding=pair.target.embedding, head=target_model.head(pair.target),
                features=np.zeros((3, 40)), anchor=3, drafts=2, extent=2, public=30, profile=ZLAB, **own,
            )  # fmt: skip


@PROFILES
@example_settings(max_examples=EXAMPLES)
@given(drafts=st.integers(1, 6), max_new=st.integers(1, 12), start=st.integers(0, 23))
def test_any_width_gives_the_tokens_of_plain_greedy_decoding(
    profile: Profile, drafts: int, max_new: int, start: int, tiny: Build
) -> None:
    pair = tiny(profile, draft_windows=WINDOWS, second=True)
    prompt = [(token + start) % 30 for token in PROMPT]
    plain = engine.decode_plain(pair.target, prompt, Settings(None, max_new), profile)
    assert engine.generate(pair.target, pair.draft, prompt, Settings(drafts, max_new), profile).tokens == plain


def drawn(weights: dict[int, float], goal: float) -> int:
    """The first token whose cumulative weight exceeds the goal; the goals of this test always find one."""
    total = 0.0
    for token, weight in weights.items():
        total += weight
        if goal < total:
            return token
    raise AssertionError(f"{goal} of {total}")


def replay(rounds: list[engine.Round], first: TokenId, settings: Settings) -> list[int]:
    """The tokens that the recorded logits and laws and the published keys give, by the rules in words."""
    tokens, seed = [int(first)], settings.seed
    for round_ in rounds:
        support, p = processing.distribution(round_.target_logits, settings.temperature, 30, NINFER)
        wanted = [dict(zip(ids.tolist(), row.tolist(), strict=True)) for ids, row in zip(support, p, strict=True)]
        accepted, offered = 0, {}
        while accepted < round_.extent:
            assert isinstance(round_.proposal, draft2.Proposal)
            candidates, q = round_.proposal.candidates[accepted], round_.proposal.q[accepted]
            offered = dict(zip(candidates.tolist(), q.tolist(), strict=True))
            token = drawn(offered, rng.draw(seed, round_.frontier + accepted, rng.PROPOSAL))
            u, chance = rng.draw(seed, round_.frontier + accepted + 1, rng.ACCEPT), wanted[accepted].get(token, 0.0)
            if not (chance >= offered[token] or u * offered[token] < chance):
                break
            tokens.append(token)
            accepted, offered = accepted + 1, {}
        left = {token: max(weight - offered.get(token, 0.0), 0.0) for token, weight in wanted[accepted].items()}
        u = rng.draw(seed, round_.frontier + accepted + 1, rng.CORRECTION if offered else rng.BONUS)
        tokens.append(drawn(left, u * (sum(left.values()) if offered else 1.0)))
    return tokens


@example_settings(max_examples=EXAMPLES)
@given(drafts=st.integers(1, 5), seed=st.integers(0, 2**64 - 1), temperature=st.sampled_from([0.25, 0.75, 1.5]))
def test_sampled_rounds_follow_the_published_keys_and_the_law_that_drew(
    drafts: int, seed: int, temperature: float, tiny: Build
) -> None:
    pair = tiny(NINFER, draft_windows=WINDOWS, second=True)
    rounds: list[engine.Round] = []
    settings = Settings(drafts, 9, public=30, temperature=temperature, seed=seed)
    done = engine.generate(pair.target, pair.draft, PROMPT, settings, NINFER, rounds.append)
    assert done.tokens[0] == engine.decode_plain(pair.target, PROMPT, settings, NINFER)[0]
    assert replay(rounds, done.tokens[0], settings)[: len(done.tokens)] == done.tokens


def test_sampled_proposals_of_two_unlike_models_are_accepted_at_every_count(tiny: Build) -> None:
    pair = tiny(NINFER, draft_windows=WINDOWS, second=True)
    settings = Settings(3, 40, public=30, temperature=2.0, seed=11)
    done = engine.generate(pair.target, pair.draft, PROMPT, settings, NINFER)
    assert set(done.accepted) >= {0, 1, 2}
    assert done == engine.generate(pair.target, pair.draft, PROMPT, settings, NINFER)


def test_a_budgets_tail_keeps_the_block_and_verifies_less_of_it(tiny: Build) -> None:
    for profile, widths in ((NINFER, [3, 3, 3, 3, 0]), (ZLAB, [3, 3, 3, 2, 1])):
        pair = tiny(profile, draft_windows=WINDOWS, second=True)
        rounds: list[engine.Round] = []
        done = engine.generate(pair.target, pair.draft, PROMPT, Settings(3, 6), profile, rounds.append)
        assert done.accepted == [0] * 5, "this pair accepts nothing"
        assert [0 if r.proposal is None else len(r.proposal.proposals) for r in rounds] == widths
        extents = [3, 3, 2, 1, 0] if profile is NINFER else [3, 3, 3, 2, 1]
        assert [len(row) for row in done.proposals] == [r.extent for r in rounds] == extents
        assert [len(r.target_logits) - 1 for r in rounds] == extents, "the target judges no more than it verifies"


def test_every_round_proposes_from_the_rows_that_are_committed(tiny: Build) -> None:
    pair = tiny(NINFER, draft_windows=WINDOWS, second=True)
    rounds: list[engine.Round] = []
    settings = Settings(3, 30, public=30, temperature=2.0, seed=11)
    done = engine.generate(pair.target, pair.draft, PROMPT, settings, NINFER, rounds.append)
    text = np.array(PROMPT + done.tokens)
    plain = target_model.prefill(
        pair.target, target_model.Cache(pair.target.config), text, [len(text)], pair.draft.config.taps, NINFER
    )
    covered = commit.pending(plain.features, Position(0), 0, NINFER).context_frontier
    for round_ in rounds:
        assert round_.features.tolist() == plain.features[covered : covered + len(round_.features)].tolist()
        covered += len(round_.features)
        assert covered == round_.frontier


def test_the_engine_reads_the_backend_from_the_drafts_config(tiny: Build) -> None:
    pair = tiny(NINFER, draft_windows=WINDOWS, second=True)
    given_: dict[str, Any] = {f"draft.{name}": values for name, values in pair.draft.weights.items()}
    given_ |= {f"target.{name}": values for name, values in pair.target.weights.items()} | {
        "target_config": inputs.text(pair.target_text), "draft_config": inputs.text(pair.draft_text),
        "prompt": np.array(PROMPT), "drafts": 3, "max_new": 8, "stop_ids": np.array([], np.int32), "public": 30,
        "temperature": np.float32(2.0), "seed": np.uint64(11),
    }  # fmt: skip
    got: dict[str, Array] = operations.run("engine.generate", given_, NINFER)
    settings = Settings(3, 8, public=30, temperature=2.0, seed=11)
    done = engine.generate(pair.target, pair.draft, PROMPT, settings, NINFER)
    assert got["tokens"].tolist() == done.tokens
    assert [row[row >= 0].tolist() for row in got["proposals"]] == done.proposals
