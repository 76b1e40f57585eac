"""Right engines check clean: the authors' package, the accelerated engine, and every honest way to compute."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from dflash_vectors.innocents import INNOCENTS, Innocent, computing_as
from dflash_vectors.peers import trace_authors
from dflash_vectors.replay import Report
from dflash_vectors.replay.recording import record_reference

from .conftest import DRAFTS, Make

ROOT = Path(__file__).parents[2]
NEW_TOKENS = 170
"""In which the pairs come to more than fifty rounds."""
LEAST = 5
ALL_STAGES = {
    "dflash": {"features", "c", "layer.0", "layer.1", "hidden", "logits", "target.features", "target.logits"},
    "dflash2": {"features", "c", "layer.0", "layer.1", "hidden", "unary", "scores", "target.features", "target.logits"},
}


def check_clean(report: Report, backend: str, rounds: int = 50) -> None:
    """No bug, no near tie, every stage of every round within half of its bound."""
    assert report.findings == []
    assert report.complete
    assert report.judged == len(report.trace) >= rounds
    for stage in ALL_STAGES[backend]:  # profile ninfer's last round has nothing to propose
        assert report.furthest[stage][0] >= report.judged - 1, stage
    assert max(bounds for _, bounds in report.furthest.values()) <= 0.5


@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
def test_the_authors_package_checks_clean_over_fifty_rounds_of_every_accepted_count(
    backend: str, make: Make, tmp_path: Path
) -> None:
    made = make(backend)
    stops = [made.pair.words.decoy]
    tokens = trace_authors.generate(
        tmp_path / "trace", *made.authors, made.folders, made.pair.prompts[0], NEW_TOKENS, stops, DRAFTS
    )
    assert tokens == made.pair.continuation(made.pair.prompts[0], NEW_TOKENS)
    report = made.replayed(tmp_path / "trace")
    check_clean(report, backend)
    counts = Counter(report.accepted)
    print(f"\n{backend}, accepted counts: {sorted(counts.items())}")
    assert min(counts[count] for count in range(DRAFTS + 1)) >= LEAST


@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
def test_sampled_requests_of_the_authors_package_are_checked_for_consistency_and_the_report_says_so(
    backend: str, make: Make, tmp_path: Path
) -> None:
    made = make(backend)
    trace_authors.generate(
        tmp_path / "trace", *made.authors, made.folders, made.pair.prompts[0], 40, [made.pair.words.decoy], DRAFTS, 1.0
    )
    report = made.replayed(tmp_path / "trace")
    check_clean(report, backend, 8)
    assert any("opaque" in note and "not for their law" in note for note in report.notes)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("profile", "dtype"), [("ninfer", "BF16"), ("zlab", "F32")])
@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
def test_the_accelerated_engine_checks_clean_greedy_and_by_its_keyed_draws(
    backend: str, profile: str, dtype: str, temperature: float, make: Make, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from trace_engine import decode  # type: ignore[import-not-found]

    made = make(backend, dtype)
    options = {"temperature": temperature, "seed": 11} if temperature else {}
    prompt = made.pair.prompts[0]
    decode(tmp_path / "trace", made.engine(profile), made.folder, prompt, 60, profile, **options)
    check_clean(made.replayed(tmp_path / "trace"), backend, 20)
    del sys.modules["trace_engine"]


def places(innocent: Innocent) -> tuple[str, str]:
    """Profile and backend in which a variant is tried: where it is innocent, and changes something."""
    second = any(
        part in target for target in innocent.patches for part in ("conv", "selector", "draft2", "head.capped")
    )
    return ("zlab" if "zlab" in innocent.profiles else "ninfer", "dflash2" if second else "dflash")


@pytest.mark.parametrize("innocent", INNOCENTS, ids=lambda innocent: innocent.name)
def test_every_innocent_variant_checks_clean_within_half_of_every_bound(
    innocent: Innocent, make: Make, tmp_path: Path
) -> None:
    profile, backend = places(innocent)
    made = make(backend, "F32" if profile == "zlab" else "BF16")
    pair = made.reference(profile)
    with computing_as(innocent):
        record_reference(tmp_path / "trace", pair, made.texts, made.pair.prompts[0], made.settings(14))
    check_clean(made.replayed(tmp_path / "trace"), backend, 4)
