"""The observer's view of a round: complete, in order, and equal to what an uncached pass computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from dflash_accelerated import Engine, RoundTrace
from dflash_accelerated.protocols import Segment
from dflash_vectors.planted import Planted

STAGES = ["features", "c", "layer.0", "layer.1", "hidden", "logits", "target.logits", "target.features"]


@pytest.mark.parametrize("chunk", [None, 4])
def test_context_rows_of_all_rounds_are_the_committed_tokens_features_once_each(
    planted_pair: Callable[[str], tuple[Path, Planted]], load: Callable[..., Engine], chunk: int | None
) -> None:
    folder, plan = planted_pair("small")
    engine = load(folder, draft_tokens=4)
    traces: list[RoundTrace] = []
    prompt = plan.prompts[0]
    made = engine.generate(prompt, 30, prefill_chunk=chunk, observer=traces.append)
    assert [trace.index for trace in traces] == list(range(len(made.accepted)))
    rows = torch.cat([trace.stages["features"] for trace in traces])
    committed = [*prompt, *made.tokens][: traces[-1].frontier]
    (step,) = engine.target.forward(
        [Segment(engine.target.open(len(committed)), torch.tensor(committed))], engine.draft.taps, "none"
    )
    assert rows.shape == step.features.shape
    # Chunked and whole prefills sum FP32 products of up to 36 terms in other orders, over 2 layers of 7 products.
    limit = 2 * 7 * 36 * 2.0**-24 * float(step.features.abs().max())
    assert float((rows - step.features).abs().max()) <= limit


def test_a_round_shows_every_stage_in_order_with_the_rows_it_ran(random_engine: Engine) -> None:
    traces: list[RoundTrace] = []
    made = random_engine.generate([1, 2, 3, 4], 9, stop_ids=[], observer=traces.append)
    for trace, proposals in zip(traces, made.proposals, strict=True):
        assert list(trace.stages) == STAGES
        shapes = {name: tuple(rows.shape) for name, rows in trace.stages.items()}
        assert shapes["layer.1"] == (len(proposals) + 1, 36)
        assert shapes["hidden"] == (len(proposals), 36)
        assert shapes["logits"] == (len(proposals), 67)
        assert shapes["target.logits"] == (len(proposals) + 1, 67)
        assert trace.stages["logits"].argmax(-1).tolist() == list(proposals)
    assert traces[0].frontier == 4
    assert traces[0].anchor == made.tokens[0]


def test_a_round_without_proposals_shows_the_target_alone(random_pair: Path, load: Callable[..., Engine]) -> None:
    engine = load(random_pair, profile="ninfer", dtype=torch.bfloat16, draft_tokens=3)
    traces: list[RoundTrace] = []
    engine.generate([1, 2, 3, 4], 2, observer=traces.append)
    assert [list(trace.stages) for trace in traces] == [["target.logits", "target.features"]]


def test_watching_changes_nothing(random_engine: Engine) -> None:
    watched = random_engine.generate([9, 9, 1], 20, temperature=0.8, seed=5, observer=lambda trace: None)
    assert watched == random_engine.generate([9, 9, 1], 20, temperature=0.8, seed=5)
