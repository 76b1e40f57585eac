"""make_planted_pair: write a target and a draft that follows it up to chosen slots, in the published formats."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dflash_spec.errors import DFlashError, OutputError

from dflash_vectors import planted
from dflash_vectors.commands.output import Parser, made_folders, say, unsaid, writable_folder
from dflash_vectors.planted.options import BACKENDS, MOST
from dflash_vectors.style import complain
from dflash_vectors.verdict import EXIT_INTERRUPTED, EXIT_UNUSABLE

PROGRAM = "dflash-make-planted-pair"

EPILOG = """\
DIR/target and DIR/draft each get a config.json and model.safetensors. Any loader of Qwen3 targets and of such
drafts reads them; DIR/prompts.txt has prompts, one a line, on which the draft's accepted counts are known in advance.
With --twins they are not: near ties decide them. A planted pair that DIR holds already is replaced; nothing else is.

examples:
  dflash-make-planted-pair --out pair
  dflash-make-planted-pair --out pair --backend dflash2
  dflash-make-planted-pair --out pair --preset tied --dtype BF16 --shards 3
  dflash-make-planted-pair --out pair --code 24 --check
  dflash-make-planted-pair --out pair --gaps '1,5,3,4;2,6,2,3' --drafts 4 --draft-windows 15,0,0 --is-causal absent

exit code:
  0  written
  2  options that contradict each other or that the draft cannot follow, or a folder that holds something else or that
     cannot be written
  130  interrupted
"""

CAUSALITY = {"true": True, "false": False, "absent": None}
Value = TypeVar("Value")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected numbers, as 1,16,2,15") from error


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected a whole number") from error


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("found '', expected a folder, as . for this one")
    return Path(text)


def _count(text: str) -> int:
    """A number of things, of which there is at least one."""
    number = _integer(text)
    if not 1 <= number <= MOST:
        raise argparse.ArgumentTypeError(f"{number}, expected 1 to {MOST:,}")
    return number


def _seed(text: str) -> int:
    number = _integer(text)
    if not 0 <= number < 2**64:
        raise argparse.ArgumentTypeError(f"{number}, expected 0 to 2^64 - 1")
    return number


def _rows(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(_numbers(row) for row in text.split(";"))


def _option(made: argparse.ArgumentParser, name: str, kind: Callable[[str], Value], text: str) -> None:
    """An option that keeps the preset's value unless it is given."""
    made.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, help=text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog=PROGRAM,
        description="Write a Qwen3 target and a DFlash or DFlash2 draft whose accepted counts are planned.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--out", type=_folder, required=True, metavar="DIR", help="folder to write into")
    made.add_argument("--preset", choices=sorted(planted.PRESETS), default="standard", help="what to start from")
    made.add_argument("--dtype", choices=("F32", "BF16"), default="F32", help="dtype of the tensors in the files")
    made.add_argument("--shards", type=_count, default=1, help="number of safetensors files of each model")
    made.add_argument("--new-tokens", type=_count, default=224, help="length for which accepted counts are printed")
    made.add_argument("--check", action="store_true", help="first have the reference decode that length, which takes "
        "seconds, minutes for wide models: nothing is written unless it accepts these counts")  # fmt: skip
    _option(made, "seed", _seed, "key of everything that is not planned")
    _option(made, "gaps", _rows, "distances between mispredicted tokens, a row a cycle, as 1,16,2,15;3,14,4,13")
    _option(made, "drafts", _count, "K, the proposals of a block")
    _option(made, "hidden", _integer, "width of the residual rows")
    _option(made, "code", _integer, "channels of a row that tell the tokens apart")
    _option(made, "heads", _integer, "query heads")
    _option(made, "kv-heads", _integer, "KV heads")
    _option(made, "head-dim", _integer, "channels of a head")
    _option(made, "intermediate", _integer, "width of the MLPs")
    _option(made, "target-windows", _numbers, "window of each target layer, 0 for a full layer, as 0,34,34")
    _option(made, "draft-windows", _numbers, "window of each draft layer")
    _option(made, "copy-layer", _integer, "the draft layer that copies from the context")
    _option(made, "taps", _numbers, "target blocks to tap, in recorded order")
    made.add_argument("--backend", choices=BACKENDS, default=argparse.SUPPRESS, help="the draft's kind")
    _option(made, "idle", _integer, "public ids that no text holds")
    _option(made, "conv-taps", _integer, "rows that DFlash2's convolution reads")
    _option(made, "conv-group", _integer, "channels of a group of DFlash2's convolution")
    _option(made, "rank", _integer, "rank of DFlash2's selector")
    _option(made, "candidates", _integer, "candidates of a slot of DFlash2")
    made.add_argument("--is-causal", choices=CAUSALITY, default=argparse.SUPPRESS, help="the draft's is_causal")
    twins = "near ties: a second id for every token, so that no accepted counts are planned"
    for flag, text in (("tied", "head tied to the embedding"), ("twins", twins)):
        made.add_argument(f"--{flag}", action="store_true", default=argparse.SUPPRESS, help=text)
    return made


def main(argv: list[str] | None = None) -> int:
    """Parse, build, write, and print what to expect; returns the exit code that `--help` documents."""
    made = parser()
    chosen: dict[str, Any] = vars(made.parse_args(argv))
    out, preset, dtype, shards, count, check = (
        chosen.pop(name) for name in ("out", "preset", "dtype", "shards", "new_tokens", "check")
    )
    if check and "twins" in chosen:
        made.error("--twins and --check: near ties decide what twins accept, so there is no plan to check")
    if "is_causal" in chosen:
        chosen["is_causal"] = CAUSALITY[chosen["is_causal"]]
    try:
        writable_folder(out)
        pair = planted.pair(preset, dtype=dtype, **chosen)
        if check:
            planted.play(pair, count)
        with made_folders(out):
            planted.write(out, pair, dtype, shards)
        say(summary(out, pair, dtype, count))
    except OutputError as error:
        return unsaid(error, PROGRAM)
    except (DFlashError, OSError, MemoryError) as error:
        said = error.strerror if isinstance(error, OSError) else None
        complain(f"{out}: cannot be written: {said}" if said else error, PROGRAM)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        complain("interrupted", PROGRAM)
        return EXIT_INTERRUPTED
    return 0


def summary(out: Path, pair: planted.Planted, dtype: str, count: int) -> str:
    """What was written, and the accepted counts to expect over `count` new tokens a prompt."""
    lines = [
        f"{out}/target and {out}/draft: {dtype}, {pair.public} public ids, mask {pair.options.mask_id}",
        f"{len(pair.prompts)} prompts of {len(pair.prompts[0])} tokens in {out}/prompts.txt",
        *(["no accepted counts are planned: near ties decide them"] if pair.options.twins else _planned(pair, count)),
    ]
    return "\n".join(lines)


def _planned(pair: planted.Planted, count: int) -> list[str]:
    drafts = pair.options.drafts
    counts = Counter(run for prompt in pair.prompts for run in pair.expected_accepted(prompt, drafts, count))
    return [
        f"accepted counts planned over {count} new tokens a prompt at K = {drafts}:",
        *(f"  {accepted:3d}  {counts[accepted]}" for accepted in range(drafts + 1)),
    ]
