"""New targets and drafts plug in through the protocols, and joined forwards keep sequences apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from dflash_accelerated import Engine, Numerics, RequestError, StateError, TensorError
from dflash_accelerated.chain import ChainOrchestrator
from dflash_accelerated.images import Image
from dflash_accelerated.ops.head import Candidates
from dflash_accelerated.protocols import (
    Block,
    ContextRows,
    Draft,
    LendingVocabulary,
    LogitRows,
    Orchestrator,
    Proposal,
    Segment,
    SequenceState,
    Target,
    TargetStep,
    Vocabulary,
)
from dflash_accelerated.requests import Request, Round, Running
from dflash_accelerated.settings import Sampling
from dflash_spec.registry import load_profile
from dflash_vectors.planted import Planted
from torch import Tensor

WORDS = 23
ZLAB = Numerics.of(load_profile("zlab"))


class Tape:
    """A toy sequence: the tokens themselves."""

    def __init__(self) -> None:
        self.rows: list[float] = []

    @property
    def length(self) -> int:
        return len(self.rows)

    def rollback(self, length: int) -> None:
        del self.rows[length:]

    def close(self) -> None:
        self.rows.clear()


class ToyVocabulary:
    """One-hot embedding, identity head."""

    public = WORDS

    def embed(self, ids: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(ids, WORDS).to(torch.float32)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def choose(self, logits: Tensor) -> Tensor:
        return logits.argmax(dim=-1)

    def top(self, hidden: Tensor, count: int, multiplier: float, softcap: float) -> Candidates:
        best = hidden.topk(count)
        return Candidates(best.indices, best.values)


class ToyTarget:
    """A language without attention: after a prefix of sum s comes token (7 s + 3) mod 23. Features are the sums."""

    device = torch.device("cpu")
    vocabulary = ToyVocabulary()

    def open(self, capacity: int) -> Tape:
        return Tape()

    def forward(self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows) -> list[TargetStep]:
        steps = []
        for state, ids in segments:
            tape = cast(Tape, state)
            sums = []
            for token in ids.tolist():
                tape.rows.append(token)
                sums.append(sum(tape.rows))
            after = torch.tensor([int(7 * total + 3) % WORDS for total in sums])
            rows = self.vocabulary.embed(after)
            wanted = {"all": rows, "last": rows[-1:], "none": None}[logits]
            steps.append(TargetStep(wanted, torch.tensor(sums)[:, None]))
        return steps


class ToyDraft:
    """Knows the language from the last sum, but says 0 in slot `wrong` of each block, counted from 0."""

    taps: tuple[int, ...] = (0,)

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong

    def open(self, capacity: int) -> Tape:
        return Tape()

    def append(self, rows: Sequence[ContextRows]) -> None:
        for each in rows:
            cast(Tape, each.state).rows.extend(each.features[:, 0].tolist())

    def propose(self, blocks: Sequence[Block], vocabulary: Vocabulary) -> list[Proposal]:
        proposals = []
        for block in blocks:
            total, tokens = int(cast(Tape, block.state).rows[-1]) + block.anchor, []
            for _ in range(block.extent):
                tokens.append((7 * total + 3) % WORDS)
                total += tokens[-1]
            if self.wrong < block.extent:
                tokens[self.wrong] = (tokens[self.wrong] + 1) % WORDS
            proposals.append(Proposal(torch.tensor(tokens)))
        return proposals


def spoken(prompt: list[int], count: int) -> list[int]:
    """The language continued by hand."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append((7 * sum(tokens) + 3) % WORDS)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("wrong", range(6))
def test_a_toy_pair_plugs_in_and_every_accepted_count_keeps_the_tokens(wrong: int) -> None:
    target: Target = ToyTarget()
    draft: Draft = ToyDraft(wrong)
    engine = Engine(target, draft, ZLAB, draft_tokens=5, max_context=100)
    made = engine.generate([4, 9, 2], 31)
    assert list(made.tokens) == spoken([4, 9, 2], 31)
    assert made.accepted[0] == wrong
    assert engine.decode_plain([4, 9, 2], 31).tokens == made.tokens


class Noted(ChainOrchestrator):
    """A plan of one's own, that notes what it is asked for."""

    def __init__(self, *served: Any) -> None:
        super().__init__(*served)
        self.calls: list[str] = []

    def start(self, request: Request, image: Image | None = None) -> tuple[Running, Round]:
        self.calls.append("start")
        return super().start(request, image)

    def round(self, running: Sequence[Running]) -> list[Round]:
        self.calls.append(f"round of {len(running)}")
        return super().round(running)

    def close(self, running: Running) -> None:
        self.calls.append("close")
        super().close(running)


def test_a_plan_plugs_in_for_drafted_and_for_plain_rounds() -> None:
    made: list[Noted] = []

    def plan(*served: Any) -> Orchestrator:
        made.append(Noted(*served))
        return made[-1]

    engine = Engine(ToyTarget(), ToyDraft(9), ZLAB, draft_tokens=5, max_context=100, max_batch=2, orchestrator=plan)
    drafted, plain = made
    assert list(engine.generate([4, 9, 2], 7).tokens) == spoken([4, 9, 2], 7)
    assert drafted.calls == ["start", "round of 1", "close"]
    engine.decode_plain([4, 9, 2], 3)
    assert plain.calls == ["start", "round of 1", "round of 1", "close"]
    engine.generate_batch([engine.request([4], 7), engine.request([9], 7)])
    assert drafted.calls[3:] == ["start", "start", "round of 2", "close", "close"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (5, "orchestrator is int, expected a callable"),
        (None, "orchestrator is NoneType, expected a callable"),
        (
            lambda *served: ChainOrchestrator,
            "what orchestrator gave is the class ChainOrchestrator, expected an object",
        ),
        (
            lambda target, draft, *rest: draft and ChainOrchestrator(target, draft, *rest),
            "gave is NoneType without start",
        ),
        (lambda *served: None, "what orchestrator gave is NoneType without start, expected start, round, keep"),
        (lambda *served: type("Half", (ChainOrchestrator,), {"fork": 5})(*served), "gave.fork is 5, expected a method"),
    ],
)
def test_what_is_no_plan_is_named_at_the_start(plan: Any, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        Engine(ToyTarget(), ToyDraft(9), ZLAB, draft_tokens=5, max_context=100, orchestrator=plan)


def test_a_draft_whose_sequence_is_not_as_long_as_it_must_be_is_named() -> None:
    """Answers would be right all the same, and acceptance as bad as a wrong port's."""

    class Forgetful(ToyDraft):
        def append(self, rows: Sequence[ContextRows]) -> None:
            super().append([each._replace(features=each.features[1:]) for each in rows])

    class Advancing(ToyDraft):
        def propose(self, blocks: Sequence[Block], vocabulary: Vocabulary) -> list[Proposal]:
            made = super().propose(blocks, vocabulary)
            for each in blocks:
                cast(Tape, each.state).rows.append(0.0)
            return made

    for draft, message in (
        (Forgetful(9), "draft Forgetful has a sequence of length 2 after append, expected 3"),
        (Advancing(9), "draft Advancing has a sequence of length 4 after propose, expected 3"),
    ):
        engine = Engine(ToyTarget(), draft, ZLAB, draft_tokens=5, max_context=100)
        with pytest.raises(StateError, match=message):
            engine.generate([4, 9, 2], 31)


def test_every_sequence_of_a_draft_is_looked_at() -> None:
    class Partial(ToyDraft):
        def append(self, rows: Sequence[ContextRows]) -> None:
            super().append(rows[:1])

    engine = Engine(ToyTarget(), Partial(9), ZLAB, draft_tokens=5, max_context=100)
    for prompt in ([4, 9, 2], [7, 8]):
        engine.submit(engine.request(prompt, 31))
    engine.step()
    with pytest.raises(StateError, match="draft Partial has a sequence of length 0 after append, expected 2"):
        engine.step()


def test_what_was_opened_is_closed_where_a_request_cannot_be_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = ChainOrchestrator(ToyTarget(), ToyDraft(2), ZLAB, 1)
    engine = Engine(ToyTarget(), ToyDraft(2), ZLAB, draft_tokens=5, max_context=100)
    request, closed = engine.request([4, 9, 2], 31), list[object]()
    running, _ = chain.start(request)

    def fail(*given: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Tape, "close", lambda tape: closed.append(tape))
    monkeypatch.setattr(Tape, "view", lambda tape: "held", raising=False)
    monkeypatch.setattr(Tape, "load", lambda tape, held: None, raising=False)
    for name, call in (("admit", lambda: chain.open(request)), ("follow", lambda: chain.fork(running))):
        with monkeypatch.context() as patch:
            patch.setattr(chain._decider, name, fail)
            with pytest.raises(MemoryError):
                call()
        assert len(closed) == 2
        closed.clear()


def test_a_target_that_is_full_serves_a_second_engine_later() -> None:
    """What it opens has been looked at by the first."""
    target = ToyTarget()
    full = RequestError("all 1 lanes are taken")
    engine = Engine(target, ToyDraft(9), ZLAB, draft_tokens=5, max_context=100, stop_ids={spoken([4, 9, 2], 3)[-1]})
    target.open = lambda capacity: (_ for _ in ()).throw(full)  # type: ignore[method-assign]  # for a while
    second = Engine(target, ToyDraft(9), ZLAB, draft_tokens=5, max_context=100)
    del target.open
    assert list(second.generate([4, 9, 2], 7).tokens) == spoken([4, 9, 2], 7)
    assert list(engine.generate([4, 9, 2], 7).tokens) == spoken([4, 9, 2], 3)


class Mute:
    """A vocabulary that lends nothing."""

    public = WORDS


class Reticent:
    """The same language, of which nobody may borrow."""

    device = torch.device("cpu")
    vocabulary = Mute()

    def open(self, capacity: int) -> Tape:
        return Tape()

    def forward(self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows) -> list[TargetStep]:
        return ToyTarget().forward(segments, taps, logits)


def test_a_target_that_lends_nothing_serves_a_draft_that_borrows_nothing() -> None:
    target: Target = Reticent()
    engine = Engine(target, ToyDraft(2), ZLAB, draft_tokens=5, max_context=100)
    assert list(engine.generate([4, 9, 2], 31).tokens) == spoken([4, 9, 2], 31)


def test_a_rollback_that_leaves_rows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tape, "rollback", lambda self, length: None)
    engine = Engine(ToyTarget(), ToyDraft(2), ZLAB, draft_tokens=5, max_context=100)
    with pytest.raises(StateError, match=r"Tape has length 9 after a rollback, expected 6"):
        engine.generate([4, 9, 2], 31)


def test_a_target_that_fails_to_close_keeps_neither_the_draft_nor_a_lane_of_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = ChainOrchestrator(ToyTarget(), ToyDraft(2), ZLAB, 1)
    engine = Engine(ToyTarget(), ToyDraft(2), ZLAB, draft_tokens=5, max_context=100)
    running, _ = chain.start(engine.request([4, 9, 2], 31))
    closed: list[object] = []

    def close(tape: Tape) -> None:
        closed.append(tape)
        if tape is running.target:
            raise OSError("the target's file")

    monkeypatch.setattr(Tape, "close", close)
    with pytest.raises(OSError, match="the target's file"):
        chain.close(running)
    assert closed == [running.target, running.draft]


def test_a_reader_that_changes_a_round_changes_no_later_one() -> None:
    engine = Engine(ToyTarget(), ToyDraft(0), ZLAB, draft_tokens=5, max_context=100)
    said: list[int] = []
    for made in engine.stream([4, 9, 2], 10):
        said += made.tokens
        made.finish_reason = None
    assert said == spoken([4, 9, 2], 10)


PARTS = ("public", "embed", "logits", "choose", "top")


class NoPublic:
    """A vocabulary of which nobody knows the size."""


class Endless(ToyVocabulary):
    public = cast(int, 23.0)


class Wordless(ToyVocabulary):
    public = 0


class NoHead(ToyVocabulary):
    choose = cast(Any, None)


class Unclosed(Tape):
    close = cast(Any, None)


class Begun(Tape):
    """A sequence that another one has left its rows in."""

    def __init__(self) -> None:
        self.rows = [5.0]


class Measureless:
    def rollback(self, length: int) -> None: ...

    def close(self) -> None: ...


def opening(state: type | None) -> Callable[..., object]:
    return lambda self, capacity: state and state()


STATES: list[tuple[dict[str, object], str]] = [
    ({"open": opening(None)}, ".open gave is NoneType without length, expected length, rollback, close"),
    ({"open": opening(Measureless)}, ".open gave is Measureless without length, expected length, rollback, close"),
    ({"open": opening(Unclosed)}, ".open gave.close is None, expected a method"),
    ({"open": opening(Begun)}, ".open gave is 1, expected 0 to 0"),
]
WRONG: dict[str, list[tuple[dict[str, object], str]]] = {
    "target": [
        ({"vocabulary": None}, "target.vocabulary is NoneType without public, expected public"),
        ({"vocabulary": NoPublic()}, "target.vocabulary is NoPublic without public, expected public"),
        ({"vocabulary": Endless()}, "target.vocabulary.public is 23.0, expected an integer"),
        ({"vocabulary": Wordless()}, "target.vocabulary.public is 0, expected 1 to"),
        ({"vocabulary": NoHead()}, "target.vocabulary.choose is None, expected a method"),
        ({"device": "cpu"}, "target.device is 'cpu', expected a torch.device"),
        ({"device": None}, "target.device is None, expected a torch.device"),
        ({"forward": None}, "target.forward is None, expected a method"),
        ({"open": 5}, "target.open is 5, expected a method"),
        ({"reserve": True}, "target.reserve is True, expected a method"),
        ({"held_bytes": {}}, "target.held_bytes is {}, expected a method"),
        *STATES,
    ],
    "draft": [
        ({"taps": None}, "draft.taps is None, expected a tuple of the target's layers"),
        ({"taps": [0]}, "draft.taps is [0], expected a tuple of the target's layers"),
        ({"taps": 0}, "draft.taps is 0, expected a tuple of the target's layers"),
        ({"taps": (0, 1.0)}, "draft.taps[1] is 1.0, expected an integer"),
        ({"taps": (-1,)}, "draft.taps[0] is -1, expected 0 to"),
        ({"borrows": None}, "draft.borrows is None, expected a tuple of some of embed, logits, choose, top"),
        ({"borrows": ("embed", "head")}, "draft.borrows is ('embed', 'head'), expected a tuple of some of embed,"),
        ({"append": None}, "draft.append is None, expected a method"),
        ({"propose": "x"}, "draft.propose is 'x', expected a method"),
        ({"working_bytes": 5}, "draft.working_bytes is 5, expected a method"),
        *STATES,
    ],
}


@pytest.mark.parametrize(
    ("role", "changes", "message"), [(role, *each) for role, cases in WRONG.items() for each in cases]
)
def test_an_adapter_with_a_wrong_part_is_named_at_the_start(
    role: str, changes: dict[str, object], message: str
) -> None:
    adapters: dict[str, Any] = {"target": ToyTarget(), "draft": ToyDraft(9)}
    adapters[role].__class__ = type("Broken", (type(adapters[role]),), changes)
    with pytest.raises(RequestError, match=re.escape(message)):
        Engine(**adapters, numerics=ZLAB, draft_tokens=5, max_context=100)


@pytest.mark.parametrize("name", ["vocabulary", "device", "open", "forward", "taps", "append", "propose"])
def test_an_adapter_without_a_part_is_named_at_the_start(name: str) -> None:
    def gone(self: object) -> object:
        raise AttributeError("the adapter's own")

    role = "draft" if name in ("taps", "append", "propose") else "target"
    made: dict[str, Any] = {"target": ToyTarget(), "draft": ToyDraft(9)}
    made[role].__class__ = type("Broken", (type(made[role]),), {name: property(gone)})
    with pytest.raises(RequestError, match=f"{role} is Broken without {name}, expected .*{name}") as error:
        Engine(**made, numerics=ZLAB, draft_tokens=5, max_context=100)
    assert str(error.value.__cause__) == "the adapter's own"


@pytest.mark.parametrize(
    ("pair", "name"),
    [("random_pair", each) for each in ("embed", "logits", "choose")]
    + [("random_pair2", each) for each in ("embed", "top")],
)
def test_what_a_draft_borrows_and_the_target_has_not_is_named_at_the_start(
    pair: str, name: str, request: pytest.FixtureRequest, load: Callable[..., Engine]
) -> None:
    class Poor(ToyTarget):
        vocabulary: Any = type("Few", (), {part: getattr(ToyVocabulary, part) for part in PARTS if part != name})()

    engine = load(request.getfixturevalue(pair), draft_tokens=5, max_context=50)
    message = f"target.vocabulary, from which {type(engine.draft).__name__} borrows, is Few without {name}, expected"
    with pytest.raises(RequestError, match=message):
        Engine(Poor(), engine.draft, engine.numerics, draft_tokens=5, max_context=50)
    Engine(Poor(), ToyDraft(9), ZLAB, draft_tokens=5, max_context=50)  # one that borrows nothing


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_a_tap_that_the_target_has_not_is_named(random_pair: Path, load: Callable[..., Engine], kernels: str) -> None:
    class Deep(ToyDraft):
        taps = (1, 3)

    engine = load(random_pair, kernels=kernels, draft_tokens=5, max_context=50)
    other = Engine(engine.target, Deep(9), engine.numerics, draft_tokens=5, max_context=50)
    with pytest.raises(TensorError, match=r"taps \[1, 3\], expected layers 0 to 2$"):
        other.generate([4, 9, 2], 7)


def cut_steps(steps: list[TargetStep]) -> list[TargetStep]:
    return steps[:-1]


def cut_logits(steps: list[TargetStep]) -> list[TargetStep]:
    return [TargetStep(step.logits if step.logits is None else step.logits[:-1], step.features) for step in steps]


def no_logits(steps: list[TargetStep]) -> list[TargetStep]:
    return [TargetStep(None, step.features) for step in steps]


def narrow_logits(steps: list[TargetStep]) -> list[TargetStep]:
    return [TargetStep(step.logits if step.logits is None else step.logits[:, :-1], step.features) for step in steps]


def cut_features(steps: list[TargetStep]) -> list[TargetStep]:
    return [TargetStep(step.logits, step.features[1:]) for step in steps]


@pytest.mark.parametrize("after", [0, 1], ids=["prompt", "round"])
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (cut_steps, "target Broken gave 0 steps, expected 1$"),
        (lambda steps: None, "target Broken gave NoneType, expected 1$"),
        (lambda steps: [tuple(step) for step in steps], "target Broken gave a tuple as a step, expected a TargetStep$"),
        (lambda steps: [step.features for step in steps], "gave a Tensor as a step, expected a TargetStep$"),
        (cut_logits, r"target Broken gave logits \[\d, 23\], expected \d rows, at least 23 columns"),
        (no_logits, r"target Broken gave logits NoneType, expected \d rows"),
        (narrow_logits, r"target Broken gave logits \[\d, 22\], expected \d rows, at least 23 columns"),
        (cut_features, r"target Broken gave features \[\d, 1\], expected \d rows, any number of columns"),
    ],
)
def test_a_target_that_gives_less_than_was_asked_is_named(
    broken: Callable[[list[TargetStep]], list[TargetStep]], message: str, after: int
) -> None:
    class Broken(ToyTarget):
        calls = 0

        def forward(self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows) -> list[TargetStep]:
            self.calls += 1
            steps = super().forward(segments, taps, logits)
            return broken(steps) if self.calls > after else steps

    with pytest.raises(TensorError, match=message):
        Engine(Broken(), ToyDraft(9), ZLAB, draft_tokens=5, max_context=100).generate([4, 9, 2], 31)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda made: [], "draft Broken gave 0 proposals, expected 1$"),
        (lambda made: [Proposal(made[0].tokens[:3])], r"proposed tokens torch.int64 \[3\], .* N at least 5$"),
        (lambda made: [Proposal(made[0].tokens.tolist())], "proposed tokens list, expected integers"),
        (lambda made: [Proposal(made[0].tokens[None])], r"proposed tokens torch.int64 \[1, 5\], expected integers"),
        (lambda made: [Proposal(made[0].tokens.float())], r"proposed tokens torch.float32 \[5\], expected integers"),
        (lambda made: [Proposal(made[0].tokens > 9)], r"proposed tokens torch.bool \[5\], expected integers"),
        (lambda made: [made[0].tokens], "draft Broken gave a Tensor, expected a Proposal$"),
        (lambda made: [tuple(made[0])], "draft Broken gave a tuple, expected a Proposal$"),
        (lambda made: [Proposal(made[0].tokens + WORDS)], r"draft Broken proposed the id \d+, expected 0 to 22"),
        (lambda made: [Proposal(made[0].tokens - WORDS)], r"draft Broken proposed the id -\d+, expected 0 to 22"),
    ],
)
def test_a_draft_that_proposes_what_was_not_asked_is_named(
    broken: Callable[[list[Proposal]], list[Proposal]], message: str
) -> None:
    class Broken(ToyDraft):
        def propose(self, blocks: Sequence[Block], vocabulary: Vocabulary) -> list[Proposal]:
            return broken(super().propose(blocks, vocabulary))

    with pytest.raises(TensorError, match=message):
        Engine(ToyTarget(), Broken(9), ZLAB, draft_tokens=5, max_context=100).generate([4, 9, 2], 31)


def test_more_proposals_than_can_be_verified_are_cut() -> None:
    class Longer(ToyDraft):
        def propose(self, blocks: Sequence[Block], vocabulary: Vocabulary) -> list[Proposal]:
            made = super().propose(blocks, vocabulary)
            return [Proposal(torch.cat([each.tokens, torch.tensor([WORDS + 1])])) for each in made]

    engine = Engine(ToyTarget(), Longer(9), ZLAB, draft_tokens=5, max_context=100)
    assert list(engine.generate([4, 9, 2], 31).tokens) == spoken([4, 9, 2], 31)


def request(prompt: Sequence[int], count: int) -> Request:
    return Request(tuple(prompt), count, Sampling(), 0, frozenset(), None, 500, 6)


def together(engine: Engine, requests: Sequence[Request]) -> list[tuple[int, ...]]:
    """All requests in joint rounds; each leaves when it ends."""
    orchestrator = ChainOrchestrator(engine.target, engine.draft, engine.numerics)
    started = [orchestrator.start(each) for each in requests]
    tokens = [list(first.tokens) for _, first in started]
    live = [at for at, (_, first) in enumerate(started) if first.finish_reason is None]
    while live:
        for at, round_ in zip(live, orchestrator.round([started[at][0] for at in live]), strict=True):
            tokens[at].extend(round_.tokens)
            if round_.finish_reason:
                orchestrator.close(started[at][0])
        live = [at for at in live if len(tokens[at]) < requests[at].max_new_tokens]
    return [tuple(own) for own in tokens]


def test_joint_rounds_of_ragged_requests_give_the_tokens_each_gives_alone(
    planted_pair: Callable[[str], tuple[Path, Planted]], load: Callable[..., Engine]
) -> None:
    folder, plan = planted_pair("tied")
    engine = load(folder, draft_tokens=6)
    requests = [request(prompt[at:], 11 + 7 * at) for at, prompt in enumerate(plan.prompts)]
    alone = [engine.generate(each.prompt, each.max_new_tokens).tokens for each in requests]
    assert together(engine, requests) == alone


def test_a_joint_target_forward_keeps_the_features_of_each_sequence(random_engine: Engine) -> None:
    target, taps = random_engine.target, (2, 0)
    prompts = [torch.tensor([5, 1, 8]), torch.tensor([60, 2, 33, 7, 7])]
    states: list[SequenceState] = [target.open(9), target.open(9)]
    joint = target.forward([Segment(*each) for each in zip(states, prompts, strict=True)], taps, "all")
    for step, prompt in zip(joint, prompts, strict=True):
        (alone,) = target.forward([Segment(target.open(9), prompt)], taps, "all")
        # Rows of one product do not depend on its other rows but for the order of FP32 sums of 44 terms at most.
        limit = 3 * 44 * 2.0**-24 * float(alone.features.abs().max()) * 4
        assert float((step.features - alone.features).abs().max()) <= limit
        assert step.features.shape == (len(prompt), 72)


def test_features_come_in_recorded_order_and_a_last_blocks_before_the_final_norm(random_engine: Engine) -> None:
    target, ids = random_engine.target, torch.tensor([5, 1, 8, 64])

    def taps(*blocks: int) -> TargetStep:
        (step,) = target.forward([Segment(target.open(4), ids)], blocks, "all")
        return step

    assert torch.equal(taps(2, 0, 1).features, torch.cat([taps(block).features for block in (2, 0, 1)], dim=1))
    assert taps().features.shape == (4, 0)
    last = taps(2)
    assert last.logits is not None
    lent = cast(LendingVocabulary, target.vocabulary)
    assert not torch.equal(lent.logits(last.features), last.logits)
