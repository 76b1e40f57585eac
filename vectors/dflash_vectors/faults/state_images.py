"""Faults of images: what a checkpoint, a restore, a fork or a replica brings along, and by which name."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import commit, images, script, state, tags
from dflash_reference.names import Position
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

STORAGE = "NInfer docs/maintainer/dflash.md, storage"
CACHE = "Infernix docs/maintainer/resource-scheduling-and-context-cache.md"
IMAGE = "Infernix tests/models/qwen3_5/test_state_image.cpp"
PREFIX = "https://github.com/vllm-project/vllm/issues/47930"
TRIM = "https://github.com/ml-explore/mlx-swift-lm/pull/584"
SNAPSHOT = "Luce-Org/lucebox-hub@8305b6c, whose feature snapshot copies slots from 0 on"


@fault("dflash_reference.state.keep", clauses=("STATE-003",), report=PREFIX, effect="acceptance")
def draft_context_not_kept(true: Function) -> Function:
    """An image holds the target's rows, and an unwritten context of the same length."""

    def wrong(held: state.Held, profile: Any) -> state.Image:
        image: state.Image = true(held, profile)
        image.draft.slots[:] = tags.UNWRITTEN
        return image

    return wrong


@fault("dflash_reference.state.keep", clauses=("STATE-003",), effect="acceptance",
    report="https://github.com/Luce-Org/lucebox-hub/commit/c470446",
)  # fmt: skip
def image_shares_the_draft_context(true: Function) -> Function:
    """An image refers to the lane's context, which goes on to change."""

    def wrong(held: state.Held, profile: Any) -> state.Image:
        image: state.Image = true(held, profile)
        shared = image.draft
        shared.slots = held.draft.slots
        return image

    return wrong


@fault("dflash_reference.state.keep", clauses=("STATE-003",), report=STORAGE, effect="output")
def hidden_row_not_kept(true: Function) -> Function:
    """An image has no hidden row to go on from."""
    return lambda held, profile: true(held, profile)._replace(tail=None)


@fault("dflash_reference.state.restored", clauses=("STATE-003",), report=STORAGE, effect="output")
def restored_lane_shares_its_image(true: Function) -> Function:
    """The second restore of an image sees what the first one wrote."""

    def wrong(image: state.Image, columns: int = 1) -> state.Held:
        held: state.Held = true(image, columns)
        held.target, held.draft = image.target, image.draft
        return held

    return wrong


@fault("dflash_reference.state.restored", clauses=("STATE-003",), report=PREFIX, effect="acceptance")
def context_restored_as_empty(true: Function) -> Function:
    """A restored prefix has no draft context; the draft starts from the tokens after it."""

    def wrong(image: state.Image, columns: int = 1) -> state.Held:
        held: state.Held = true(image, columns)
        held.draft = tags.DraftTags(len(held.draft.digits), held.draft.capacity)
        return held

    return wrong


@fault("dflash_reference.script.Machine.prefill", clauses=("STATE-005",), effect="output",
    report="https://github.com/Luce-Org/lucebox-hub/commit/f79e15a",
)  # fmt: skip
def restored_prefix_fed_again(true: Function) -> Function:
    """After a restore the prompt is fed at the positions from 0 on."""

    def wrong(machine: script.Machine, index: int, tokens: Array, anchor: int) -> None:
        held = machine.lanes[index] if 0 <= index < len(machine.lanes) else None
        if held is None or held.anchor >= 0 or not len(tokens) or not held.frontier:
            true(machine, index, tokens, anchor)
            return
        start, held.frontier = held.frontier, Position(0)
        true(machine, index, tokens, anchor)
        held.frontier = Position(start + len(tokens))

    return wrong


@fault("dflash_reference.state.committed", clauses=("STATE-002",), report=CACHE, effect="output")
def suffix_kept_within_a_round(true: Function) -> Function:
    """A state is kept between verify and commit as if the round were over."""
    return lambda uncommitted: true(0)


@fault("dflash_reference.images.Images.get", clauses=("STATE-006",), report=IMAGE, effect="output")
def generations_ignored(true: Function) -> Function:
    """A name is the slot alone."""
    return lambda held, slot, generation: true(held, slot, held.generations[slot])


@fault("dflash_reference.images.Images.release", clauses=("STATE-006",), report=IMAGE, effect="crash")
def released_twice(true: Function) -> Function:
    """A second release of one name is taken."""

    def wrong(held: images.Images, slot: int, generation: int) -> None:
        if held.held[slot] is not None:
            true(held, slot, generation)

    return wrong


@fault("dflash_reference.images.Images.release", clauses=("STATE-006",), report=IMAGE, effect="output")
def released_image_stays_valid(true: Function) -> Function:
    """A released image can be restored until its slot is taken."""

    return lambda held, slot, generation: held.get(slot, generation) and None


@fault("dflash_reference.images.Images.put", clauses=("STATE-006",), report=IMAGE, effect="output")
def every_image_is_the_first_generation(true: Function) -> Function:
    """Generations do not count on."""

    def wrong(held: images.Images, slot: int, image: state.Image) -> None:
        true(held, slot, image)
        held.generations[slot] = 1

    return wrong


@fault("dflash_reference.images.Images.free", clauses=("STATE-006",), report=IMAGE, effect="output")
def image_overwritten(true: Function) -> Function:
    """A checkpoint takes a slot that holds an image."""
    return lambda held, slot: None


@fault("dflash_reference.state.fork", clauses=("STATE-007",), effect="output",
    report="https://github.com/ggml-org/llama.cpp/pull/22105",
)  # fmt: skip
def fork_starts_at_position_zero(true: Function) -> Function:
    """A fork has its source's rows, and counts positions from 0 on."""

    def wrong(held: state.Held, profile: Any) -> state.Held:
        forked: state.Held = true(held, profile)
        forked.frontier = Position(0)
        return forked

    return wrong


@fault("dflash_reference.state.fork", clauses=("STATE-007",), report=STORAGE, effect="output")
def fork_without_the_anchor(true: Function) -> Function:
    """A fork has no anchor to go on from."""

    def wrong(held: state.Held, profile: Any) -> state.Held:
        forked: state.Held = true(held, profile)
        forked.anchor = state.NO_TOKEN
        return forked

    return wrong


@fault("dflash_reference.state.fork", clauses=("STATE-007",), report=STORAGE, effect="output")
def fork_without_the_hidden_row(true: Function) -> Function:
    """A fork has no hidden row."""

    def wrong(held: state.Held, profile: Any) -> state.Held:
        forked: state.Held = true(held, profile)
        forked.tail = None
        return forked

    return wrong


@fault("dflash_reference.state.fork", clauses=("STATE-007",), report=CACHE, effect="output")
def fork_shares_the_target(true: Function) -> Function:
    """Both go on in the same target rows."""

    def wrong(held: state.Held, profile: Any) -> state.Held:
        forked: state.Held = true(held, profile)
        forked.target = held.target
        return forked

    return wrong


@fault("dflash_reference.state.fork", clauses=("STATE-007",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/42971",
)  # fmt: skip
def fork_shares_the_draft_context(true: Function) -> Function:
    """Both write the same draft slots, each with a frontier of its own."""

    def wrong(held: state.Held, profile: Any) -> state.Held:
        forked: state.Held = true(held, profile)
        forked.draft.slots = held.draft.slots
        return forked

    return wrong


@fault("dflash_reference.state.fork", clauses=("STATE-007",), report=PREFIX, effect="acceptance")
def fork_without_draft_context(true: Function) -> Function:
    """A fork copies the target's rows alone."""

    def wrong(held: state.Held, profile: Any) -> state.Held:
        forked: state.Held = true(held, profile)
        forked.draft.slots[:] = tags.UNWRITTEN
        return forked

    return wrong


@fault("dflash_reference.state.check_settled", clauses=("STATE-008", "STATE-001"), report=STORAGE, effect="acceptance")
def kept_while_rows_are_pending(true: Function) -> Function:
    """Pending rows are forgotten with the image, and the check counts them as context."""

    def wrong(held: state.Held, profile: Any) -> None:
        if held.uncommitted or held.tail is None:
            true(held, profile)

    return wrong


@fault("dflash_reference.state.nothing_pending", clauses=("STATE-008",), report=STORAGE, effect="acceptance")
def a_pending_row_is_left(true: Function) -> Function:
    """The count of pending rows is not reset, and a row of whatever was there before becomes context."""
    return lambda columns: commit.Pending(np.full((1, columns), 999), np.zeros(1, dtype=np.int64), 1)


@fault("dflash_reference.images.Images.replicate", clauses=("STATE-009",), report=CACHE, effect="output")
def aborted_copy_published(true: Function) -> Function:
    """A replica has a name before its copy is complete."""
    return lambda held, slot, generation, to, aborted: true(held, slot, generation, to, False)


@fault("dflash_reference.images.Images.replicate", clauses=("STATE-009",), report=CACHE, effect="output")
def source_released_by_its_copy(true: Function) -> Function:
    """A replica takes its source's place."""

    def wrong(held: images.Images, slot: int, generation: int, to: int, aborted: bool) -> None:
        true(held, slot, generation, to, aborted)
        if not aborted:
            held.release(slot, generation)

    return wrong


@fault("dflash_reference.images.Images.replicate", clauses=("STATE-009",), report=CACHE, effect="acceptance")
def replica_refers_to_its_source(true: Function) -> Function:
    """A replica is another name for the same rows."""

    def wrong(held: images.Images, slot: int, generation: int, to: int, aborted: bool) -> None:
        image = held.get(slot, generation)
        true(held, slot, generation, to, aborted)
        if not aborted:
            held.held[to] = image

    return wrong


@fault("dflash_reference.images.Images.replicate", clauses=("STATE-009",), report=PREFIX, effect="acceptance")
def replica_without_the_draft_context(true: Function) -> Function:
    """The host keeps the target's rows alone."""

    def wrong(held: images.Images, slot: int, generation: int, to: int, aborted: bool) -> None:
        true(held, slot, generation, to, aborted)
        image = held.held[to]
        if image is not None and not aborted:
            image.draft.slots[:] = tags.UNWRITTEN

    return wrong


@fault("dflash_reference.tags.DraftTags.copy", clauses=("STATE-012",), report=SNAPSHOT, effect="acceptance")
def ring_copied_in_the_order_of_time(true: Function) -> Function:
    """The oldest live row of a copy stands in slot 0."""

    def wrong(held: tags.DraftTags) -> tags.DraftTags:
        other: tags.DraftTags = true(held)
        other.slots = np.roll(other.slots, -(held.length % held.capacity) * (held.length > held.capacity), axis=0)
        return other

    return wrong


@fault("dflash_reference.tags.DraftTags.copy", clauses=("STATE-012",), report=SNAPSHOT, effect="acceptance")
def ring_copied_up_to_its_cursor(true: Function) -> Function:
    """The slots before the write cursor are copied, which are not all once the ring has wrapped."""

    def wrong(held: tags.DraftTags) -> tags.DraftTags:
        other: tags.DraftTags = true(held)
        if held.length > held.capacity:
            other.slots[held.length % held.capacity :] = tags.UNWRITTEN
        return other

    return wrong


@fault("dflash_reference.tags.DraftTags.copy", clauses=("STATE-012",), effect="acceptance",
    report="https://github.com/spiritbuun/buun-llama-cpp/issues/49",
)  # fmt: skip
def ring_copied_into_another_layout(true: Function) -> Function:
    """A copy has one slot more than its source, so that later rows wrap elsewhere."""

    def wrong(held: tags.DraftTags) -> tags.DraftTags:
        other: tags.DraftTags = true(held)
        other.slots = np.concatenate([other.slots, np.full_like(other.slots[:1], tags.UNWRITTEN)])
        return other

    return wrong


@fault("dflash_reference.tags.DraftTags.copy", clauses=("STATE-012",), report=TRIM, effect="acceptance")
def wrapped_ring_counts_from_its_capacity(true: Function) -> Function:
    """A full ring's frontier is taken to be its capacity."""

    def wrong(held: tags.DraftTags) -> tags.DraftTags:
        other: tags.DraftTags = true(held)
        other.length = min(held.length, held.capacity)
        return other

    return wrong
