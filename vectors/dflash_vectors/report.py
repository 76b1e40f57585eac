"""The failures of a run for people: what diverges first, which clause that breaks, and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorFileError
from dflash_spec.registry import load_clauses
from dflash_spec.tensors import Tensor

from dflash_vectors.cases import GoldenCase, Loader, default_folder, load_case
from dflash_vectors.runners.protocol import Answer
from dflash_vectors.style import Style
from dflash_vectors.table import CHAPTERS
from dflash_vectors.verdict import FAILED, PASSED, Column, Divergence, Element, Result, Run, digits


class Guess(NamedTuple):
    """A known fault that gives the output at hand, what there is to say about it, and the clauses that it breaks."""

    name: str
    text: str
    clauses: tuple[str, ...]


LikelyFaults = Callable[[GoldenCase, Answer], Sequence[Guess]]

IN_FULL = 3  # diverging tensors of a vector that are told; the others are counted
MANY = 3  # vectors that fail for one and the same reason are told together from here on
DUMP_LINES = 10


def failures(run: Run, style: Style, likely: LikelyFaults | None = None, load: Loader = load_case) -> str:
    """Every failure that no record explains: by implementation, by the clause that is blamed, and by op.

    Of each such group the smallest vector is told in full and the others take a line each. A composite runs many
    clauses at once, so what it blames is told only if no single op of the implementation fails.
    """
    blocks = []
    for column in run.columns:
        failed = [result for result in column.results if result.unexplained]
        if not failed:
            continue
        ran = len(column.of(PASSED, FAILED))
        blocks.append(style.paint(f"{column.label}: {len(failed)} of {ran} vectors failed", "bold"))
        unanswered = [same for same in _by_reason(failed) if len(same) >= MANY]
        blocks += ["\n".join(_unanswered_lines(column, same, run.folder, style)) for same in unanswered]
        told = {result.entry.id for same in unanswered for result in same}
        left = [result for result in failed if result.entry.id not in told]
        followers = [r for r in left if r.entry.op.composite and r.divergences] if _singles(failed) else []
        following = {result.entry.id for result in followers}
        groups: dict[tuple[str, str], list[Result]] = {}
        for result in sorted(left, key=lambda r: (r.entry.size, r.entry.id)):
            if result.entry.id not in following:
                groups.setdefault((result.clause, result.entry.op.name), []).append(result)
        guesses = {group: _guesses(likely, same[0], load) for group, same in groups.items()}
        ranks = clause_ranks(column, [result for same in groups.values() for result in same], guesses.values())
        previous = ""
        for clause, op in sorted(groups, key=lambda group: (ranks[group[0]], group)):
            first, *others = groups[clause, op]
            blocks += ["\n".join(clause_lines(clause, style))] if clause != previous else []
            previous = clause
            blocks.append(failure(column, first, run.folder, style, guesses[clause, op], load))
            if others:
                blocks.append("\n".join(style.clip(f"    also       {one_line(other)}") for other in others))
        if followers:
            names = ", ".join(result.entry.id for result in followers)
            blocks.append("\n".join(style.wrap("  ", f"also fails these composites, which follow from it: {names}")))
    return "\n\n".join(blocks)


def _singles(results: Iterable[Result]) -> list[Result]:
    return [result for result in results if not result.entry.op.composite]


def clause_ranks(
    column: Column, failed: Sequence[Result], guesses: Iterable[Sequence[Guess]] = ()
) -> Mapping[str, tuple[bool, bool, float, int, str]]:
    """Sorts the clauses that `failed` blames: what is most likely broken itself comes first.

    That is a clause which single ops blame; then one of the known fault that explains more groups of failures than any
    other, `guesses` being those of each group; then the one with the most failures times the share of its own vectors,
    those that name it first, that fails (a share alone favours clauses with one vector); then the one that comes first
    in a round. Over the known faults a report opens with a clause that is not the fault's own in 2 of 565 cases, and in
    26 of 407 without guesses.
    """
    by_singles = {result.clause for result in _singles(failed)}
    suspected = _suspected(guesses)
    ranks = {}
    for clause in {result.clause for result in failed}:
        ran = [result for result in column.of(PASSED, FAILED) if result.entry.clauses[0] == clause]
        own = _singles(ran) or ran
        count = sum(result.status == FAILED for result in own)
        chapter = clause.partition("-")[0]
        place = CHAPTERS.index(chapter) if chapter in CHAPTERS else len(CHAPTERS)
        ranks[clause] = (
            clause not in by_singles, clause not in suspected, -count * count / max(1, len(own)), place, clause
        )  # fmt: skip
    return ranks


def _suspected(guesses: Iterable[Sequence[Guess]]) -> set[str]:
    """The clauses of the faults that explain the most groups."""
    explained = Counter(guess for group in guesses for guess in group)
    most = max(explained.values(), default=0)
    return {clause for guess, groups in explained.items() if groups == most for clause in guess.clauses}


def _by_reason(failed: list[Result]) -> list[list[Result]]:
    """Failures without an answer, together where only the vector's id tells their reasons apart."""
    groups: dict[str, list[Result]] = {}
    for result in failed:
        if result.reason:
            groups.setdefault(result.reason.replace(result.entry.id, "<id>"), []).append(result)
    return list(groups.values())


def _unanswered_lines(column: Column, same: list[Result], folder: str, style: Style) -> Iterator[str]:
    first = same[0]
    yield from style.wrap(
        "  ", f"{len(same)} vectors without an answer: {first.reason.replace(first.entry.id, '<id>')}"
    )
    clauses = dict.fromkeys(result.clause for result in same)
    yield from style.wrap("    unproved   ", ", ".join(clauses), "dim")
    yield from style.wrap("    vectors    ", ", ".join(result.entry.id for result in same), "dim")
    yield style.paint("    reproduce  ", "dim") + _command(column, first, folder)


def clause_lines(clause: str, style: Style) -> Iterator[str]:
    """A clause's sentence, what goes wrong without it, and its source."""
    body = load_clauses()[clause]
    yield from style.wrap(f"{clause}  ", body.statement, "red")
    indent = " " * (len(clause) + 2)
    yield from style.wrap(f"{indent}Without it: ", body.without, "dim")
    yield from style.wrap(f"{indent}Source: ", body.source, "dim")


def failure(
    column: Column, result: Result, folder: str, style: Style,
    guesses: Sequence[Guess] = (), load: Loader = load_case, alone: bool = False,
) -> str:  # fmt: skip
    """One failed vector: what diverges first, by how much, what it looks like, and how to see it again.

    `alone` says that it was not compared with others, so that it is no smallest one.
    """
    lines = [f"  {style.paint(result.entry.id, 'bold')}  op {result.entry.op.name}"]
    try:
        case = load(result.entry)
    except TensorFileError as error:  # it could be read when it was judged
        return "\n".join([*lines, *style.wrap("    damaged    ", f"since it was judged: {error}", "red")])
    effect = f" (effect: {case.metadata['effect']})" if case.metadata.get("effect") else ""
    if case.metadata.get("catches"):
        lines += style.wrap("    catches    ", f"{case.metadata['catches']}{effect}", "dim")
    if result.reason:
        lines += style.wrap("    no answer  ", result.reason, "dim")
    for number, divergence in enumerate(result.divergences[:IN_FULL]):
        lines += divergence_lines(divergence, number == 0, style)
    if len(result.divergences) > IN_FULL:
        lines.append(f"    …          and {len(result.divergences) - IN_FULL} tensors more")
    answer = result.answer
    stages = [item.label for item in case.expected if item.role == "stages"]
    if answer is not None and stages and not any(label in answer.tensors for label in stages):
        lines += style.wrap("    hint       ", f"answer {', '.join(stages)} too, to see where it begins", "dim")
    for guess in guesses:
        lines += style.wrap("    looks like ", guess.text, "yellow")
    lines.append(style.paint("    reproduce  ", "dim") + _command(column, result, folder))
    title = "the vector:" if alone else f"the smallest failing vector of {result.clause}:"
    return "\n".join([*lines, style.paint(f"    {title}", "dim"), *_contents(case, result, style)])


def _guesses(likely: LikelyFaults | None, result: Result, load: Loader) -> Sequence[Guess]:
    """What the output looks like. A guess that goes wrong is told, because a report must not be lost over it."""
    if likely is None or result.answer is None:
        return ()
    try:
        return likely(load(result.entry), result.answer)
    except TensorFileError:  # `failure` tells it
        return ()
    except Exception as error:
        return (Guess("", f"no guess: {type(error).__name__}: {error}", ()),)


def _command(column: Column, result: Result, folder: str) -> str:
    words = ["dflash-check-vectors", "--implementation", column.spec]
    words += [] if folder == str(default_folder()) else ["--vectors", folder]
    return shlex.join([*words, "--id", result.entry.id])


def divergence_lines(divergence: Divergence, first: bool, style: Style) -> Iterator[str]:
    """Where a tensor differs and by how much; one that is not the `first` gets a line."""
    head = "    diverges   " if first else "    then       "
    if divergence.problem:
        yield from style.wrap(head, f"{divergence.label}: {divergence.problem}", "dim")
        return
    assert divergence.first is not None
    assert divergence.worst is not None
    count = f"{divergence.differing} of {divergence.total} wrong"
    if not first:
        yield from style.wrap(head, f"{divergence.label}{list(divergence.first.index)}, {count}", "dim")
        return
    yield style.paint(head, "dim") + f"first at {divergence.label}{list(divergence.first.index)}, {count}"
    yield from _element_lines(divergence.first)
    if divergence.worst.index != divergence.first.index:
        yield style.paint("    worst      ", "dim") + f"at {divergence.label}{list(divergence.worst.index)}"
        yield from _element_lines(divergence.worst)


def _element_lines(element: Element) -> Iterator[str]:
    indent = " " * 15
    yield f"{indent}expected {element.expected}"
    yield f"{indent}got      {element.got}"
    distances = []
    if element.ulps is not None:
        distances.append(f"{element.ulps} ulp{'' if element.ulps == 1 else 's'}")
    if element.bounds is not None:
        distances.append(f"{element.bounds:.3g} bounds (one is {element.bound:.3g})")
    if distances:
        yield f"{indent}distance {', '.join(distances)}"


def one_line(result: Result) -> str:
    """The first difference of a failed vector."""
    if result.reason:
        return f"{result.entry.id}: {result.reason}"
    first = result.divergences[0]
    if first.first is None:
        return f"{result.entry.id}: {first.label}: {first.problem}"
    where = f"{first.label}{list(first.first.index)}"
    return f"{result.entry.id}: {where} expected {first.first.expected}, got {first.first.got}"


def _contents(case: GoldenCase, result: Result, style: Style) -> Iterator[str]:
    """The vector in at most ten lines: inputs, and the tensor that diverges, from its first difference on."""
    rows = [(f"in.{name}", tensor) for name, tensor in case.inputs.items()]
    divergence = result.divergences[0] if result.divergences else Divergence("")
    shown = [(f"expected {e.label}", e.tensor) for e in case.expected if e.label == divergence.label]
    got = result.answer.tensors.get(divergence.label) if result.answer is not None else None
    shown += [(f"got {divergence.label}", got)] if got is not None else []
    room = DUMP_LINES - 1 - len(shown)
    hidden = len(rows) - room + 1 if len(rows) > room else 0
    rows = rows[: len(rows) - hidden]
    names = max(len(name) for name, _ in (*rows, *shown))
    for name, tensor in rows:
        yield _row(f"{name:<{names}}", tensor, (), style)
    for name, tensor in shown:
        index = divergence.first.index if divergence.first is not None else ()
        yield _row(f"{name:<{names}}", tensor, index, style)
    if hidden:
        yield f"      … and {hidden} inputs more"


def _row(name: str, tensor: Tensor, index: tuple[int, ...], style: Style) -> str:
    """A tensor in a line: as many values in row-major order as fit; all of them, or those from `index` on."""
    head = f"      {name}  {tensor.dtype:<4} {list(tensor.shape)!s:<12} "
    room = style.width - len(head)
    if tensor.dtype == "U8" and tensor.values.ndim == 1 and (text := _as_text(tensor)):
        return style.clip(head + text)
    words = [digits(tensor.dtype, value) for value in tensor.values.reshape(-1)[: style.width]]
    if len(" ".join(words)) <= room and tensor.values.size == len(words):
        return head + " ".join(words)
    start = int(np.ravel_multi_index(index, tensor.shape)) if index else 0
    line = "… " if start else ""
    for value in tensor.values.reshape(-1)[start:]:
        word = digits(tensor.dtype, value)
        if len(line) + len(word) + 2 > room:
            return head + line + "…"
        line += f"{word} "
    return head + line.rstrip()


def _as_text(tensor: Tensor) -> str:
    try:
        text = tensor.values.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return " ".join(text.split()) if all(c.isprintable() or c in "\t\n\r" for c in text) else ""
