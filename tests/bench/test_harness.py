"""Turns, medians and ratios, on a clock that goes as the test says."""

import gc
import math

import pytest
from dflash_vectors.bench.harness import Clock, Plan, Spread, Turns, quiet, ratio, turn


class FakeTime:
    """Seconds that pass only where something is done."""

    def __init__(self) -> None:
        self.now = 100.0
        self.settled = 0

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.settle)

    def settle(self) -> None:
        self.settled += 1

    def work(self, *seconds: float):
        """A call that takes the next of these seconds each time, the last for ever."""
        left = list(seconds)

        def call() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_a_turn_is_the_median_of_its_calls_without_the_first() -> None:
    time = FakeTime()
    assert turn(time.work(50.0, 3.0, 1.0, 2.0), 3, time.clock()) == 2.0
    assert time.settled == 6


def test_parties_alternate_so_that_a_slow_stretch_strikes_all_of_them() -> None:
    time, order = FakeTime(), []

    def party(name: str, seconds: float):
        def call() -> None:
            order.append(name)
            time.now += seconds * (10 if 7 <= len(order) <= 12 else 1)

        return call

    plan = Plan(turns=4, calls=2)
    seconds = Turns({"engine": party("e", 1.0), "peer": party("p", 4.0)}, plan, time.clock()).all()
    assert "".join(order) == "eeeppp" * 4
    assert seconds == {"engine": [1.0, 10.0, 1.0, 1.0], "peer": [4.0, 40.0, 4.0, 4.0]}
    assert ratio(seconds["engine"], seconds["peer"]) == Spread(0.25, 0.25, 0.25, 4)


def test_a_spread_has_the_quartiles() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 1)
    assert Spread.of([1.0, 3.0]).scaled(2.0) == Spread(4.0, 3.0, 5.0, 2)


def test_a_ratio_is_of_turns_that_followed_each_other() -> None:
    """The quotient of the two medians would be 2 here; of each pair it is 1/2, 2 and 4."""
    found = ratio([1.0, 2.0, 4.0], [2.0, 1.0, 1.0])
    assert (found.median, found.count) == (2.0, 3)
    assert math.isclose(found.low, 1.25)


@pytest.mark.parametrize(("ours", "theirs", "told"), [([], [], "no turns"), ([1.0], [1.0, 2.0], "1 turns beside 2")])
def test_turns_that_do_not_match_are_refused(ours: list[float], theirs: list[float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ratio(ours, theirs)


def test_no_garbage_is_collected_while_something_is_timed() -> None:
    assert gc.isenabled()
    with quiet():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), quiet():
        raise KeyError
    assert gc.isenabled()
