"""Scripts over lanes: rounds, row swaps, cancelled requests and those that follow them."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_spec.registry import Profile

from dflash_vectors.scripts import (
    CANCELLED,
    CATCH_UP,
    CHECKPOINT,
    CLOSE,
    COMMIT,
    ENDS,
    FORK,
    VERIFY,
    Script,
    text,
    turn,
)
from dflash_vectors.suite import Case, suite

ONE, TWO, THREE = 101, 301, 701
"""Where the tokens of three requests start to count."""


def ring_of(profile: Profile, capacity: int) -> int:
    """A ring where the profile's drafts keep one, else a context of all rows."""
    return capacity if profile.name == "ninfer" else 0


def case(slug: str, clauses: tuple[str, ...], script: Script, catches: str, effect: str = "output") -> Case:
    """The vector of a script."""
    return Case(slug, clauses, script.inputs(), catches=catches, effect=effect)


@suite("state.script")
def rounds(profile: Profile) -> Iterator[Case]:
    """Three rounds that accept nothing, all but one and everything, in every order, and rounds without proposals."""
    why = "rows of rejected proposals stay visible in the target or become context, or kept ones are lost"
    for counts in ((0, 3, 4), (4, 0, 3), (3, 4, 0), (0, 4, 0)):
        script = Script(ring=ring_of(profile, 7), capacity=19)
        script.prefill(0, text(ONE, 5), ONE + 5)
        anchor = ONE + 5
        for accepted in counts:
            script.play(turn(0, anchor, accepted))
            anchor += accepted + 1
        script.step(CATCH_UP, 0)
        yield case(f"accepts-{'-'.join(map(str, counts))}", ("STATE-013",), script, why)
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 3), ONE + 3)
    script.play(turn(0, ONE + 3, 4))
    script.play(turn(0, ONE + 8, 0, drafts=0))
    script.play(turn(0, ONE + 9, 1, drafts=1))
    yield case(
        "round-without-proposals", ("STATE-013",), script,
        "a token is consumed twice or never where a round has no proposals after one that accepted all",
    )  # fmt: skip
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 2))
    script.prefill(0, text(ONE + 2, 3))
    script.prefill(0, text(ONE + 5, 1), ONE + 6)
    script.play(turn(0, ONE + 6, 2))
    script.play(turn(0, ONE + 9, 0))
    yield case(
        "prefill-of-three-chunks", ("STATE-013",), script,
        "only the last chunk of a prefill becomes context", "acceptance",
    )  # fmt: skip


@suite("state.script")
def swaps(profile: Profile) -> Iterator[Case]:
    """Two and three requests whose rows of the batch change between rounds, with other accepted counts each time."""
    why = "a row's counts go to the lane that the row served in the round before, or to the lane of its own number"
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 4), ONE + 4)
    script.prefill(1, text(TWO, 3), TWO + 3)
    script.play(turn(0, ONE + 4, 3), turn(1, TWO + 3, 0))
    script.play(turn(1, TWO + 4, 4), turn(0, ONE + 8, 1))
    script.play(turn(0, ONE + 10, 0), turn(1, TWO + 9, 2))
    yield case("rows-swap", ("STATE-011",), script, why)
    script = Script(ring=ring_of(profile, 7), lanes=3, rows=3, capacity=16, layers=(1, 1))
    for lane, first in enumerate((ONE, TWO, THREE)):
        script.prefill(lane, text(first, 2 + lane), first + 2 + lane)
    script.play(turn(2, THREE + 4, 3), turn(0, ONE + 2, 0), turn(1, TWO + 3, 1))
    script.play(None, turn(2, THREE + 8, 0), turn(0, ONE + 3, 4))
    script.play(turn(1, TWO + 5, 2), None, turn(0, ONE + 8, 1))
    yield case("rows-leave-and-join", ("STATE-011",), script, why)
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 4), ONE + 4)
    script.prefill(1, text(TWO, 3), TWO + 3)
    first = script.verify(turn(0, ONE + 4, 2))
    second = script.verify(turn(1, TWO + 3, 3))
    script.step(COMMIT, second)
    script.step(COMMIT, first)
    yield case(
        "two-open-rounds", ("STATE-011",), script,
        "a commit resolves the round that was verified last, whatever it is asked for",
    )  # fmt: skip


@suite("state.script")
def successors(profile: Profile) -> Iterator[Case]:
    """Lanes that a request leaves in the middle of its state, and what the next request finds there."""
    leak = "rows, pending features, the hidden row or the anchor of the last request reach the next one"
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 6), ONE + 6)
    script.play(turn(0, ONE + 6, 3))
    script.play(turn(0, ONE + 10, 2, end=CANCELLED))
    script.prefill(0, text(TWO, 3), TWO + 3)
    script.play(turn(0, TWO + 3, 1))
    script.play(turn(0, TWO + 5, 0))
    yield case("after-a-cancelled-round", ("STATE-010",), script, leak)
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 6), ONE + 6)
    script.play(turn(0, ONE + 6, 4))
    script.step(CLOSE, 0)
    script.prefill(0, text(TWO, 2))
    script.prefill(0, text(TWO + 2, 1), TWO + 3)
    script.play(turn(0, TWO + 3, 2))
    yield case("after-a-close-with-pending-rows", ("STATE-010",), script, leak)
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 4), ONE + 4)
    script.prefill(1, text(TWO, 3), TWO + 3)
    script.play(turn(0, ONE + 4, 2, end=CANCELLED), turn(1, TWO + 3, 1))
    script.prefill(0, text(THREE, 5), THREE + 5)
    script.play(turn(1, TWO + 5, 3), turn(0, THREE + 5, 4))
    yield case("beside-a-request-that-goes-on", ("STATE-010",), script, leak)
    script = Script(ring=ring_of(profile, 7))
    script.step(CLOSE, 0)
    script.prefill(0, text(ONE, 0), ONE)
    script.prefill(0, text(ONE, 3), ONE + 3)
    script.step(CLOSE, 0)
    script.prefill(0, text(TWO, 0), TWO)
    script.step(CATCH_UP, 0)
    yield case(
        "free-lanes-hold-nothing", ("STATE-010",), script, "a free lane still has a hidden row to choose an anchor from"
    )  # fmt: skip


@suite("state.script")
def commits(profile: Profile) -> Iterator[Case]:
    """Commits that come twice, too early, or of a round that was never verified."""
    twice = "a second commit of a round moves the frontier again"
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 4), ONE + 4)
    number = script.play(turn(0, ONE + 4, 1))
    script.step(COMMIT, number)
    later = script.play(turn(0, ONE + 6, 1))
    script.step(COMMIT, later)
    script.step(COMMIT, number)
    yield case("committed-twice", ("COMMIT-008",), script, twice)
    script = Script(ring=ring_of(profile, 7))
    script.prefill(0, text(ONE, 4), ONE + 4)
    planned = script.plan(turn(0, ONE + 4, 2))
    script.step(COMMIT, planned)
    script.step(VERIFY, planned)
    script.step(VERIFY, planned)
    script.step(COMMIT, planned)
    yield case("committed-before-it-was-verified", ("COMMIT-008",), script, twice)


@suite("state.script", profiles=("ninfer",))
def ends(profile: Profile) -> Iterator[Case]:
    """Rounds that a stop cuts, after which the lane is kept; batches with one bad row."""
    script = Script(ring=7)
    script.prefill(0, text(ONE, 4), ONE + 4)
    script.play(turn(0, ONE + 4, 1))
    script.play(turn(0, ONE + 6, 4, kept=2, end=ENDS))
    script.step(CHECKPOINT, 0, 0)
    yield case(
        "cut-by-a-stop", ("COMMIT-016",), script,
        "the hidden row of an ended request is that of the last verified column, or its context stays behind",
        "acceptance",
    )  # fmt: skip
    script = Script(ring=7)
    script.prefill(0, text(ONE, 4), ONE + 4)
    script.prefill(1, text(TWO, 3), TWO + 3)
    script.play(turn(0, ONE + 4, 2), turn(1, TWO + 3, 3, kept=2))
    script.step(FORK, 0, 1)
    yield case(
        "one-bad-row-refuses-all", ("COMMIT-004",), script, "the sound row of a refused batch is committed"
    )  # fmt: skip
