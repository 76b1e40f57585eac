"""dflash-generate: what it prints, where, and the exit codes that it promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from dflash_accelerated import Engine, Generation, Round
from dflash_accelerated.commands import generating, texts
from dflash_accelerated.commands.generate import main
from dflash_spec.errors import RequestError
from dflash_vectors.planted import Planted

SCRIPT = [sys.executable, "-c", "import sys; from dflash_accelerated.commands.generate import main; sys.exit(main())"]
Capture = pytest.CaptureFixture[str]
Pairs = Callable[..., tuple[Path, Planted]]


@pytest.fixture(scope="module")
def pair(planted_pair: Pairs) -> tuple[list[str], Planted]:
    """The folders as arguments, and the plan."""
    folder, plan = planted_pair("standard")
    return [str(folder / "target"), str(folder / "draft"), "--draft-tokens", "7"], plan


def ids(plan: Planted, prompt: int = 0) -> str:
    return ",".join(map(str, plan.prompts[prompt]))


def test_ids_come_out_on_stdout_and_the_statistics_on_stderr(pair: tuple[list[str], Planted], capsys: Capture) -> None:
    folders, plan = pair
    assert main([*folders, "--ids", ids(plan), "--max-tokens", "30", "--compare"]) == 0
    printed = capsys.readouterr()
    assert printed.out == " ".join(map(str, plan.continuation(plan.prompts[0], 30))) + "\n"
    for part in ("ended: length", "1 answer, 30 tokens in", "accepted  rounds", "position  tested", "verify", "prefill",
                 "plain decoding:", "times as fast", "the same tokens"):  # fmt: skip
        assert part in printed.err


@pytest.mark.parametrize(("quiet", "notes"), [([], 1), (["--quiet"], 0)], ids=["told", "quiet"])
def test_more_drafts_than_the_draft_was_trained_for_are_told(
    pair: tuple[list[str], Planted], capsys: Capture, quiet: list[str], notes: int
) -> None:
    folders, plan = pair
    trained = json.loads((Path(folders[1]) / "config.json").read_text("utf-8"))["dflash_config"]["block_size"] - 1
    words = [*folders[:2], "--ids", ids(plan), "--max-tokens", "9", *quiet, "--draft-tokens"]
    for drafts, told in ((trained, 0), (trained + 70, notes)):
        assert main([*words, str(drafts)]) == 0
        assert capsys.readouterr().err.count(f"where the draft was trained for {trained}: ") == told


def test_a_line_of_a_file_is_a_prompt_and_json_has_all_of_it(
    pair: tuple[list[str], Planted], capsys: Capture, tmp_path: Path
) -> None:
    folders, plan = pair
    (tmp_path / "prompts").write_text("\n".join(" ".join(map(str, prompt)) for prompt in plan.prompts), "utf-8")
    words = [*folders, "--ids", f"@{tmp_path / 'prompts'}", "--max-tokens", "25"]
    assert main([*words, "--line", "2", "--json", "--compare"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tokens"] == plan.continuation(plan.prompts[1], 25)
    assert (told["finish_reason"], told["same_as_plain"], told["text"]) == ("length", True, None)
    assert sum(told["statistics"]["accepted"]) == told["statistics"]["rounds"]
    assert told["plain"]["rounds"] == 24
    assert main(words) == 2
    assert f"holds {len(plan.prompts)} lines, expected one, or --line 1 to" in capsys.readouterr().err


def test_bytes_go_in_and_come_out_and_a_stop_string_ends_them(
    pair: tuple[list[str], Planted], capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    folders, plan = pair
    (tmp_path / "prompt").write_bytes(bytes(plan.prompts[0]))
    said = bytes(plan.continuation(plan.prompts[0], 40))
    words = [*folders, "--bytes", f"@{tmp_path / 'prompt'}", "--max-tokens", "40", "--quiet"]
    assert main(words) == 0
    assert capfdbinary.readouterr() == (said + b"\n", b"")
    stop = said[10:12].decode("ascii")
    assert main([*words, "--stop", stop]) == 0
    assert capfdbinary.readouterr().out == said[: said.index(stop.encode())] + b"\n"


def test_text_goes_through_the_tokenizer_of_the_folder(
    pair: tuple[list[str], Planted], capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers package is not installed")
    folders, plan = pair
    vocabulary = {character: at for at, character in enumerate(texts._byte_level()) if at < plan.public}
    model = tokenizers.models.BPE(vocabulary, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    target = tmp_path / "target"
    target.mkdir()
    for path in Path(folders[0]).iterdir():
        (target / path.name).symlink_to(path)
    tokenizer.save(str(target / "tokenizer.json"))
    words = [str(target), *folders[1:], "--max-tokens", "9", "--quiet"]
    assert main([*words, "--text", "Ab!"]) == 0
    shown = capfdbinary.readouterr().out
    assert main([*words, "--ids", ",".join(str(vocabulary[character]) for character in "Ab!")]) == 0
    spelled = {at: character for character, at in vocabulary.items()}
    alone = b"".join(texts._byte_level()[spelled[int(token)]] for token in capfdbinary.readouterr().out.split())
    assert shown == alone + b"\n"
    assert main([*folders, "--text", "Ab!"]) == 2
    assert b"tokenizer.json: no such file, expected a tokenizer" in capfdbinary.readouterr().err


def test_the_piece_of_a_token_is_its_bytes_in_either_spelling() -> None:
    assert [texts._plain(word) for word in ("▁the", "<0x0A>", "ä", "<0xZZ>")] == [
        b" the", b"\n", "ä".encode(), b"<0xZZ>"
    ]  # fmt: skip
    byte_level = texts._spelling('{"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}')
    assert byte_level("ĠtheĊ") == b" the\n"
    assert sorted(texts._byte_level().values()) == [bytes([byte]) for byte in range(256)]


BAD = {
    "--ids 1,x": "--ids: item 1 is 'x', expected a token id",
    "--ids 1,-2": "--ids: item 1 is '-2', expected a token id",
    "--ids 99999": "prompt_ids[0] is 99999, expected 0 to",
    "--ids 1,,2": "--ids: item 1 is '', expected a token id",
    "--ids ,": "--ids: item 0 is '', expected a token id",
    "--ids 1,2,": "--ids: item 2 is '', expected a token id",
    "--ids @/nowhere": "/nowhere: cannot be read: No such file or directory",
    "--ids 1 --line 2": "--line 2, expected 1 to 1",
    "--ids 1 --temperature nan": "temperature is nan, expected a finite number",
    "--ids 1 --top-k -1": "top_k is -1, expected 0 to",
    "--ids 1 --top-p 2": "top_p is 2.0, expected above 0, at most 1",
    "--ids 1 --min-p 0.5": "profile zlab has no min_p",
    "--ids 1 --seed -1": "seed is -1, expected 0 to",
    "--ids 1 --max-tokens 0": "max_new_tokens is 0, expected 1 to",
    "--ids 1 --draft-tokens 0": "draft_tokens: found 0",
    "--ids 1 --dtype float": "dtype is 'float' in profile zlab, expected None, a torch.dtype or one of BF16, F32",
    "--ids 1 --device abacus": "device is 'abacus', expected the name of a device",
    "--ids 1 --prefill-chunk 0": "prefill_chunk is 0, expected 1 to",
    "--ids 1 --max-context 0": "max_context is 0, expected 1 to",
    "--ids 1 --stop-ids 99999": "stop_ids[0] is 99999, expected 0 to",
    "--ids 1 --stop end": "--stop with --ids, expected --text or --bytes",
    "--ids 1 --public-tokens 0": "public_tokens is 0, expected 1 to",
}


@pytest.mark.parametrize(("words", "message"), BAD.items(), ids=BAD)
def test_a_bad_argument_is_told_in_one_line(
    pair: tuple[list[str], Planted], capsys: Capture, words: str, message: str
) -> None:
    assert main([*pair[0], *words.split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("dflash-generate: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("words", ["--ids 1 --text a", "", "--bytes a --line 1", "--ids 1 --threads 0",
                                   "--ids 1 --top-k x", "--ids 1 --kernels fast", "--ids 1 --stop-ids a"])  # fmt: skip
def test_wrong_usage_leaves_with_2(pair: tuple[list[str], Planted], capsys: Capture, words: str) -> None:
    with pytest.raises(SystemExit) as left:
        main([*pair[0], *words.split()])
    assert left.value.code == 2
    assert "usage: dflash-generate" in capsys.readouterr().err


def test_folders_that_cannot_be_used_are_named(
    pair: tuple[list[str], Planted], capsys: Capture, tmp_path: Path
) -> None:
    target, draft = pair[0][:2]
    (tmp_path / "config.json").write_text("{", "utf-8")
    for folders in ([str(tmp_path / "none"), draft], [target, str(tmp_path)], [target, target], ["", draft]):
        assert main([*folders, "--ids", "1"]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_other_tokens_of_plain_decoding_are_told_by_the_exit_code(
    pair: tuple[list[str], Planted], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, plan = pair
    plain = Engine.decode_plain

    def other(engine: Engine, prompt: list[int], count: int, **options: object) -> Generation:
        return plain(engine, prompt[:1], count)

    monkeypatch.setattr(Engine, "decode_plain", other)
    assert main([*folders, "--ids", ids(plan), "--max-tokens", "9", "--compare"]) == 1
    assert "other tokens: a near tie, or a bug" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_decoded(
    pair: tuple[list[str], Planted], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, plan = pair
    show = generating._show

    def interrupted(latest: Round, prompt: texts.Prompt, before: int) -> None:
        show(latest, prompt, before)
        if before > 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(generating, "_show", interrupted)
    assert main([*folders, "--ids", ids(plan), "--max-tokens", "60"]) == 130
    printed = capsys.readouterr()
    said = [int(token) for token in printed.out.split()]
    assert 5 < len(said) < 60
    assert said == plan.continuation(plan.prompts[0], len(said))
    assert f"ended: interrupted\n1 answer, {len(said)} tokens" in printed.err
    assert printed.err.endswith("dflash-generate: interrupted\n")


def test_a_signal_ends_a_run_with_130_and_no_traceback(pair: tuple[list[str], Planted]) -> None:
    folders, plan = pair
    words = [*folders, "--ids", ids(plan), "--max-tokens", "100000", "--threads", "1", "--stop-ids", "0"]
    with subprocess.Popen([*SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        first = running.stdout.read(2)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, "Traceback" in err) in {(130, False), (0, False)}, err
    assert (first + out).split()[0] == str(plan.continuation(plan.prompts[0], 1)[0])


def test_the_way_in_loads_no_pytorch() -> None:
    told = "import sys; from dflash_accelerated.commands import generate; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", told], check=True, timeout=60)


def test_a_reader_that_leaves_ends_it_without_a_word(pair: tuple[list[str], Planted]) -> None:
    folders, plan = pair
    words = [*folders, "--ids", ids(plan), "--max-tokens", "150", "--threads", "1"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*SCRIPT, *words], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (2, "")


def test_a_full_disk_is_told(pair: tuple[list[str], Planted]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    folders, plan = pair
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [*SCRIPT, *folders, "--ids", ids(plan)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "dflash-generate: stdout: No space left on device: what follows is not printed\n"


def test_a_profile_without_a_default_width_asks_for_one(pair: tuple[list[str], Planted], capsys: Capture) -> None:
    words = [*pair[0][:2], "--ids", "1", "--max-tokens", "3", "--profile", "ninfer", "--dtype", "bfloat16"]
    assert main(words) == 2
    told = "--profile ninfer without --draft-tokens, expected it, 1 to 15"
    assert capsys.readouterr().err == f"dflash-generate: {told}\n"
    assert main([*words, "--draft-tokens", "2"]) == 0


@pytest.mark.parametrize("option", ["--allowed-ids", "--stop-ids"])
def test_a_gap_between_ids_is_told_by_its_place(pair: tuple[list[str], Planted], capsys: Capture, option: str) -> None:
    with pytest.raises(SystemExit):
        main([*pair[0], "--ids", "1", option, "4,5,,6"])
    assert f"argument {option}: item 2 is '', expected a token id" in capsys.readouterr().err


def test_ids_stand_between_commas_or_white_space() -> None:
    assert texts.numbers(" 1, 2 ,3\t4 ") == [1, 2, 3, 4]
    assert texts.numbers(" ") == []


def test_input_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        texts.read(f"@{tmp_path}")
    with pytest.raises(RequestError, match="holds nothing"):
        texts.of_ids(" \n ", None)


def test_help_teaches(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    for part in ("examples:", "exit code:", "what the statistics say:", "--presence-penalty", "--compare", "130"):
        assert part in shown
