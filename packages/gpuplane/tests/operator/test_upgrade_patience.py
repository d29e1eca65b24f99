"""For how long a node's stages have failed: counted for each pod of the driver."""

from __future__ import annotations

from gpuplane.operator.upgrade.patience import TroubleTimes


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds


def test_a_trouble_goes_on_whatever_it_says_and_ends_without_one() -> None:
    clock = Clock()
    times = TroubleTimes(clock.now)
    assert times.seconds("n", "one", "") == 0.0
    assert times.seconds("n", "one", "driver: no such version") == 0.0
    clock.seconds += 40
    assert times.seconds("n", "one", "driver: no room") == 40.0
    assert times.seconds("other", "x", "driver: no room") == 0.0
    clock.seconds += 1
    assert times.seconds("n", "one", "") == 0.0
    clock.seconds += 1
    assert times.seconds("n", "one", "driver: no room") == 0.0


def test_the_next_pod_of_the_driver_begins_at_0_again() -> None:
    """The stage still tells of the driver before when the next pod is created: nothing in between shows no trouble."""
    clock = Clock()
    times = TroubleTimes(clock.now)
    times.seconds("n", "one", "driver: no such version")
    clock.seconds += 59
    assert times.seconds("n", "two", "driver: no such version") == 0.0
    clock.seconds += 2
    assert times.seconds("n", "two", "driver: no packages") == 2.0


def test_nodes_that_are_gone_are_forgotten() -> None:
    clock = Clock()
    times = TroubleTimes(clock.now)
    times.seconds("n", "one", "driver: no such version")
    times.keep({"other"})
    clock.seconds += 5
    assert times.seconds("n", "one", "driver: no such version") == 0.0
