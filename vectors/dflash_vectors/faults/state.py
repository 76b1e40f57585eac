"""Faults of states: what may be kept, what is fed after a restore, what a copy carries."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import slots
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

NINFER = ("ninfer",)
CAPTURE = "Infernix src/models/qwen3_5/program/transactions/capture.cpp"
CACHE = "Infernix docs/maintainer/resource-scheduling-and-context-cache.md"
IMAGE = "Infernix tests/models/qwen3_5/test_state_image.cpp"


@fault("dflash_reference.state.checkpoint", clauses=("STATE-001",), effect="acceptance",
    report="https://github.com/ggml-org/llama.cpp/pull/24593",
)  # fmt: skip
def context_may_be_one_row_behind(true: Function) -> Function:
    """A draft that is one position behind its target is kept like that."""

    def wrong(execution: int, context_rows: int, **named: Any) -> Any:
        rows = execution if context_rows == execution - 1 else context_rows
        return true(execution=execution, context_rows=rows, **named)

    return by_name(true, wrong)


@fault("dflash_reference.state.checkpoint", clauses=("STATE-001", "STATE-008"), report=CAPTURE, effect="acceptance")
def context_not_looked_at(true: Function) -> Function:
    """Nobody asks how far the draft's context reaches."""
    return by_name(true, lambda execution, context_rows, **named: true(execution, context_rows=execution, **named))


@fault("dflash_reference.state.checkpoint", clauses=("STATE-001",), report=CAPTURE, effect="output")
def target_rows_not_looked_at(true: Function) -> Function:
    """Nobody asks how many rows of the target are valid."""
    return by_name(true, lambda execution, target_rows, **named: true(execution, target_rows=execution, **named))


@fault("dflash_reference.state.checkpoint", clauses=("STATE-001",), report=CAPTURE, effect="output")
def parts_compared_with_each_other_alone(true: Function) -> Function:
    """Both parts agree with each other, and not with what the target has consumed."""
    return by_name(true, lambda execution, target_rows, **named: true(target_rows, target_rows, **named))


@fault("dflash_reference.state.checkpoint", clauses=("STATE-001",), report=CAPTURE, effect="output")
def hidden_row_not_looked_at(true: Function) -> Function:
    """A state without a hidden row is kept."""
    return by_name(true, lambda tail, **named: true(tail=1, **named))


@fault("dflash_reference.state.checkpoint", clauses=("STATE-001",), report=CAPTURE, effect="output")
def open_fork_not_looked_at(true: Function) -> Function:
    """A state is kept while it is being forked."""
    return by_name(true, lambda fork, **named: true(fork=0, **named))


@fault("dflash_reference.state.checkpoint", clauses=("STATE-001",), report=CAPTURE, effect="acceptance")
def anchor_counted_in_the_backend_frontier(true: Function) -> Function:
    """The draft's frontier is recorded as that of the ledger."""

    def wrong(*given: Any, **named: Any) -> Any:
        done = true(*given, **named)
        return done._replace(backend_frontier=done.backend_frontier + 1)

    return wrong


@fault("dflash_reference.state.committed", clauses=("STATE-002",), report=CACHE, effect="output")
def unresolved_rows_may_be_kept(true: Function) -> Function:
    """A state may be kept between verify and commit."""
    return lambda uncommitted: None


@fault("dflash_reference.state.covered", clauses=("STATE-004",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/issues/47930",
)  # fmt: skip
def draft_coverage_not_looked_at(true: Function) -> Function:
    """A prefix whose target rows are there is restored, whatever the draft has of it."""
    return lambda target_rows, draft_rows, frontier: true(target_rows, frontier, frontier)


@fault("dflash_reference.state.covered", clauses=("STATE-004",), effect="acceptance",
    report="https://github.com/ARahim3/mlx-dspark/issues/33",
)  # fmt: skip
def missing_draft_rows_counted(true: Function) -> Function:
    """A restore that finds no draft rows leaves an empty context and moves its offset all the same."""
    return lambda target_rows, draft_rows, frontier: true(target_rows, draft_rows or frontier, frontier)


@fault("dflash_reference.state.covered", clauses=("STATE-004",), effect="acceptance",
    report="https://github.com/weicj/vLLM-2080Ti-Definitive/pull/194",
)  # fmt: skip
def target_blocks_missing_in_the_draft_pool(true: Function) -> Function:
    """Fewer rows of the draft than of the target are let pass, more are not."""
    return lambda target_rows, draft_rows, frontier: true(target_rows, max(draft_rows, frontier), frontier)


@fault("dflash_reference.state.covered", clauses=("STATE-004",), report=CACHE, effect="output")
def target_coverage_not_looked_at(true: Function) -> Function:
    """An image without its target rows is restored."""
    return lambda target_rows, draft_rows, frontier: true(frontier, draft_rows, frontier)


@fault("dflash_reference.state.covered", clauses=("STATE-004",), report=CACHE, effect="output")
def image_frontier_not_looked_at(true: Function) -> Function:
    """Two parts that agree are taken for the image's tokens."""

    def wrong(target_rows: int, draft_rows: int, frontier: int) -> int:
        return int(true(target_rows, draft_rows, target_rows)) and frontier

    return wrong


@fault("dflash_reference.state.restore", clauses=("STATE-005",), effect="output",
    report="https://github.com/Luce-Org/lucebox-hub/commit/f79e15a",
)  # fmt: skip
def whole_prompt_fed_again(true: Function) -> Function:
    """The full prompt is fed after the restore."""

    def wrong(prompt: Array, **named: Any) -> Any:
        done = true(prompt=prompt, **named)
        return done._replace(ids=prompt, positions=len(prompt) - len(done.ids) + np.arange(len(prompt)))

    return by_name(true, wrong)


@fault("dflash_reference.state.restore", clauses=("STATE-005",), effect="output",
    report="https://github.com/ggml-org/llama.cpp/pull/22105",
)  # fmt: skip
def positions_start_anew_after_a_restore(true: Function) -> Function:
    """The tokens that are left are fed at positions from 0 on."""

    def wrong(**named: Any) -> Any:
        done = true(**named)
        return done._replace(positions=np.arange(len(done.ids)))

    return by_name(true, wrong)


@fault("dflash_reference.state.restore", clauses=("STATE-005",), effect="output",
    report="https://github.com/vllm-project/vllm/pull/54041",
)  # fmt: skip
def last_restored_token_dropped(true: Function) -> Function:
    """The last token of a restored prefix is fed again."""

    def wrong(prompt: Array, **named: Any) -> Any:
        start = len(prompt) - len(true(prompt=prompt, **named).ids) - 1
        return true(prompt=prompt, **named)._replace(ids=prompt[start:], positions=np.arange(start, len(prompt)))

    return by_name(true, wrong)


@fault("dflash_reference.state.restore", clauses=("STATE-005",), report=CACHE, effect="output")
def identity_not_compared(true: Function) -> Function:
    """An image is restored by its length alone."""
    return by_name(true, lambda prompt, identity, **named: true(prompt, identity=prompt[: len(identity)], **named))


@fault("dflash_reference.state.restore", clauses=("STATE-005",), report=CACHE, effect="output")
def all_but_the_last_token_compared(true: Function) -> Function:
    """The last token of the identity is not compared."""

    def wrong(prompt: Array, identity: Array, **named: Any) -> Any:
        return true(prompt, identity=np.append(identity[:-1], prompt[len(identity) - 1 : len(identity)]), **named)

    return by_name(true, wrong)


@fault("dflash_reference.slots.through", clauses=("STATE-014",), report=IMAGE, effect="output", profiles=NINFER)
def last_segment_lost(true: Function) -> Function:
    """What does not fill a segment is not copied."""

    def wrong(part: Array, segment: int) -> Array:
        whole = part.nbytes // segment * segment if segment else part.nbytes
        content = np.frombuffer(part.tobytes()[:whole].ljust(part.nbytes, b"\0"), dtype=part.dtype)
        return content.reshape(part.shape)

    return wrong


@fault("dflash_reference.slots.through", clauses=("STATE-014",), report=IMAGE, effect="output", profiles=NINFER)
def segments_in_the_wrong_order(true: Function) -> Function:
    """The segments of a host image come back last first."""

    def wrong(part: Array, segment: int) -> Array:
        content = part.tobytes()
        parts = [content[at : at + segment] for at in range(0, len(content), segment or len(content))]
        parts = parts[::-1] if segment else [content]
        return np.frombuffer(b"".join(parts), dtype=part.dtype).reshape(part.shape)

    return wrong


@fault("dflash_reference.slots.through", clauses=("STATE-014",), report=IMAGE, effect="output", profiles=NINFER)
def copy_by_addition(true: Function) -> Function:
    """A copy adds to a zeroed slot, and so loses the sign of zero."""
    return lambda part, segment: true(part, segment) + 0.0


@fault("dflash_reference.slots.through", clauses=("STATE-014",), report=IMAGE, effect="output", profiles=NINFER)
def subnormals_flushed_by_the_copy(true: Function) -> Function:
    """A copy through arithmetic registers flushes subnormals."""

    def wrong(part: Array, segment: int) -> Array:
        return np.where(np.abs(part) < 2.0**-126, np.copysign(0.0, part), true(part, segment))

    return wrong


@fault("dflash_reference.slots.carried", clauses=("STATE-014",), effect="output", profiles=NINFER,
    report="https://github.com/Luce-Org/lucebox-hub/commit/855c87f",
)  # fmt: skip
def recurrent_state_not_zeroed(true: Function) -> Function:
    """A slot is cleared for its next request, but for the recurrent state."""

    def wrong(held: slots.Slots, kind: int) -> tuple[Array, ...]:
        return (held.rings_next, held.hidden_next) if kind == slots.ZERO else tuple(true(held, kind))

    return wrong


@fault("dflash_reference.slots.carried", clauses=("STATE-014",), effect="output", profiles=NINFER,
    report="https://github.com/ekryski/mlx-swift-lm/issues/218",
)  # fmt: skip
def hidden_row_left_out_of_the_copy(true: Function) -> Function:
    """A component is missing from the image."""
    return lambda held, kind: tuple(true(held, kind))[:2]


@fault("dflash_reference.slots.carried", clauses=("STATE-014",), effect="acceptance", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/issues/47930",
)  # fmt: skip
def rings_left_out_of_the_copy(true: Function) -> Function:
    """The target's state is copied without the draft's context."""
    return lambda held, kind: true(held, kind) if kind == slots.LOCAL_FORK else held[1:]


@fault("dflash_reference.slots.copy", clauses=("STATE-014",), effect="output", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/pull/45100",
)  # fmt: skip
def copy_changes_its_source(true: Function) -> Function:
    """Source and destination change places."""
    return by_name(
        true, lambda source, destination, kind, **named: true(
            source=source if kind else destination, destination=destination if kind else source, kind=kind, **named
        ),
    )  # fmt: skip


@fault("dflash_reference.slots.carried", clauses=("STATE-015",), report=IMAGE, effect="output", profiles=NINFER)
def local_fork_copies_the_whole_slot(true: Function) -> Function:
    """A local fork copies the recurrent state too."""
    return lambda held, kind: true(held, slots.WHOLE if kind == slots.LOCAL_FORK else kind)


@fault("dflash_reference.slots.carried", clauses=("STATE-015",), report=IMAGE, effect="acceptance", profiles=NINFER)
def local_fork_copies_nothing(true: Function) -> Function:
    """A local fork leaves the rings to the next commit too."""
    return lambda held, kind: () if kind == slots.LOCAL_FORK else true(held, kind)


@fault("dflash_reference.state.restore", clauses=("STATE-005",), effect="liveness",
    report="https://github.com/vllm-project/vllm/issues/54027",
)  # fmt: skip
def prefix_never_hit(true: Function) -> Function:
    """The image is not found, and the whole prompt is computed."""

    def wrong(prompt: Array, **named: Any) -> Any:
        return true(prompt=prompt, **named)._replace(ids=prompt, positions=np.arange(len(prompt)))

    return by_name(true, wrong)
