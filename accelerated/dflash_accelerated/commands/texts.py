"""Prompts as people give them, and answers as they read them: token ids, bytes, or text through a tokenizer."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_spec.errors import RequestError

from dflash_accelerated.requests import Pieces

FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Prompt:
    """Token ids, the bytes of every token where the answer is read as text, and how many ids the tokenizer knows."""

    ids: list[int]
    pieces: Pieces | None = None
    known: int | None = None


def of_ids(given: str, line: int | None) -> Prompt:
    """Ids separated by commas or white space; of several lines `line`, counted from 1. Raises RequestError."""
    rows = [row for row in read(given).decode("utf-8", "replace").splitlines() if row.strip()]
    if not rows:
        raise RequestError("--ids holds nothing, expected token ids")
    if line is None and len(rows) > 1:
        raise RequestError(f"--ids holds {len(rows)} lines, expected one, or --line 1 to {len(rows)}")
    if line is not None and not 1 <= line <= len(rows):
        raise RequestError(f"--line {line}, expected 1 to {len(rows)}")
    try:
        return Prompt(numbers(rows[(line or 1) - 1]))
    except RequestError as error:
        raise RequestError(f"--ids: {error}") from error


def numbers(given: str) -> list[int]:
    """Token ids between commas or white space. Raises RequestError that names the item which is none."""
    items = re.split(r"\s*,\s*|\s+", given.strip()) if given.strip() else []
    for at, item in enumerate(items):
        if not re.fullmatch(r"[0-9]{1,18}", item):
            raise RequestError(f"item {at} is {item[:40]!r}, expected a token id")
    return [int(item) for item in items]


def of_bytes(given: str) -> Prompt:
    """Every byte is the id of a token, as in byte-level models. Raises RequestError."""
    return Prompt(list(read(given)), lambda token: bytes([token]) if token < 256 else b"<%d>" % token)


def of_text(given: str, folder: Path) -> Prompt:
    """Text through the tokenizer.json of `folder`, without a chat template.

    Raises RequestError: no such file, a damaged one, or no `tokenizers` package.
    """
    tokenizer = _open(folder / "tokenizer.json")
    text = read(given).decode("utf-8", "surrogateescape")
    if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
        raise RequestError("--text is not UTF-8; --bytes takes any bytes")
    known = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    return Prompt(list(tokenizer.encode(text).ids), _pieces(tokenizer), known)


def read(given: str) -> bytes:
    """An argument's bytes: its own, those of the file after `@`, or stdin for `-`. Raises RequestError."""
    try:
        if given == "-":
            return sys.stdin.buffer.read()
        return Path(given[1:]).read_bytes() if given.startswith("@") else given.encode("utf-8", "surrogateescape")
    except (OSError, ValueError, AttributeError) as error:
        told = getattr(error, "strerror", None) or error
        raise RequestError(f"{'stdin' if given == '-' else given[1:]}: cannot be read: {told}") from error


def _open(path: Path) -> Any:
    if not path.is_file():
        raise RequestError(f"{path}: no such file, expected a tokenizer; --ids and --bytes need none")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise RequestError("--text needs the tokenizers package: pip install 'dflash-oracle[text]'") from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise RequestError(f"{path}: no tokenizer: {error}") from error


def _pieces(tokenizer: Any) -> Pieces:
    """The bytes of each token. Decoding one token at a time would lose characters that several tokens share."""
    told = json.loads(tokenizer.to_str())
    added = {each["id"]: each["content"].encode() for each in told.get("added_tokens", ())}
    spelled = _spelling(json.dumps(told.get("decoder")))

    def piece(token: int) -> bytes:
        word = tokenizer.id_to_token(token)
        return added[token] if token in added else b"" if word is None else spelled(word)

    return piece


def _spelling(decoder: str) -> Callable[[str], bytes]:
    if '"ByteLevel"' in decoder:
        table = _byte_level()
        return lambda word: b"".join(table.get(character) or character.encode() for character in word)
    return _plain


def _plain(word: str) -> bytes:
    """A word of a tokenizer that writes a blank as ▁ and a lone byte as <0x0A>."""
    lone = FALLBACK.fullmatch(word)
    return bytes([int(lone[1], 16)]) if lone else word.replace("▁", " ").encode()


def _byte_level() -> dict[str, bytes]:
    """The byte of each character that stands for one: itself where it is visible, else 256 and up, in order."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): bytes([byte]) for byte in visible} | {
        chr(256 + at): bytes([byte]) for at, byte in enumerate(hidden)
    }
