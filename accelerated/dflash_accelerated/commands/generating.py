"""One answer of a pair: the command line, the stream, and what it came to."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from dflash_spec.config import read_draft_config, read_target_config
from dflash_spec.config.width import FREE_LIMIT, file_count
from dflash_spec.errors import DFlashError, OutputError, RequestError
from dflash_spec.registry import PROFILES, load_profile

from dflash_accelerated.commands import texts
from dflash_accelerated.commands.console import (
    EXIT_DIFFERENT,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_UNUSABLE,
    Parser,
    Progress,
    complain,
    is_terminal,
    put,
    told,
    unsaid,
)
from dflash_accelerated.engine import Engine
from dflash_accelerated.options import Options
from dflash_accelerated.requests import Generation, Round
from dflash_accelerated.statistics import Statistics

PROGRAM = "dflash-generate"

EPILOG = """\
the prompt, and the answer:
  --ids takes token ids and prints token ids; --bytes takes bytes, each the id of a token, and prints bytes; --text goes
  through TARGET/tokenizer.json (without a chat template) and prints text. Each takes the prompt itself, @FILE, or - for
  stdin. The answer goes to stdout as its rounds end; all else goes to stderr.

what the statistics say:
  accepted   how many rounds accepted 0, 1, ... K proposals: a round emits one token more than it accepts;
             counts beside each other that no round had share a line
  position   of the rounds whose proposal 1, 2, ... was tested, because all before it stood, how many accepted it
  stage      where a round's time goes; --compare decodes the same prompt without the draft, and says what it gains

examples:
  dflash-make-planted-pair --out pair
  dflash-generate pair/target pair/draft --ids @pair/prompts.txt --line 1 --draft-tokens 7 --compare
  dflash-generate Qwen3-8B Qwen3-8B-DFlash-b16 --text 'Once upon a time' --dtype bfloat16 --max-tokens 200
  dflash-generate Qwen3-8B Qwen3-8B-DFlash-b16 --text @story.txt --temperature 0.8 --top-p 0.95 --stop 'The end' --json

exit code:
  0    the answer is complete
  1    with --compare at temperature 0: plain decoding gives other tokens (a near tie, or a bug)
  2    wrong usage, folders or a prompt that cannot be used, or an answer that could not go on or be printed
  130  interrupted; what was decoded until then stands, and its statistics are told
"""


@dataclass
class Answer:
    """What has come so far."""

    rounds: list[Round] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for each in self.rounds for token in each.tokens]

    @property
    def reason(self) -> str:
        """Why it ended."""
        return (self.rounds and self.rounds[-1].finish_reason) or "interrupted"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog=PROGRAM,
        description="Decode a prompt with a target and a DFlash or DFlash2 draft, and say how well the draft did.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("target", metavar="TARGET", help="the target's folder: config.json and model.safetensors")
    made.add_argument("draft", metavar="DRAFT", help="the draft's folder")
    prompt = made.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--ids", metavar="IDS", help="prompt: token ids, as 1,2,3; @FILE or - holds one prompt a line")
    prompt.add_argument("--bytes", metavar="BYTES", help="prompt: bytes, each the id of a token")
    prompt.add_argument("--text", metavar="TEXT", help="prompt: text for the target's tokenizer")
    add = made.add_argument
    add("--line", type=int, metavar="N", help="the line of --ids to take, counted from 1")
    add("--max-tokens", type=int, default=128, metavar="N", help="the most tokens of the answer (128)")
    _add_sampling(made)
    _add_engine(made)
    add("--compare", action="store_true", help="also decode without the draft, and compare")
    add("--json", action="store_true", help="print one JSON object at the end instead of the answer as it comes")
    add("--quiet", action="store_true", help="no statistics")
    return made


def _add_sampling(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("sampling").add_argument
    add("--temperature", type=float, default=0.0, metavar="T", help="0 takes the most likely token (0)")
    add("--seed", type=int, default=0, metavar="N", help="equal seeds give equal answers (0)")
    add("--top-k", type=int, default=0, metavar="N", help="keep the N best candidates; 0 keeps all")
    add("--top-p", type=float, default=1.0, metavar="P", help="keep candidates up to this cumulative probability (1)")
    add("--min-p", type=float, default=0.0, metavar="P", help="drop those below this share of the best (ninfer)")
    add("--presence-penalty", type=float, default=0.0, metavar="X", help="off the logit of emitted tokens (ninfer)")
    add("--frequency-penalty", type=float, default=0.0, metavar="X", help="the same for each time (ninfer)")
    add("--allowed-ids", type=_ids, metavar="IDS", help="the only ids that may be emitted")
    add("--stop-ids", type=_ids, metavar="IDS", help="ids that end the answer (default: the target's own)")
    add("--stop", action="append", default=[], metavar="STRING", help="text that ends the answer; may be repeated")
    add("--show-stop", action="store_true", help="print a stop id's own text too")


def _add_engine(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("engine").add_argument
    add("--draft-tokens", type=int, metavar="K", help="proposals of a round (default: as many as the draft was "
        "trained for; ninfer has no default)")  # fmt: skip
    add("--max-context", type=int, metavar="N", help="rows to reserve (default: what this answer needs at most)")
    add("--prefill-chunk", type=int, default=512, metavar="N", help="rows of the prompt read at a time (512)")
    add("--public-tokens", type=int, metavar="N", help="ids that the tokenizer knows; later ones never come out")
    add("--dtype", help="float32 or bfloat16 (default: the files' own)")
    add("--device", default="cpu", help="where to compute: cpu or cuda (cpu)")
    add("--kernels", default="auto", choices=("auto", "torch", "native", "triton"), help="what runs the ops (auto)")
    add("--profile", default="zlab", choices=PROFILES, help="whose rules hold where published systems differ (zlab)")
    add("--threads", type=int, metavar="N", help="CPU threads (default: PyTorch's choice); 1 on a busy machine")


def _ids(text: str) -> list[int]:
    try:
        return texts.numbers(text)
    except RequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(argv: Sequence[str] | None = None) -> int:
    """Parse, decode, print; returns the exit code that `--help` documents."""
    made = parser()
    options = made.parse_args(argv)
    if options.line is not None and options.ids is None:
        made.error("--line belongs to --ids")
    if options.threads is not None and not 1 <= options.threads <= 1024:
        made.error(f"--threads {options.threads}: expected 1 to 1024")
    answer = Answer()
    try:
        return _decoded(options, answer)
    except OutputError as error:
        return unsaid(error, PROGRAM)
    except KeyboardInterrupt:
        return _interrupted(options, answer)
    except (DFlashError, OSError, MemoryError) as error:
        complain(error, PROGRAM)
        return EXIT_UNUSABLE


def _decoded(options: argparse.Namespace, answer: Answer) -> int:
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    prompt = _prompt(options)
    if options.stop and prompt.pieces is None:
        raise RequestError("--stop with --ids, expected --text or --bytes: their tokens have bytes to look for it in")
    progress = Progress(1)
    progress.show(0, f"loading {options.target} and {options.draft}")
    try:
        engine = _engine(options, prompt)
    finally:
        progress.close()
    asked: Options = {
        "temperature": options.temperature, "seed": options.seed, "top_k": options.top_k, "top_p": options.top_p,
        "min_p": options.min_p, "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty, "allowed_tokens": options.allowed_ids,
        "stop_ids": options.stop_ids, "pieces": prompt.pieces, "stop_strings": options.stop,
        "show_stop": options.show_stop,
    }  # fmt: skip
    engine.request(prompt.ids, options.max_tokens, **asked)  # refuse before the work
    if options.compare:  # the first forwards of a process are slower than all others
        engine.generate(prompt.ids[:1], 4)
        engine.decode_plain(prompt.ids[:1], 2)
    _stream(engine, prompt, options, asked, answer)
    plain = engine.decode_plain(prompt.ids, options.max_tokens, **asked) if options.compare else None
    return _tell(options, answer, plain)


def _prompt(options: argparse.Namespace) -> texts.Prompt:
    if options.text is not None:
        return texts.of_text(options.text, Path(options.target))
    return texts.of_ids(options.ids, options.line) if options.ids is not None else texts.of_bytes(options.bytes)


def _engine(options: argparse.Namespace, prompt: texts.Prompt) -> Engine:
    profile = load_profile(options.profile)
    if options.draft_tokens is None and profile.axes["width_rule"] == "free":
        raise RequestError(f"--profile {options.profile} without --draft-tokens, expected it, 1 to {FREE_LIMIT}")
    target = read_target_config(Path(options.target))
    draft = read_draft_config(Path(options.draft), profile, target, "published")
    context = options.max_context
    if context is None:
        longest = min(target.max_positions, draft.max_positions)
        context = max(1, min(longest, len(prompt.ids) + options.max_tokens))
    public = prompt.known if options.public_tokens is None else options.public_tokens
    engine = Engine.from_pretrained(
        options.target, options.draft, draft_tokens=options.draft_tokens, max_batch=1, max_context=context,
        prefill_chunk=options.prefill_chunk, device=options.device, dtype=options.dtype, kernels=options.kernels,
        profile=options.profile, public_tokens=public,
    )  # fmt: skip
    trained = file_count(draft.block_size)
    if engine.draft_tokens > trained and not options.quiet:
        found = f"--draft-tokens {engine.draft_tokens}, where the draft was trained for {trained}"
        complain(f"{found}: allowed, but nothing taught it the later ones", PROGRAM)
    return engine


def _stream(engine: Engine, prompt: texts.Prompt, options: argparse.Namespace, asked: Options, answer: Answer) -> None:
    """Decode, and print each round as it ends; progress is drawn where the answer itself does not show it."""
    shown = is_terminal(sys.stdout) and not options.json
    progress = Progress(options.max_tokens)
    count = 0
    try:
        with closing(engine.stream(prompt.ids, options.max_tokens, **asked)) as rounds:
            for latest in rounds:
                answer.rounds.append(latest)
                if not options.json:
                    _show(latest, prompt, count)
                count += len(latest.tokens)
                if not shown:
                    progress.show(count, f"{count} of {options.max_tokens} tokens")
    finally:
        progress.close()
        if count and not options.json:
            put("\n")


def _show(latest: Round, prompt: texts.Prompt, before: int) -> None:
    if prompt.pieces is None:
        put("".join(f"{' ' if before + at else ''}{token}" for at, token in enumerate(latest.tokens)))
    elif is_terminal(sys.stdout):
        text = latest.text.decode("utf-8", "backslashreplace")
        put("".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text))
    else:
        put(latest.text)


def _tell(options: argparse.Namespace, answer: Answer, plain: Generation | None = None) -> int:
    """The statistics, or all of it as JSON; returns the exit code."""
    found = Statistics.of(answer.rounds)
    alone = None if plain is None else Statistics.of(plain)
    same = None if plain is None or options.temperature else plain.tokens == tuple(answer.tokens)
    code = EXIT_DIFFERENT if same is False else EXIT_DONE
    if options.json:
        text = b"".join(each.text for each in answer.rounds).decode("utf-8", "backslashreplace")
        record = {
            "format": 1, "tokens": answer.tokens, "text": None if options.ids is not None else text,
            "finish_reason": answer.reason, "statistics": found.record(),
            "plain": alone and alone.record(), "speed_up": _speed_up(found, alone), "same_as_plain": same,
        }  # fmt: skip
        put(json.dumps(record, indent=1, allow_nan=False) + "\n")
    elif not options.quiet:
        told(f"\nended: {answer.reason}\n{found}\n")
    if alone is not None and not options.json:
        told(_comparison(found, alone, same))
    return code


def _speed_up(found: Statistics, alone: Statistics | None) -> float | None:
    if alone is None or not found.tokens_per_second or not alone.tokens_per_second:
        return None
    return found.tokens_per_second / alone.tokens_per_second


def _comparison(found: Statistics, alone: Statistics, same: bool | None) -> str:
    faster = _speed_up(found, alone)
    line = f"plain decoding: {_count(alone.tokens_per_second)} tokens a second"
    line += "" if faster is None else f"; with the draft {faster:.2f} times as fast"
    words: dict[Any, str] = {True: "\nthe same tokens", False: "\nother tokens: a near tie, or a bug", None: ""}
    return f"{line}{words[same]}\n"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _interrupted(options: argparse.Namespace, answer: Answer) -> int:
    try:
        if answer.rounds:
            _tell(options, answer)
    except OutputError:
        pass  # it was interrupted, whatever became of stdout
    complain("interrupted", PROGRAM)
    return EXIT_INTERRUPTED
