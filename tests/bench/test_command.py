"""The command from end to end on a tiny pair, and what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_accelerated import Engine
from dflash_accelerated.native import available
from dflash_vectors.bench import machine, ours, pairs
from dflash_vectors.bench.figures import Figure, Report
from dflash_vectors.bench.harness import Clock, Plan
from dflash_vectors.bench.peer import Peer
from dflash_vectors.bench.products import Bare
from dflash_vectors.commands import benching
from dflash_vectors.commands.bench import main
from dflash_vectors.commands.bench_options import parsed

ROOT = Path(__file__).parents[2]


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "bench.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> pairs.Pair:
    return pairs.make(tmp_path_factory.mktemp("bench") / "pair", "dflash2", "tiny")


@pytest.fixture(scope="module")
def engine(pair: pairs.Pair) -> Engine:
    return ours.load(pair, kernels="torch", device=torch.device("cpu"), chunk=None, longest=512)


def test_quick_measures_everything(tmp_path: Path) -> None:
    done = bench(
        "--quick", "--backend", "dflash2", "--threads", 1, "--kernels", "torch", "--json", "--plot", tmp_path / "a.svg"
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    timed = {(each["what"], each["context"], each["batch"]) for each in told["figures"]}
    assert timed == {
        ("step", 96, 1), ("round", 96, 1), ("prefill", 96, 1), ("step", 288, 1), ("round", 288, 1),
        ("prefill", 288, 1), ("step", 96, 2), ("round", 96, 2),
    }  # fmt: skip
    for each in told["figures"]:
        parties = {"peer", "engine"} if each["what"] == "prefill" else {"peer", "engine", "bare"}
        assert set(each["seconds"]) == (parties if each["batch"] == 1 else {"engine", "bare"})
    levels = told["speedup"][0]["levels"]
    assert {level["text"]: set(level["counts"]) for level in levels if level["text"] != "mixed"} == {
        str(level): {str(level)} for level in pairs.LEVELS
    }
    assert told["slopes"]
    assert told["local_draft"]
    assert told["memory"][0]["peak"] > 0
    assert told["targets"] == []
    assert (tmp_path / "a.svg").read_text("utf-8").startswith("<svg")


def test_a_pair_on_disk_is_measured_without_a_peer(
    pair: pairs.Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    arguments = ["--pair", str(pair.target.parent), "--quick", "--only", "round", "--no-peer", "--threads", "1"]
    assert main([*arguments, "--kernels", "torch", "--context", "70"]) == 0
    text = capsys.readouterr().out
    assert "dflash2 round, ms" in text
    assert str(pair.draft) in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "speed"], "found 'speed', expected some of step,round"),
        (["--batch", "1,9"], "at most 8 requests"),
        (["--context", "0"], "expected a number from 1"),
        (["--turns", "x"], "expected a number from 1"),
        (["--target", "a"], "--target and --draft go together"),
        (["--pair", "a", "--target", "b", "--draft", "c"], "one of them"),
        (["--pair", "a", "--backend", "dflash"], "a pair on disk says itself"),
        (["--plot", "a.png"], "ends in .svg"),
        (
            ["--plot", "a.svg", "--only", "prefill,memory"],
            "--plot: prefill,memory: nothing here has a chart; step, round",
        ),
        (
            ["--plot", "a.svg", "--only", "batch", "--batch", "2,4"],
            "--plot: batch: nothing here has a chart; step, round",
        ),
        (["--only", "slope", "--context", "96"], "--only slope: growth needs two contexts, found --context 96"),
        (["--strict", "--quick"], "--strict: only the planted pair at full size has targets"),
        (["--strict", "--pair", "a"], "--strict: only the planted pair at full size has targets"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--device", "tpu"], "expected cpu, cuda or cuda:N"),
        (["--device", "meta"], "expected cpu, cuda or cuda:N"),
        (["--pair", "/nowhere"], "/nowhere"),
        (["--quick", "--context", "9000", "--no-peer"], "expected at most 8,192, the pair's positions"),
    ],
)
def test_what_cannot_be_measured_ends_with_2_and_a_reason(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    assert main([*arguments, "--threads", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dflash-bench: ")
    assert told in err


@pytest.mark.parametrize("part", ["step", "round", "slope", "speedup", "batch"])
def test_what_has_a_chart_can_be_drawn(part: str) -> None:
    assert parsed(["--plot", "a.svg", "--only", part]).only == (part,)


@pytest.mark.parametrize(("interrupted", "code"), [(True, 130), (False, 2)])
def test_no_empty_chart_is_drawn_and_the_rest_is_printed(
    interrupted: bool, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(machine.described(1, torch.device("cpu"), "torch") | {"pairs": []}, interrupted=interrupted)
    assert benching._tell(report, parsed(["--plot", str(tmp_path / "a.svg")])) == code
    printed = capsys.readouterr()
    assert printed.err == "dflash-bench: nothing was measured that has a chart, so none is drawn\n"
    assert "1 thread of" in printed.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("took", "code"), [(0.0, 2), (0.5, 0), (0.6, 1)])
def test_strict_fails_where_a_target_is_missed_or_nothing_has_one(took: float, code: int) -> None:
    figures = [Figure("step", "dflash", 256, 1, {"engine": [took], "peer": [1.0]})] if took else []
    report = Report(machine.described(1, torch.device("cpu"), "torch") | {"pairs": []}, figures)
    assert benching._tell(report, parsed(["--strict"])) == code


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    assert main(["--device", "cuda", "--threads", "1"]) == 2
    assert "CUDA" in capsys.readouterr().err


@pytest.mark.peers
def test_the_peer_takes_turns_with_the_others_and_does_the_same_rounds(pair: pairs.Pair) -> None:
    """Its hook sees as many rounds as the plan says, and the others run between them, outside its own time."""
    taken: list[int] = []
    now = [0.0]

    def tick() -> float:
        now[0] += 1.0
        return now[0]

    def others() -> None:
        taken.append(1)
        now[0] += 1e6

    peer, plan = Peer(pair, torch.device("cpu")), Plan(turns=3, calls=2)
    turns, _ = peer.rounds(pair.prompt(96), plan, Clock(tick), others)
    assert len(turns) == len(taken) == 3
    assert max(turns) < 10
    assert len(peer.steps(pair.prompt(96), plan, Clock(tick), others)) == 3


@pytest.mark.parametrize("text", ["0", "3", "15"])
def test_a_text_accepts_what_its_name_says(pair: pairs.Pair, engine: Engine, text: str) -> None:
    with ours.rounds(engine, [pair.prompt(200, text)]) as advance:
        assert [each.accepted for _ in range(3) for each in advance()] == [int(text)] * 3


def test_requests_are_dropped_after_they_were_timed(pair: pairs.Pair, engine: Engine) -> None:
    for _ in range(3):  # eight lanes would not do for four times three requests
        prompts: Any = [pair.prompt(100 + place) for place in range(4)]
        with ours.rounds(engine, prompts) as advance, ours.steps(engine, prompts) as plain:
            assert len(advance()) == len(plain()) == 4


def test_bare_products_are_those_of_all_rows_of_a_round(engine: Engine) -> None:
    bare, seen = Bare.of(engine), []

    class Watched:
        native = None

        def __init__(self, product: Any, kind: str) -> None:
            self.inputs, self._product, self._kind = product.inputs, product, kind

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((self._kind, len(x)))
            made: torch.Tensor = self._product(x)
            return made

    watched = Bare(
        tuple((Watched(product, kind), kind) for product, kind in bare.target),
        tuple((Watched(product, kind), kind) for product, kind in bare.draft), 15,
    )  # fmt: skip
    watched.round(2, 3, torch.device("cpu"))()
    assert set(seen) == {("verify", 32), ("block", 32), ("context", 8), ("head", 32), ("head", 30)}
    seen.clear()
    watched.step(3, torch.device("cpu"))()
    assert set(seen) == {("verify", 3), ("head", 3)}


@pytest.mark.skipif(not available(), reason="no C compiler")
def test_bare_products_in_c_are_the_same_ones(pair: pairs.Pair) -> None:
    bare = Bare.of(ours.load(pair, kernels="native", device=torch.device("cpu"), chunk=None, longest=64))
    once: Any = bare.round(2, 3, torch.device("cpu"))
    once()
    heads = sum(kind == "head" for _, kind in bare.target)
    assert len(once) == len(bare.draft) + len(bare.target) + heads
