"""Faults of ends: stop strings, hidden stop tokens, limits, and slots that hold no token yet."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import stop
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

NINFER = ("ninfer",)
SESSION = "Infernix src/models/qwen3_5/frontend/output_session.cpp"
LOOP = "z-lab/dflash@44947fb dflash/model.py"


@fault("dflash_reference.stop.scan", clauses=("STOP-005",), report=SESSION, effect="output", profiles=NINFER)
def stop_tokens_before_stop_strings(true: Function) -> Function:
    """A stop token ends the text though it completes a stop string."""

    def wrong(licensed: Array, stop_ids: Array, strings: Array, string_lengths: Array, **named: Any) -> Any:
        given = {"licensed": licensed, "stop_ids": stop_ids, **named}
        done = true(strings=strings, string_lengths=string_lengths, **given)
        if done.reason == stop.STRING and licensed[done.kept - 1] in stop_ids:
            return true(strings=strings[:0], string_lengths=string_lengths[:0], **given)
        return done

    return by_name(true, wrong)


@fault("dflash_reference.stop.scan", clauses=("STOP-005",), report=SESSION, effect="output", profiles=NINFER)
def whole_round_scanned_for_tokens_first(true: Function) -> Function:
    """A stop token anywhere in the round wins over a stop string before it."""

    def wrong(licensed: Array, stop_ids: Array, strings: Array, string_lengths: Array, **named: Any) -> Any:
        if np.isin(licensed, stop_ids).any():
            strings, string_lengths = strings[:0], string_lengths[:0]
        return true(licensed=licensed, stop_ids=stop_ids, strings=strings, string_lengths=string_lengths, **named)

    return by_name(true, wrong)


@fault("dflash_reference.stop.scan", clauses=("STOP-005",), report=SESSION, effect="output", profiles=NINFER)
def whole_round_scanned_for_strings_first(true: Function) -> Function:
    """A stop string anywhere in the round wins over a stop token before it."""

    def wrong(stop_ids: Array, **named: Any) -> Any:
        without = true(stop_ids=stop_ids[:0], **named)
        return without if without.reason == stop.STRING else true(stop_ids=stop_ids, **named)

    return by_name(true, wrong)


@fault("dflash_reference.stop.first_match", clauses=("STOP-005",), report=SESSION, effect="output", profiles=NINFER)
def stop_strings_ignored(true: Function) -> Function:
    """Stop strings are taken and never looked for."""
    return lambda text, strings, known: None


@fault("dflash_reference.stop.scan", clauses=("STOP-005",), effect="output", profiles=NINFER,
    report="https://github.com/sgl-project/sglang/pull/21723",
)  # fmt: skip
def text_scanned_after_the_whole_round(true: Function) -> Function:
    """The text of a round is scanned once, at its end, so all of its tokens are kept."""

    def wrong(licensed: Array, **named: Any) -> Any:
        done = true(licensed=licensed, **named)
        return done._replace(kept=len(licensed)) if done.reason == stop.STRING else done

    return by_name(true, wrong)


def _choosing(key: Any) -> Any:
    """A replacement of first_match that takes the least by another order; `key` gets match and string."""

    def replacement(true: Function) -> Function:
        def wrong(text: bytes, strings: list[bytes], known: int) -> stop.Match | None:
            found = [stop.Match(stop.completed_at(text, string, known), place) for place, string in enumerate(strings)]
            return min((m for m in found if m.start >= 0), key=lambda m: key(m, strings[m.place]), default=None)

        return wrong

    return replacement


@fault("dflash_reference.stop.first_match", clauses=("STOP-006",), report=SESSION, effect="output", profiles=NINFER)
def string_declared_first_wins(true: Function) -> Function:
    """Of several stop strings the one declared first is taken, wherever it starts."""
    return _choosing(lambda match, string: match.place)(true)  # type: ignore[no-any-return]


@fault("dflash_reference.stop.first_match", clauses=("STOP-006",), report=SESSION, effect="output", profiles=NINFER)
def longest_string_wins(true: Function) -> Function:
    """Of several stop strings the longest is taken."""
    return _choosing(lambda match, string: (-len(string), match.place))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.stop.first_match", clauses=("STOP-006",), report=SESSION, effect="output", profiles=NINFER)
def shortest_string_wins(true: Function) -> Function:
    """Of stop strings with one start the shortest is taken."""
    return _choosing(lambda match, string: (match.start, len(string)))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.stop.first_match", clauses=("STOP-006",), report=SESSION, effect="output", profiles=NINFER)
def string_declared_last_wins(true: Function) -> Function:
    """Of stop strings with one start the one declared last is taken."""
    return _choosing(lambda match, string: (match.start, -match.place))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.stop.completed_at", clauses=("STOP-006",), report=SESSION, effect="output", profiles=NINFER)
def last_match_taken(true: Function) -> Function:
    """The last of several matches of a stop string cuts the text."""

    def wrong(text: bytes, string: bytes, known: int) -> int:
        return -1 if true(text, string, known) < 0 else text.rfind(string)

    return wrong


@fault("dflash_reference.stop.cut_at", clauses=("STOP-007",), report=SESSION, effect="output", profiles=NINFER)
def stop_string_shown(true: Function) -> Function:
    """The text goes on to the end of the token that completes the stop string."""
    return lambda match, text: len(text)


@fault("dflash_reference.stop.scan", clauses=("STOP-007",), report=SESSION, effect="output", profiles=NINFER)
def text_cut_where_the_token_starts(true: Function) -> Function:
    """The token that completes a stop string is hidden whole, and what came before it is shown."""

    def wrong(lengths: Array, before: Array, **named: Any) -> Any:
        done = true(lengths=lengths, before=before, **named)
        shown = len(before) + int(lengths[: done.kept - 1].sum())
        return done._replace(text_end=shown) if done.reason == stop.STRING else done

    return by_name(true, wrong)


@fault("dflash_reference.stop.cut_at", clauses=("STOP-007",), report=SESSION, effect="output", profiles=NINFER)
def cut_counted_in_characters(true: Function) -> Function:
    """The cut counts letters, not bytes."""
    return lambda match, text: len(text[: match.start].decode(errors="replace"))


@fault("dflash_reference.stop.scan", clauses=("STOP-007",), report=SESSION, effect="output", profiles=NINFER)
def tokens_of_the_stop_string_dropped(true: Function) -> Function:
    """Only the tokens whose whole text is shown are committed."""

    def wrong(lengths: Array, before: Array, **named: Any) -> Any:
        done = true(lengths=lengths, before=before, **named)
        if done.reason != stop.STRING:
            return done
        return done._replace(kept=int((len(before) + np.cumsum(lengths) <= done.text_end).sum()))

    return by_name(true, wrong)


@fault("dflash_reference.stop.scan", clauses=("STOP-008",), report=SESSION, effect="output", profiles=NINFER)
def text_of_the_round_alone(true: Function) -> Function:
    """A stop string that starts in an earlier round is not found."""

    def wrong(before: Array, **named: Any) -> Any:
        done = true(before=before[:0], **named)
        return done._replace(text_end=done.text_end + len(before)) if not done.refused else done

    return by_name(true, wrong)


@fault("dflash_reference.stop.completed_at", clauses=("STOP-008",), report=SESSION, effect="output", profiles=NINFER)
def strings_only_within_a_token(true: Function) -> Function:
    """A stop string must lie within one token."""
    return lambda text, string, known: text.find(string, known)


@fault("dflash_reference.stop.completed_at", clauses=("STOP-008",), report=SESSION, effect="output", profiles=NINFER)
def string_must_end_the_token(true: Function) -> Function:
    """A stop string is found only where the text ends with it."""
    return lambda text, string, known: len(text) - len(string) if text.endswith(string) else -1


@fault("dflash_reference.stop.completed_at", clauses=("STOP-008",), report=SESSION, effect="output", profiles=NINFER)
def last_byte_before_not_seen(true: Function) -> Function:
    """The overlap with the text before is one byte short."""
    return lambda text, string, known: text.find(string, max(0, known - len(string) + 2))


@fault("dflash_reference.stop.completed_at", clauses=("STOP-008",), report=SESSION, effect="output", profiles=NINFER)
def old_text_ends_the_round(true: Function) -> Function:
    """The whole text is searched, and an old match counts."""
    return lambda text, string, known: text.find(string)


@fault("dflash_reference.stop.shown_to", clauses=("STOP-009",), report=SESSION, effect="output", profiles=NINFER)
def stop_token_always_shown(true: Function) -> Function:
    """The end marker is printed."""
    return lambda before_stop, after_stop, show_stop: true(before_stop, after_stop, 1)


@fault("dflash_reference.stop.shown_to", clauses=("STOP-009",), report=SESSION, effect="output", profiles=NINFER)
def stop_token_never_shown(true: Function) -> Function:
    """The end marker is hidden from a request that asks for it."""
    return lambda before_stop, after_stop, show_stop: true(before_stop, after_stop, 0)


@fault("dflash_reference.stop.scan", clauses=("STOP-009",), effect="output", profiles=NINFER,
    report="https://github.com/LostRuins/koboldcpp/issues/1276",
)  # fmt: skip
def hidden_stop_token_not_committed(true: Function) -> Function:
    """A stop token that is not shown is not committed either."""

    def wrong(**named: Any) -> Any:
        done = true(**named)
        return done._replace(kept=done.kept - 1) if done.reason == stop.TOKEN and not named["show_stop"] else done

    return by_name(true, wrong)


@fault("dflash_reference.stop.scan", clauses=("STOP-009",), report=SESSION, effect="output", profiles=NINFER)
def limit_hides_the_stop(true: Function) -> Function:
    """A round that uses the budget up ends for that reason, whatever it says."""

    def wrong(licensed: Array, output_left: int, context_left: int, lengths: Array, before: Array, **named: Any) -> Any:
        given = {"licensed": licensed, "lengths": lengths, "before": before, **named}
        done = true(output_left=output_left, context_left=context_left, **given)
        reason = stop.limit(len(licensed), output_left, context_left)
        if done.refused or reason == stop.NONE or done.reason != stop.TOKEN:
            return done
        return stop.Scan(len(licensed), 1, reason, -1, len(before) + int(lengths.sum()))

    return by_name(true, wrong)


@fault("dflash_reference.stop.limit", clauses=("STOP-010",), report=SESSION, effect="output", profiles=NINFER)
def output_limit_always_named(true: Function) -> Function:
    """A full cache is reported as the length that was asked for."""

    def wrong(count: int, output_left: int, context_left: int) -> int:
        return min(int(true(count, output_left, context_left)), stop.OUTPUT_LIMIT)

    return wrong


@fault("dflash_reference.stop.limit", clauses=("STOP-010",), report=SESSION, effect="output", profiles=NINFER)
def larger_limit_named(true: Function) -> Function:
    """The reason is the limit that was not reached."""
    return lambda count, output_left, context_left: true(
        count + abs(output_left - context_left), context_left, output_left
    )


@fault("dflash_reference.stop.limit", clauses=("STOP-010",), report=SESSION, effect="liveness", profiles=NINFER)
def full_limit_goes_on(true: Function) -> Function:
    """A request ends only when it asks for more than is left."""
    return lambda count, output_left, context_left: true(count - 1, output_left, context_left)


@fault("dflash_reference.stop.limit", clauses=("STOP-010",), report=SESSION, effect="output", profiles=NINFER)
def ends_with_a_token_to_spare(true: Function) -> Function:
    """A request ends while one token is left."""
    return lambda count, output_left, context_left: true(count + 1, output_left, context_left)


@fault("dflash_reference.stop.fits", clauses=("STOP-011",), report=SESSION, effect="output", profiles=NINFER)
def oversized_round_cut_in_silence(true: Function) -> Function:
    """A round past a limit is cut to it."""
    return lambda count, output_left, context_left: true(
        min(count, max(1, min(output_left, context_left))), max(output_left, 1), max(context_left, 1)
    )


@fault("dflash_reference.stop.fits", clauses=("STOP-011",), report=SESSION, effect="liveness", profiles=NINFER)
def empty_round_taken(true: Function) -> Function:
    """A round without tokens is scanned like another."""
    return lambda count, output_left, context_left: true(max(count, 1), output_left, context_left)


@fault("dflash_reference.stop.fits", clauses=("STOP-011",), effect="crash", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/pull/53812",
)  # fmt: skip
def only_the_output_is_bounded(true: Function) -> Function:
    """A round may go past the context."""
    return lambda count, output_left, context_left: true(count, output_left, max(count, context_left))


@fault("dflash_reference.stop.new_slots", clauses=("STOP-012",), report=LOOP, effect="output")
def unwritten_tail_scanned(true: Function) -> Function:
    """The whole buffer past the prompt is scanned for stop ids."""
    return lambda buffer, prompt, written: buffer[prompt:]


@fault("dflash_reference.stop.new_slots", clauses=("STOP-012",), effect="output",
    report="https://github.com/Luce-Org/lucebox-hub/commit/d180d39",
)  # fmt: skip
def prompt_scanned_for_stops(true: Function) -> Function:
    """A stop id in the prompt ends the request."""
    return lambda buffer, prompt, written: true(buffer, 0, written)


@fault("dflash_reference.stop.new_slots", clauses=("STOP-012",), report=LOOP, effect="output")
def last_written_slot_left_out(true: Function) -> Function:
    """The count of written slots is taken for the last index."""
    return lambda buffer, prompt, written: true(buffer, prompt, max(prompt, written - 1))


@fault("dflash_reference.stop.written", clauses=("STOP-013",), effect="output",
    report="https://github.com/z-lab/dflash/issues/73",
)  # fmt: skip
def mask_ids_dropped_from_the_text(true: Function) -> Function:
    """Every token that equals the mask id is taken for an empty slot."""

    def wrong(mask_id: int, **named: Any) -> Any:
        done = true(mask_id=mask_id, **named)
        return done._replace(tokens=done.tokens[done.tokens != mask_id])

    return by_name(true, wrong)


@fault("dflash_reference.stop.written", clauses=("STOP-013",), effect="output",
    report="https://github.com/z-lab/dflash/pull/76",
)  # fmt: skip
def text_ends_at_the_first_mask_id(true: Function) -> Function:
    """The first mask id is taken for the end of what was written."""

    def wrong(buffer: Array, prompt: int, written: int, mask_id: int, **named: Any) -> Any:
        masks = np.flatnonzero(buffer[prompt:written] == mask_id)
        end = prompt + int(masks[0]) if len(masks) else written
        return true(buffer=buffer, prompt=prompt, written=end, mask_id=mask_id, **named)

    return by_name(true, wrong)
