"""Images by name: a slot, and which of the images that it has held."""

from __future__ import annotations

from dflash_spec.errors import StateError

from dflash_reference.state import Image


class Images:
    """A fixed number of slots, on the device or on the host, each of which holds one image or none."""

    def __init__(self, slots: int) -> None:
        self.held: list[Image | None] = [None] * slots
        self.generations = [0] * slots

    def free(self, slot: int) -> None:
        """Raise StateError unless `slot` is there and empty."""
        if not 0 <= slot < len(self.held) or self.held[slot] is not None:
            raise StateError(f"state: image slot {slot}, expected an empty one of {len(self.held)}")

    def put(self, slot: int, image: Image) -> None:
        """Hold the image in the empty `slot`, as that slot's next generation."""
        self.free(slot)
        self.held[slot] = image
        self.generations[slot] += 1

    def get(self, slot: int, generation: int) -> Image:
        """The image of this name. Raises StateError for a name that no image has, or has any more.

        Clause: STATE-006
        Source: Infernix tests/models/qwen3_5/test_state_image.cpp.
        """
        image = self.held[slot] if 0 <= slot < len(self.held) else None
        if image is None or generation != self.generations[slot]:
            raise StateError(f"state: generation {generation} of image slot {slot}, expected one that is held")
        return image

    def release(self, slot: int, generation: int) -> None:
        """Empty the slot. Raises StateError for a stale name."""
        self.get(slot, generation)
        self.held[slot] = None

    def replicate(self, slot: int, generation: int, to: int, aborted: bool) -> None:
        """Copy an image to the empty slot `to`, where it has a name of its own; an aborted copy publishes nothing.

        Raises StateError for a stale name or a slot that is not empty.

        Clause: STATE-009
        Source: Infernix docs/maintainer/resource-scheduling-and-context-cache.md.
        """
        image = self.get(slot, generation)
        self.free(to)
        if not aborted:
            self.put(to, image._replace(target=image.target.copy(), draft=image.draft.copy()))
