"""Planted pairs as such: the same bytes everywhere, readable by the spec, and planned to reach every count."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash_spec.checkpoint import Checkpoint
from dflash_spec.config import draft_tensors, read_draft_config, read_target_config, target_tensors
from dflash_spec.registry import load_profile
from dflash_vectors import planted
from dflash_vectors.commands.make_planted_pair import main
from dflash_vectors.errors import PlanError
from dflash_vectors.planted import folders

NEW_TOKENS = 224
SMALL_LIMIT = 256 * 1024 // 4
DIGESTS = {
    ("standard", "dflash"): "8637a5b0b85448adfa9d0df33f41d5b01dadd188c0836c185718ed294bea953b",
    ("tied", "dflash"): "59d435528e79babd0c6d4b27f6bfb041c05b35ebdad2613b3fe8eb386a7c153d",
    ("small", "dflash"): "b2c7d7085b9316f21c032129a7c3b2e2ae7c29eef91cc35960f00013c292d89f",
    ("standard", "dflash2"): "44b226f138441bc7a491072482df0cd532dcb6ca04132fddaf9ec33e5883f99c",
    ("tied", "dflash2"): "ffa18ee6c4597c0019f5084b8f341276d0b95539a4c44eba4ae54cd6d93a6b04",
    ("small", "dflash2"): "26762c019caecb5c585edb15b90aba63a1fde2a98fae4bfe6571b68f09089514",
}
EACH = pytest.mark.parametrize(("preset", "backend"), sorted(DIGESTS))


def digest(pair: planted.Planted) -> str:
    """SHA-256 over every tensor of both models, as FP32 bytes in name order."""
    total = hashlib.sha256()
    for tensors in (pair.target, pair.draft):
        for name in sorted(tensors):
            total.update(name.encode() + tensors[name].astype("<f4").tobytes())
    return total.hexdigest()


@EACH
def test_a_preset_is_the_same_bytes_on_every_machine(preset: str, backend: str) -> None:
    assert digest(planted.pair(preset, backend=backend)) == DIGESTS[preset, backend]
    assert {name for name, _ in DIGESTS} == planted.PRESETS.keys()


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"tied": True}, {"twins": True, "code": 62}])
def test_both_backends_draft_for_one_target(options: dict[str, Any]) -> None:
    first, second = planted.pair(**options), planted.pair(**options, backend="dflash2")
    assert (first.target_config, first.prompts) == (second.target_config, second.prompts)
    for name, values in first.target.items():
        np.testing.assert_array_equal(values, second.target[name])


def test_another_seed_gives_other_weights_and_other_cycles() -> None:
    first, second = planted.pair("small"), planted.pair("small", seed=1)
    assert digest(first) != digest(second)
    assert first.words.cycles != second.words.cycles


@EACH
def test_every_tensor_varies_and_no_projection_has_an_empty_part(preset: str, backend: str) -> None:
    pair = planted.pair(preset, backend=backend)
    for name, values in {**pair.target, **pair.draft}.items():
        assert np.ptp(values) > 0, name
        if name.endswith(("_proj.weight", "norm.weight", "fc.weight", "_kernel", "_projection.weight", "_codebook")):
            assert np.count_nonzero(values) > 0.99 * values.size, name


@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
@pytest.mark.parametrize("preset", ["standard", "tied"])
def test_the_plan_reaches_every_accepted_count_five_times(preset: str, backend: str) -> None:
    pair = planted.pair(preset, backend=backend)
    for drafts in (1, 4, 15):
        counts: Counter[int] = Counter()
        for prompt in pair.prompts:
            counts.update(pair.expected_accepted(prompt, drafts, NEW_TOKENS)[:-1])
        assert {count for count, times in counts.items() if times >= 5} == set(range(drafts + 1))


@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
def test_the_small_preset_fits_one_vector_and_reaches_none_some_all_but_one_and_all(backend: str) -> None:
    pair = planted.pair("small", backend=backend)
    assert sum(values.size for values in (*pair.target.values(), *pair.draft.values())) < SMALL_LIMIT
    assert set(pair.expected_accepted(pair.prompts[0], 4, 14)) == {0, 2, 3, 4}


@EACH
@pytest.mark.parametrize(("dtype", "shards"), [("F32", 1), ("BF16", 3)])
def test_the_written_folders_are_read_by_the_spec(
    preset: str, backend: str, dtype: str, shards: int, tmp_path: Path
) -> None:
    pair = planted.pair(preset, backend=backend, dtype=dtype)
    planted.write(tmp_path, pair, dtype, shards)
    target = read_target_config(tmp_path / "target")
    draft = read_draft_config(tmp_path / "draft", load_profile("zlab"), target)
    assert (target.unknown, draft.unknown) == ((), ())
    for name, shapes, tensors in (
        ("target", target_tensors(target), pair.target),
        ("draft", draft_tensors(draft), pair.draft),
    ):
        checkpoint = Checkpoint.open(tmp_path / name)
        checkpoint.check(shapes)
        for tensor, values in tensors.items():
            found = checkpoint.read(tensor)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found.values, values)


@pytest.mark.parametrize("backend", ["dflash", "dflash2"])
def test_the_component_config_says_what_the_published_one_says(backend: str) -> None:
    pair = planted.pair("small", backend=backend)
    target = read_target_config(json.dumps(pair.target_config).encode())
    published = read_draft_config(json.dumps(pair.draft_config).encode(), load_profile("zlab"), target)
    component = read_draft_config(
        json.dumps(planted.component_config(pair.options)).encode(), load_profile("ninfer"), target
    )
    assert (component.windows, component.causal, component.taps) == (
        published.windows,
        published.causal,
        published.taps,
    )
    assert (component.mask_id, component.theta, component.eps) == (published.mask_id, published.theta, published.eps)
    assert draft_tensors(component) == draft_tensors(published)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"gaps": ((1, 2), (1, 3))}, "one sum"),
        ({"taps": (2, 0)}, "below the last"),
        ({"draft_windows": (35, 0, 35)}, "must exceed the distance 35"),
        ({"drafts": 34}, "fewer than the cycle"),
        ({"copy_layer": 3}, "copy_layer"),
        ({"code": 64}, "value channels"),
        ({"draft_windows": (36, 40, 0)}, "one window"),
        ({"tied": True, "target_windows": (0, 0, 33)}, "33 tokens back"),
        ({"backend": "eagle"}, "expected one of dflash, dflash2"),
        ({"backend": "dflash2", "conv_group": 7}, "a divisor of the hidden width 72"),
        ({"backend": "dflash2", "code": 63}, "do not fit the value channels"),
        ({"backend": "dflash2", "candidates": 138}, "at most the 137 public ids"),
        ({"target_windows": (0, 8, 9)}, "one window"),
        ({"head_dim": 40}, "a power of 2"),
        ({"heads": 5}, "a multiple"),
        ({"theta": 0.5}, "theta 0.5"),
        ({"theta": float("nan")}, "theta nan"),
        ({"dtype": "F16"}, "dtype 'F16'"),
        ({"code": 0}, "code 0, expected 1 to"),
        ({"intermediate": -3}, "intermediate -3, expected 1 to"),
        ({"padding": 0}, "padding 0, expected 1 to"),
        ({"idle": 10**11}, "idle 100000000000, expected 0 to"),
        ({"backend": "dflash2", "rank": 1}, "rank 1, expected 2 to"),
        ({"target_windows": (-4, 0, 0)}, "expected positive ones"),
        ({"draft_windows": ()}, "without layers"),
        ({"gaps": ((),)}, "positive rows"),
        ({"head_dim": 8, "heads": 16, "kv_heads": 8}, "distance 35 leads by 5.2, expected 8"),
        ({"tied": True, "theta": 1.0}, "distance 33 leads by 0.0"),
    ],
)
def test_options_that_would_break_the_plan_are_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(PlanError, match=named):
        planted.pair("standard", **options)


def test_an_unknown_preset_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="preset 'large', expected one of standard, tied, small"):
        planted.pair("large")


@pytest.mark.parametrize(
    ("backend", "taps", "layers", "hidden"),
    [("dflash", (5, 3, 1), 8, 128), ("dflash", (10,), 12, 72), ("dflash2", (6,), 8, 128), ("dflash2", (10,), 12, 72)],
)
def test_a_deep_target_hides_neither_plan_nor_positions(
    backend: str, taps: tuple[int, ...], layers: int, hidden: int
) -> None:
    pair = planted.pair("standard", backend=backend, taps=taps, target_windows=(0,) * layers, hidden=hidden)
    planted.play(replace(pair, prompts=pair.prompts[-1:]), 36)


LOUD: dict[str, Any] = {"hidden": 40, "code": 16, "idle": 30, "seed": 1, "drafts": 4}
"""Sizes with so short a code that the layers' noise hides it."""


def test_a_pair_that_does_not_come_out_as_planned_is_told_by_its_round() -> None:
    with pytest.raises(PlanError, match=r"prompt 1, round 2 accepts 1, planned 4"):
        planted.play(planted.pair("standard", gaps=((1, 5, 3, 4),), **LOUD), 20)


SMALL = ["--preset", "small", "--new-tokens", "40"]


def test_the_command_says_what_to_expect_and_checks_it_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--out", str(tmp_path / "pair"), "--check", "--new-tokens", "40"]
    loud = [word for name, value in LOUD.items() for word in (f"--{name}", str(value))]
    assert main([*arguments, "--gaps", "1,5,3,4", *loud]) == 2
    assert "prompt 1, round 2 accepts 1, planned 4" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main([*arguments, "--preset", "small", "--is-causal", "absent"]) == 0
    assert "accepted counts planned over 40 new tokens" in capsys.readouterr().out
    assert "is_causal" not in json.loads((tmp_path / "pair" / "draft" / "config.json").read_text("utf-8"))


def test_no_counts_are_promised_of_twins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "pair"), *SMALL, "--twins"]) == 0
    told = capsys.readouterr().out
    assert told.endswith("no accepted counts are planned: near ties decide them\n")
    assert "planned over" not in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--out", ""], "found '', expected a folder"),
        (["--seed", "x"], "--seed: found 'x', expected a whole number"),
        (["--hidden", "wide"], "--hidden: found 'wide', expected a whole number"),
        (["--taps", ""], "--taps: found '', expected numbers"),
        (["--shards", str(2**21)], "2097152, expected 1 to 1,048,576"),
        (["--twins", "--check"], "--twins and --check: near ties decide what twins accept, so there is no plan"),
    ],
)
def test_the_command_names_what_it_found(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "pair"), *arguments])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_more_shards_than_tensors_and_a_place_without_room_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "model.safetensors")

    out = ["--out", str(tmp_path / "pair"), *SMALL]
    assert main([*out, "--shards", "1000"]) == 2
    assert "shards 1000, expected 1 to 25" in capsys.readouterr().err
    monkeypatch.setattr(folders, "write_tensors", full)
    assert main(out) == 2
    assert capsys.readouterr().err.endswith("pair: cannot be written: No space left on device\n")
    assert not list(tmp_path.iterdir())


def test_the_command_can_be_run_again_and_leaves_nothing_of_the_earlier_pair(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), *SMALL, "--shards", "3"]) == 0
    assert main(["--out", str(tmp_path), *SMALL, "--seed", "5"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "planted.json", "prompts.txt", "target"]
    for name in ("target", "draft"):
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["config.json", "model.safetensors"]
    told = json.loads((tmp_path / "planted.json").read_text("utf-8"))
    assert (told["options"]["seed"], told["dtype"]) == (5, "F32")


@pytest.mark.parametrize("strange", ["target/tokenizer.json", "draft/sub/notes", "target", "prompts.txt"])
@pytest.mark.parametrize("planned", [False, True])
def test_nothing_but_a_planted_pair_is_replaced(
    planned: bool, strange: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if planned:
        planted.write(tmp_path, planted.pair("small"))
        strange = strange if "/" in strange else f"{strange}.old/kept"
    (tmp_path / strange).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / strange).write_text("kept", "utf-8")
    within = not planned or strange.startswith(("target/", "draft/"))
    assert main(["--out", str(tmp_path), *SMALL]) == (2 if within else 0)
    assert ("is there already and no part of a planted pair" in capsys.readouterr().err) == within
    assert (tmp_path / strange).read_text("utf-8") == "kept"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    planted.write(tmp_path / "one", planted.pair("small"))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "target").symlink_to(tmp_path / "one" / "target")
    with pytest.raises(FileExistsError, match="two/target is there already"):
        planted.write(tmp_path / "two", planted.pair("small"))


DAMAGED = {
    "empty": b"",
    "cut": b'{"options": {"seed": 1}, "files": ["target/conf',
    "no text": b'{"files": ["\xff"]}',
    "deep": b"[" * 200_000,
    "twice": b'{"files": ["target/config.json"], "files": ["draft/config.json"]}',
    "huge": b" " * (folders.TOLD_LIMIT + 1),
    **{text: text.encode() for text in ("5", "null", "[]", "[1]", '"files"', "{}", '{"options": {}}')},
    **{
        files: f'{{"files": {files}}}'.encode()
        for files in ("5", "null", "true", '"target"', "[]", "[[1]]", "[null]", '{"target/config.json": 1}')
    },
}
"""What has been in a `planted.json` that was not written whole, or not by this program."""


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_planted_json_is_refused_by_name_and_kept(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted.write(tmp_path, planted.pair("small"))
    (tmp_path / "planted.json").write_bytes(content)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["--out", str(tmp_path), *SMALL]) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path}/planted.json is there already and tells of no planted pair: " in told
    assert told.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_a_planted_json_that_is_no_file_is_refused_by_name(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "planted.json")
    with pytest.raises(FileExistsError, match=r"planted\.json is there already .* not a file, expected a new folder"):
        planted.write(tmp_path, planted.pair("small"))


class StoppedError(Exception):
    """What interrupts a test's run."""


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file, by its path within the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_until(folder: Path, rename: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> bool:
    """Write a pair up to its rename of that number, from 0 on; whether that was reached."""
    done: list[Path] = []

    def counted(source: Path, target: Path) -> None:
        if folder in (Path(source).parent, Path(target).parent):  # not those of single files within the models
            if len(done) == rename:
                raise StoppedError
            done.append(Path(source))
        real(source, target)

    real = os.replace
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", counted)
        try:
            planted.write(folder, planted.pair("small", seed=5), **options)
        except StoppedError:
            return True
    return False


@pytest.mark.parametrize("earlier", [None, 1, 3], ids=["new", "one file", "three shards"])
def test_a_pair_can_be_written_again_wherever_writing_it_was_stopped(
    earlier: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.write(tmp_path / "whole", planted.pair("small", seed=7), shards=2)
    whole = contents(tmp_path / "whole")
    rename = 0
    while True:
        folder = tmp_path / str(rename)
        if earlier is not None:
            planted.write(folder, planted.pair("small"), shards=earlier)
        before = contents(folder)
        if not write_until(folder, rename, monkeypatch, shards=4):
            break
        assert rename or contents(folder) == before
        write_until(folder, rename // 2, monkeypatch, shards=5)  # stopped a second time
        planted.write(folder, planted.pair("small", seed=7), shards=2)
        assert contents(folder) == whole
        assert sorted(path.name for path in folder.iterdir()) == ["draft", "planted.json", "prompts.txt", "target"]
        rename += 1
    assert rename == (5 if earlier is None else 8)


def test_what_is_added_to_a_pair_that_was_stopped_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.write(tmp_path, planted.pair("small"), shards=3)
    assert write_until(tmp_path, 3, monkeypatch)
    (tmp_path / "target" / "tokenizer.json").touch()
    with pytest.raises(FileExistsError, match=r"target/tokenizer\.json is there already and no part"):
        planted.write(tmp_path, planted.pair("small"))


def test_what_a_killed_run_left_goes_and_that_of_a_live_one_stays(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for writer in (int(killed.stdout), os.getpid()):
        (tmp_path / f".writing-{writer}-x" / "new").mkdir(parents=True)
    planted.write(tmp_path, planted.pair("small"))
    assert [path.name for path in tmp_path.glob(".*")] == [f".writing-{os.getpid()}-x"]
