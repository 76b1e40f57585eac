"""What is asked of the figures, the tables and the drawing, on figures that are made up."""

import json
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from dflash_spec.errors import OutputError
from dflash_vectors.bench import picture, report, slope
from dflash_vectors.bench.figures import BARE, OURS, PEER, Figure, Level, Local, Memory, Report, Slope, Speedup
from dflash_vectors.bench.harness import Clock, Plan, Turns
from dflash_vectors.bench.slope import seen
from dflash_vectors.style import Style

MACHINE = {
    "processor": "an <odd> & old one", "cores": 2, "threads": 1, "device": "cpu", "kernels": "torch", "load": 0.5,
    "packages": {"torch": "2"}, "pairs": ["dflash: planted"],
}  # fmt: skip


def figure(what: str, context: int, seconds: dict[str, float], batch: int = 1) -> Figure:
    return Figure(what, "dflash", context, batch, {party: [value] * 3 for party, value in seconds.items()})


def speedup(cost: float = 2.5) -> Speedup:
    levels = [Level("0", {0: 6}, [1.0] * 3, [cost] * 3), Level("mixed", {0: 2, 3: 1, 15: 1}, [1.0] * 3, [cost] * 3)]
    return Speedup("dflash", 256, levels)


def whole() -> Report:
    figures = [figure(what, context, {PEER: 0.03, OURS: 0.012, BARE: 0.01}) for what in ("step", "round")
               for context in (256, 6000)]  # fmt: skip
    return Report(
        MACHINE, [*figures, figure("prefill", 256, {PEER: 2e-4, OURS: 1e-4}), figure("round", 256, {OURS: 0.1}, 8)],
        [Slope("round", "dflash", (256, 6000), {OURS: 0.004, PEER: 0.02}, 24_000_000, 10**9, 0.001, 0.003)],
        [Local("dflash", 512, {640: [0.002] * 3, 6000: [0.0021] * 3})],
        [Memory("dflash", 210 << 20, {"weights": 150 << 20, "cache": 50 << 20}, [(0, 9), (500, 11), (1000, 11)])],
        [speedup()],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("what", "context", "party", "most"),
    [("step", 256, PEER, 0.55), ("step", 6000, PEER, 0.30), ("round", 256, PEER, 0.50), ("round", 6000, PEER, 0.35),
     ("prefill", 2048, PEER, 0.9), ("round", 256, BARE, 1.3), ("step", 256, BARE, 1.3)],
)  # fmt: skip
def test_a_target_is_met_at_its_limit_and_missed_past_it(what: str, context: int, party: str, most: float) -> None:
    for times, met in ((most, True), (most * 1.001, False)):
        (found,) = figure(what, context, {OURS: times, party: 1.0}).targets()
        assert (found.limit, found.met) == (most, met)


def test_nothing_is_asked_of_other_contexts_or_of_another_pair() -> None:
    assert figure("round", 2048, {OURS: 1.0, PEER: 1.0}).targets() == []
    assert whole().targets()
    assert Report(MACHINE, whole().figures, judged=False).targets() == []


def test_growth_is_judged_by_the_slower_of_reading_and_computing() -> None:
    made = Slope("round", "dflash", (256, 6000), {OURS: 0.004}, 1, 1, 0.001, 0.003)
    (found,) = made.targets()
    assert found.found == pytest.approx(4 / 3)
    assert found.met
    for reading, attending in ((0.001, 0.002), (0.002, 0.001)):
        for grown, met in ((0.004, True), (0.004004, False)):
            (found,) = Slope("round", "dflash", (256, 6000), {OURS: grown}, 1, 1, reading, attending).targets()
            assert found.met == met


def test_growth_of_a_step_is_judged_by_what_it_reads() -> None:
    (found,) = Slope("step", "dflash", (256, 6000), {OURS: 0.0021}, 1, 1, 0.001, 9.0).targets()
    assert found.found == pytest.approx(2.1)
    assert not found.met


def test_products_count_as_they_are_fastest_and_by_all_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3,072 rows, in pieces of 1,024 or at once: three pieces of a millisecond are faster than any other way."""
    taken = {
        "torch.bfloat16, 3072": 9.0, "torch.bfloat16, 1024": 4.0,
        "torch.float32, 3072": 3.5, "torch.float32, 1024": 1.0,
    }  # fmt: skip

    def all_turns(turns: Any) -> dict[str, list[float]]:
        for call in turns._parties.values():
            call()
        return {name: [taken[name] / 1e3] * 3 for name in turns._parties}

    target = SimpleNamespace(kv_heads=2, heads=4, head_dim=8)
    monkeypatch.setattr(slope, "_configs", lambda party: (target, None))
    monkeypatch.setattr(Turns, "all", all_turns)
    party: Any = SimpleNamespace(device=torch.device("cpu"), clock=Clock())
    assert slope._attending(party, 3, 3072, Plan(1, 1)) == pytest.approx(0.003)


def test_windows_that_are_full_have_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = SimpleNamespace(windows=(512, 512))
    monkeypatch.setattr(slope, "_configs", lambda party: (config, config))
    short, long = (figure("round", context, {OURS: 1.0}) for context in (600, 6000))
    assert (
        slope._slope(cast(Any, SimpleNamespace(engine=SimpleNamespace(draft_tokens=3))), short, long, 1.0, Plan(1, 1))
        is None
    )


def test_a_local_layer_reads_its_window_at_most() -> None:
    assert seen((512, 512, 0), 6000) == 512 + 512 + 6000
    assert seen((512, 0), 100) == 200


def test_memory_is_judged_by_its_peak_and_by_what_it_grows_after_the_first_rounds() -> None:
    peak, growth = Memory("dflash", 111, {"weights": 100}, [(0, 0), (5, 10), (10, 10 + (2 << 20))]).targets()
    assert (peak.found, peak.met) == (1.11, False)
    assert (growth.found, growth.met) == (2.0, False)


def test_break_even_is_where_the_tokens_of_a_round_are_worth_its_steps() -> None:
    made = speedup(2.5)
    assert (made.cost, made.break_even) == (2.5, 1.5)
    assert made.model(made.break_even) == 1.0
    assert [level.accepted for level in made.levels] == [0.0, 4.5]
    assert made.levels[1].speedup.median == pytest.approx(5.5 / 2.5)


def test_the_tables_say_what_was_measured_and_what_was_missed() -> None:
    text = report.text(whole(), Style())
    for part in ("12.00", "0.40 (0.40–0.40)", "100.00", "24.0 MB", "pays from 1.50 accepted", "MISSED", "met"):
        assert part in text
    assert "1 thread of 2 cores" in text
    assert "1 thread, BF16" in picture.svg(whole())
    assert "interrupted" not in text
    assert "interrupted" in report.text(Report(MACHINE, interrupted=True), Style())


def test_the_record_is_json() -> None:
    told = json.loads(json.dumps(whole().record(), allow_nan=False))
    assert told["format"] == "dflash-bench"
    assert told["figures"][0]["ratios"]["peer"]["median"] == pytest.approx(0.4)
    assert told["speedup"][0]["levels"][1]["counts"] == {"0": 2, "3": 1, "15": 1}


def test_the_drawing_is_svg_whose_marks_lie_inside() -> None:
    root = ElementTree.fromstring(picture.svg(whole()))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    circles = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert circles
    for circle in circles:
        assert 0 <= float(circle.get("cx", -1)) <= width
        assert 0 <= float(circle.get("cy", -1)) <= height


def test_a_drawing_without_a_chart_is_refused() -> None:
    made = Report(MACHINE, [figure("prefill", 256, {OURS: 1e-4}), figure("round", 256, {OURS: 0.1}, 8)])
    with pytest.raises(OutputError, match="nothing was measured that has a chart"):
        picture.svg(made)
