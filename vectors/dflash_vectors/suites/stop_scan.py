"""Ends of a text: stop strings and stop tokens, two limits, and output buffers that are not full yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite

NINFER = ("ninfer",)
EOS = 151645
Piece = tuple[int, str]


def _joined(texts: list[str]) -> tuple[Any, Any]:
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(text) for text in encoded], dtype=np.int64)
    return inputs.text(b"".join(encoded)), lengths


def _scan(
    pieces: str | list[Piece], strings: tuple[str, ...] = (), before: str = "", left: tuple[int, int] = (90, 80),
    show_stop: int = 0, stop_ids: tuple[int, ...] = (EOS,),
) -> dict[str, Any]:  # fmt: skip
    """A round of tokens with their texts; a plain string stands for tokens that are parted by '|', ids from 301 on."""
    if isinstance(pieces, str):
        pieces = [(301 + index, text) for index, text in enumerate(pieces.split("|"))] if pieces else []
    texts, lengths = _joined([text for _, text in pieces])
    wanted, string_lengths = _joined(list(strings))
    return {
        "licensed": np.array([token for token, _ in pieces], dtype=np.int64),
        "texts": texts,
        "lengths": lengths,
        "before": inputs.text(before),
        "strings": wanted,
        "string_lengths": string_lengths,
        "stop_ids": np.array(stop_ids, dtype=np.int64),
        "show_stop": show_stop,
        "output_left": left[0],
        "context_left": left[1],
    }


END = (EOS, "</s>")


def _case(slug: str, clause: str, given: dict[str, Any], catches: str, effect: str = "output") -> Case:
    """A case in which a divergence anywhere breaks the rule."""
    return Case(slug, (clause,), given, catches=catches, effect=effect)


@suite("stop.scan", profiles=NINFER)
def order(profile: Profile) -> Iterator[Case]:
    """Stop strings and stop tokens in one round, in both orders and in one token."""
    why = "stop tokens are looked for in the whole round before any string is, or the other way round"
    first, last = [(301, "a "), (302, "STOP"), END, (304, "b")], [(301, "a "), END, (303, "STOP"), (304, "b")]
    yield _case("string-then-token", "STOP-005", _scan(first, ("STOP",)), why)
    yield _case("token-then-string", "STOP-005", _scan(last, ("STOP",)), why)
    yield _case("both-in-one-token", "STOP-005", _scan([(301, "a "), END, (303, "b")], ("</s>",)), why)
    yield _case(
        "string-at-the-last-token", "STOP-005", _scan("one |two |three", ("three",)), "the last token is not scanned"
    )
    yield _case("string-in-one-token", "STOP-005", _scan("x#y", ("#",)), "a round of one token is not scanned")
    yield _case("no-end", "STOP-005", _scan("one |two |three", ("twice", "e t ")), "a text without a stop ends")
    yield _case("nothing-to-look-for", "STOP-005", _scan("one |two", stop_ids=()), "empty lists end the text", "crash")
    yield _case(
        "two-strings-in-two-tokens", "STOP-005", _scan("a1|b2|c3", ("c", "b")),
        "the string declared first ends the text, though another was completed by an earlier token",
    )  # fmt: skip


@suite("stop.scan", profiles=NINFER)
def choice(profile: Profile) -> Iterator[Case]:
    """Several stop strings that one token completes."""
    why = "of two strings the first declared, the longest or the last found is taken"
    yield _case("earlier-start-declared-last", "STOP-006", _scan("ab|cd", ("cd", "bcd")), why)
    yield _case("earlier-start-declared-first", "STOP-006", _scan("ab|cd", ("bc", "c", "d")), why)
    yield _case("same-start-longer-first", "STOP-006", _scan("ab|cd", ("cd", "c")), why)
    yield _case("same-start-shorter-first", "STOP-006", _scan("ab|cd", ("c", "cd")), why)
    yield _case("equal-strings", "STOP-006", _scan("ab|cd", ("x", "bc", "bc")), why)
    yield _case("twice-in-one-token", "STOP-006", _scan("a|x.y.z", (".",)), "the text is cut at the last match")


@suite("stop.scan", profiles=NINFER)
def cuts(profile: Profile) -> Iterator[Case]:
    """Where the text ends, in bytes, and what is committed of it."""
    why = "part of the stop string is shown, or tokens of it are not committed"
    yield _case("inside-a-token", "STOP-007", _scan("Hello |wor|ld### more|x", ("###",)), why)
    yield _case("over-three-tokens", "STOP-007", _scan("Hello #|#|# more|x", ("###",)), why)
    yield _case("at-the-very-start", "STOP-007", _scan("###|x", ("###",)), why)
    yield _case("after-two-byte-letters", "STOP-007", _scan("é|ü§ß|x", ("§",)), "the cut is counted in characters")
    yield _case("in-the-text-before", "STOP-007", _scan("c", ("abc",), before="xyzab"), why)
    span = "a stop string that two rounds or tokens share is missed"
    yield _case("over-two-rounds", "STOP-008", _scan("P here|x", ("STOP",), before="one STO"), span)
    yield _case("all-but-a-byte-before", "STOP-008", _scan("n\n\nb|x", ("\n\n",), before="one\n"), span)
    yield _case("partial-match-restarts", "STOP-008", _scan("a|a|b|x", ("aab",), before="a"), span)
    yield _case(
        "split-letter", "STOP-008", _split_letter(), "text is decoded token by token, and half a letter is lost"
    )
    yield _case(
        "empty-token", "STOP-008", _scan([(301, "ST"), (302, ""), (303, "OP"), (304, "x")], ("STOP",)), span
    )  # fmt: skip
    yield _case("not-in-the-text-before", "STOP-008", _scan("d|e", ("b",), before="abc"), "an old text ends the round")


def _split_letter() -> dict[str, Any]:
    """A stop string of one letter of two bytes, one in each of two tokens."""
    given = _scan("abc|d", ("é",))
    given["texts"], given["lengths"] = inputs.text(b"ab\xc3\xa9d"), np.array([3, 2])
    return given


@suite("stop.scan", profiles=NINFER)
def tokens_and_limits(profile: Profile) -> Iterator[Case]:
    """Stop tokens with text of their own, and rounds that use up a limit."""
    hidden = "the end marker is shown, or is not committed"
    pieces = [(301, "one "), (302, "two"), END, (304, "x")]
    yield _case("stop-hidden", "STOP-009", _scan(pieces), hidden)
    yield _case("stop-shown", "STOP-009", _scan(pieces, show_stop=1), hidden)
    yield _case("stop-first-hidden", "STOP-009", _scan([END, (302, "x")], before="abc"), hidden)
    yield _case("stop-at-the-limit", "STOP-009", _scan(pieces[:3], left=(3, 9)), "the limit hides the stop before it")
    reason = "the wrong limit is named, or a full one does not end the request"
    for slug, left in (
        ("output-limit", (3, 4)), ("context-capacity", (4, 3)), ("far-from-context", (3, 4000)),
        ("far-from-output", (4000, 3)), ("one-token-spare", (4, 5)),
    ):  # fmt: skip
        yield _case(slug, "STOP-010", _scan("a|b|c", ("z",), left=left), reason)
    yield _case("string-at-the-limit", "STOP-010", _scan("a|b|c", ("c",), left=(3, 7)), reason)
    too_many = "a round past a limit is cut in silence, or an empty one is taken for an end"
    for slug, text, left in (
        ("past-the-output", "a|b|c|d", (3, 9)), ("past-the-context", "a|b|c|d", (9, 3)), ("empty", "", (9, 9)),
        ("nothing-left", "a", (0, 9)),
    ):  # fmt: skip
        yield _case(f"refused-{slug}", "STOP-011", _scan(text, left=left), too_many)
    yield _case("refused-past-a-stop", "STOP-011", _scan([END, (302, "b"), (303, "c")], left=(2, 9)), too_many)


MASK = 151669


def _buffer(prompt: tuple[int, ...], new: tuple[int, ...], spare: int, stop_ids: tuple[int, ...]) -> dict[str, Any]:
    return {
        "buffer": np.array([*prompt, *new, *[MASK] * spare]),
        "prompt": len(prompt),
        "written": len(prompt) + len(new),
        "mask_id": MASK,
        "stop_ids": np.array(stop_ids, dtype=np.int64),
    }


@suite("stop.written")
def written(profile: Profile) -> Iterator[Case]:
    """Buffers whose tail is the mask id, which may be a stop id, and texts that hold the mask id themselves."""
    prompt, tail = (71, EOS, 73), "slots without a token end the request, or a stop in the prompt does"
    yield Case(
        "mask-is-a-stop", ("STOP-012",), _buffer(prompt, (31, 37, 41), 6, (EOS, MASK)), catches=tail, effect="output"
    )  # fmt: skip
    yield Case(
        "mask-is-a-stop-and-another-ends", ("STOP-012",), _buffer(prompt, (31, EOS, 41), 6, (MASK, EOS)),
        catches=tail, effect="output",
    )  # fmt: skip
    yield Case(
        "nothing-written", ("STOP-012",), _buffer(prompt, (), 4, (EOS, MASK)), catches=tail, effect="output"
    )  # fmt: skip
    yield Case(
        "full-buffer", ("STOP-012",), _buffer(prompt, (31, 37, EOS), 0, (EOS,)),
        catches="the last written slot is not scanned", effect="output",
    )  # fmt: skip
    value = "every token that equals the mask id is dropped"
    yield Case(
        "mask-said", ("STOP-013",), _buffer(prompt, (31, MASK, 41, MASK), 3, (EOS,)), catches=value, effect="output"
    )  # fmt: skip
    yield Case(
        "mask-said-first", ("STOP-013",), _buffer(prompt, (MASK, 37, EOS, 43), 3, (EOS,)), catches=value,
        effect="output",
    )  # fmt: skip
    yield Case(
        "mask-in-the-prompt", ("STOP-013",), _buffer((71, MASK, 73), (31, 37), 3, (EOS,)), catches=value,
        effect="output",
    )  # fmt: skip
    yield Case(
        "mask-said-and-stops", ("STOP-013", "STOP-001"), _buffer(prompt, (31, MASK, 41), 3, (MASK,)),
        catches="a mask id that the target said does not end the text, though it is a stop id", effect="output",
    )  # fmt: skip
