"""Scripts over images: checkpoints, restores, forks, replicas, their names, and rings that have wrapped."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_spec.registry import Profile

from dflash_vectors.scripts import (
    CANCELLED,
    CATCH_UP,
    CHECKPOINT,
    CLOSE,
    COMMIT,
    DROP,
    ENDS,
    FORK,
    RELEASE,
    REPLICATE,
    RESTORE,
    Script,
    text,
    turn,
)
from dflash_vectors.suite import Case, suite
from dflash_vectors.suites.state_script import ONE, THREE, TWO, case, ring_of


@suite("state.script")
def restores(profile: Profile) -> Iterator[Case]:
    """Images that are made at a prefill's boundary or at an end, and restored into lanes with another past."""
    why = "the draft's context or the hidden row of a restored prefix is missing, or stands on slots never written"
    script = Script(ring=ring_of(profile, 9))
    script.prefill(0, text(ONE, 8))
    script.step(CHECKPOINT, 0, 0)
    script.prefill(0, text(ONE + 8, 4), ONE + 12)
    script.step(RESTORE, 0, 1, 1)
    script.prefill(1, text(TWO, 4), TWO + 4)
    script.play(turn(1, TWO + 4, 2), turn(0, ONE + 12, 0))
    yield case("eight-of-twelve", ("STATE-003",), script, why, "acceptance")
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 4))
    script.step(CHECKPOINT, 0, 1)
    script.step(RESTORE, 1, 1, 1)
    script.prefill(1, text(ONE, 0), ONE + 4)
    script.play(turn(1, ONE + 4, 3))
    script.prefill(0, text(TWO, 1), TWO + 1)
    script.step(CLOSE, 1)
    script.step(RESTORE, 1, 1, 1)
    script.prefill(1, text(ONE, 0), ONE + 4)
    yield case("exact-hit-twice", ("STATE-003",), script, why)
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 5), ONE + 5)
    script.play(turn(0, ONE + 5, 4, kept=3, end=ENDS))
    script.step(CHECKPOINT, 0, 0)
    script.step(CLOSE, 0)
    script.prefill(0, text(THREE, 2), THREE + 2)
    script.step(RESTORE, 0, 1, 1)
    script.prefill(1, text(TWO, 3), TWO + 3)
    script.play(turn(1, TWO + 3, 1), turn(0, THREE + 2, 1))
    yield case("next-turn-after-a-stop", ("STATE-003",), script, why)
    again = "the prefix is fed again after a restore, so that positions double"
    script = Script(ring=ring_of(profile, 9))
    script.prefill(0, text(ONE, 6))
    script.step(CHECKPOINT, 0, 0)
    script.step(CLOSE, 0)
    script.step(RESTORE, 0, 1, 0)
    script.prefill(0, text(TWO, 2))
    script.prefill(0, text(TWO + 2, 1), TWO + 3)
    script.play(turn(0, TWO + 3, 0))
    yield case("fed-from-the-frontier-on", ("STATE-005",), script, again)


@suite("state.script")
def refusals(profile: Profile) -> Iterator[Case]:
    """States that may not be kept, and images that may not be restored."""
    suffix = "rows of a verify that is not resolved become part of an image or a fork"
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 4), ONE + 4)
    number = script.verify(turn(0, ONE + 4, 2))
    script.step(CHECKPOINT, 0, 0)
    script.step(FORK, 0, 1)
    script.step(RESTORE, 0, 1, 1)
    script.step(COMMIT, number)
    script.step(CATCH_UP, 0)
    script.step(CHECKPOINT, 0, 0)
    script.step(RESTORE, 0, 1, 1)
    yield case("kept-within-a-round", ("STATE-002",), script, suffix)
    scratch = "a state is kept while rows are pending, or rows of the last request become context of a restored one"
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 4), ONE + 4)
    script.play(turn(0, ONE + 4, 2))
    script.step(CHECKPOINT, 0, 0)
    script.step(FORK, 0, 1)
    script.step(CATCH_UP, 0)
    script.step(CHECKPOINT, 0, 0)
    script.step(RESTORE, 0, 1, 1)
    yield case("kept-with-pending-rows", ("STATE-008",), script, scratch)
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(TWO, 3))
    script.step(CHECKPOINT, 0, 0)
    script.step(CLOSE, 0)
    script.prefill(0, text(ONE, 5), ONE + 5)
    script.play(turn(0, ONE + 5, 3))
    script.step(CLOSE, 0)
    script.step(RESTORE, 0, 1, 0)
    script.step(CATCH_UP, 0)
    script.prefill(0, text(TWO + 3, 1), TWO + 4)
    script.play(turn(0, TWO + 4, 1))
    yield case("restored-over-pending-rows", ("STATE-008",), script, scratch)
    lost = "an image whose draft context was evicted is restored as if it were whole"
    script = Script(ring=ring_of(profile, 9))
    script.prefill(0, text(ONE, 6))
    script.step(CHECKPOINT, 0, 0)
    script.step(CHECKPOINT, 0, 1)
    script.step(DROP, 0, 1, 4)
    script.step(RESTORE, 0, 1, 1)
    script.step(DROP, 0, 1, 0)
    script.step(RESTORE, 0, 1, 1)
    script.step(RESTORE, 1, 1, 1)
    yield case("draft-rows-evicted", ("STATE-004",), script, lost, "acceptance")


@suite("state.script")
def names(profile: Profile) -> Iterator[Case]:
    """Names of images that are released, taken again, replicated, and copies that are aborted."""
    stale = "a name of an earlier image leads to whatever holds its slot now"
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 3))
    script.step(CHECKPOINT, 0, 0)
    script.step(CHECKPOINT, 0, 0)
    script.step(RELEASE, 0, 1)
    script.step(RELEASE, 0, 1)
    script.step(RESTORE, 0, 1, 1)
    script.prefill(0, text(TWO, 2))
    script.step(CHECKPOINT, 0, 0)
    script.step(RESTORE, 0, 1, 1)
    script.step(RELEASE, 0, 1)
    script.step(RESTORE, 0, 3, 1)
    script.step(RESTORE, 0, 2, 1)
    yield case("stale-names", ("STATE-006",), script, stale)
    copied = "a replica is no copy, has its source's name, or is there before its copy is complete"
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 5))
    script.step(CHECKPOINT, 0, 0)
    script.step(REPLICATE, 0, 1, 1, 1)
    script.step(RESTORE, 1, 1, 1)
    script.step(REPLICATE, 0, 1, 1)
    script.step(REPLICATE, 0, 1, 1)
    script.step(RELEASE, 0, 1)
    script.step(REPLICATE, 0, 1, 1)
    script.step(RESTORE, 1, 1, 1)
    script.prefill(1, text(TWO, 1), TWO + 1)
    script.play(turn(1, TWO + 1, 1))
    yield case("replica", ("STATE-009",), script, copied)
    script = Script(ring=ring_of(profile, 7), layers=(1, 1), images=3)
    script.prefill(0, text(ONE, 4))
    script.step(CHECKPOINT, 0, 2)
    script.step(REPLICATE, 2, 1, 0)
    script.step(DROP, 2, 1, 1)
    script.step(RESTORE, 0, 1, 1)
    script.step(REPLICATE, 0, 1, 1)
    script.step(RELEASE, 2, 1)
    script.step(CLOSE, 1)
    script.step(RESTORE, 1, 1, 1)
    yield case("replica-of-a-replica", ("STATE-009",), script, copied)


@suite("state.script")
def forks(profile: Profile) -> Iterator[Case]:
    """Forks that go on beside their source, and after it."""
    why = "a fork starts at position 0, without the anchor, or shares rows with its source"
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 5), ONE + 5)
    script.step(FORK, 0, 1)
    script.play(turn(0, ONE + 5, 2), turn(1, ONE + 5, 0))
    script.play(turn(0, ONE + 8, 0), turn(1, ONE + 6, 3))
    yield case("side-by-side", ("STATE-007",), script, why)
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 3), ONE + 3)
    script.play(turn(0, ONE + 3, 3))
    script.step(CATCH_UP, 0)
    script.step(FORK, 0, 1)
    script.play(turn(0, ONE + 7, 4, end=CANCELLED))
    script.prefill(0, text(TWO, 4), TWO + 4)
    script.play(turn(1, ONE + 7, 1), turn(0, TWO + 4, 2))
    yield case("after-its-source", ("STATE-007",), script, why)
    script = Script(ring=ring_of(profile, 7), layers=(1, 1))
    script.prefill(0, text(ONE, 4))
    script.step(FORK, 0, 1)
    script.step(FORK, 0, 1)
    script.prefill(0, text(TWO, 2), TWO + 2)
    script.prefill(1, text(THREE, 3), THREE + 3)
    script.play(turn(1, THREE + 3, 2), turn(0, TWO + 2, 2))
    yield case("within-a-prefill", ("STATE-007",), script, why)


@suite("state.script")
def wraps(profile: Profile) -> Iterator[Case]:
    """Rings of five slots whose image is made before, on and after the wrap, and goes on to wrap again."""
    why = "a wrapped ring is copied from slot 0 on in the order of time, or only its first slots are"
    for length in (4, 5, 6, 12):
        script = Script(ring=5, capacity=20, layers=(1, 2))
        script.prefill(0, text(ONE, length))
        script.step(CHECKPOINT, 0, 0)
        script.step(RESTORE, 0, 1, 1)
        script.prefill(0, text(TWO, 2), TWO + 2)
        script.prefill(1, text(THREE, 1), THREE + 1)
        script.play(turn(1, THREE + 1, 2), turn(0, TWO + 2, 0))
        script.step(CATCH_UP, 1)
        yield case(f"ring-of-5-kept-at-{length}", ("STATE-012",), script, why, "acceptance")
    script = Script(ring=5, capacity=20, layers=(1, 2))
    script.prefill(0, text(ONE, 3), ONE + 3)
    script.play(turn(0, ONE + 3, 3))
    script.play(turn(0, ONE + 7, 4))
    script.step(CATCH_UP, 0)
    script.step(FORK, 0, 1)
    script.play(turn(0, ONE + 12, 1), turn(1, ONE + 12, 2))
    yield case("ring-of-5-forked-at-12", ("STATE-012",), script, why, "acceptance")
