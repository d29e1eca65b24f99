"""The bookings of a node add up to its GPUs, whatever happens between two readings."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.metering import Booking, GPUReading, Hold, HoldKind, Meter, NodeReading, PodContainer, book
from gpuplane.metering.booking import LONGEST_SECONDS
from gpuplane.metering.meter import REMEMBERED_SECONDS

SECOND = 10**9
GIB = 1 << 30


def who(name: str, kind: HoldKind = HoldKind.WHOLE) -> PodContainer:
    return PodContainer("ml", name, "main", kind)


def gpu(
    joules: float | None = 0, *, active: float | None = 0.0, gib: int = 0, watts: float | None = None
) -> GPUReading:
    energy = None if joules is None else round(joules * 1000)
    return GPUReading(uuid="GPU-0", active=active, energy_millijoules=energy, memory_bytes=gib * GIB, power_watts=watts)


def share(name: str, part: float, used: float = 0, gib: int = 0, life: int = 1) -> Hold:
    container = who(name, HoldKind.SHARE)
    used_ns = round(used * SECOND)
    return Hold(who=container, uuid="GPU-0", part=part, used_ns=used_ns, memory_bytes=gib * GIB, life=life)


def at(seconds: float, reading: GPUReading, *holds: Hold) -> NodeReading:
    return NodeReading(at_ns=round(seconds * SECOND), gpus=(reading,), holds=holds)


def booked(before: NodeReading, now: NodeReading, idle: float = 0.0) -> dict[str, Booking]:
    return {one.who.pod if one.who else "": one for one in book(before, now, {"GPU-0": idle})}


def amounts(booking: Booking) -> tuple[float | None, ...]:
    return booking.held_seconds, booking.used_seconds, booking.memory_byte_seconds, booking.energy_joules


def test_a_pod_with_a_whole_gpu_has_all_of_it() -> None:
    hold = Hold(who=who("train"), uuid="GPU-0", part=1.0)
    found = booked(at(0, gpu(gib=8), hold), at(10, gpu(3000, active=0.5), hold), idle=70)
    assert amounts(found["train"]) == (10, 5, 80 * GIB, 3000)
    assert amounts(found[""]) == (0, 0, 0, 0)


def test_idle_power_goes_by_part_and_the_rest_by_use() -> None:
    before = at(0, gpu(gib=8), share("a", 0.3, gib=2), share("b", 0.5, gib=4))
    now = at(10, gpu(2000, active=0.8), share("a", 0.3, used=6), share("b", 0.5, used=2))
    found = booked(before, now, idle=100)
    assert amounts(found["a"]) == (3, 6, 20 * GIB, 300 + 750)
    assert amounts(found["b"]) == (5, 2, 40 * GIB, 500 + 250)
    assert [round(one or 0) for one in amounts(found[""])] == [2, 0, 20 * GIB, 200]


def test_replicas_share_the_use_by_part() -> None:
    holds = [Hold(who=who(name, HoldKind.REPLICA), uuid="GPU-0", part=0.25) for name in "ab"]
    found = booked(at(0, gpu(), *holds), at(8, gpu(800, active=0.5), *holds), idle=50)
    assert amounts(found["a"]) == amounts(found["b"]) == (2, 2, 0, 100 + 200)
    assert amounts(found[""]) == (4, 0, 0, 200)


def test_use_that_no_share_explains_is_unbooked() -> None:
    found = booked(at(0, gpu(), share("a", 0.5)), at(10, gpu(1000, active=0.4), share("a", 0.5, used=1)))
    assert found["a"].used_seconds == 1
    assert found[""].used_seconds == 3
    assert found[""].energy_joules == 750


def test_a_gpu_without_a_holder_is_unbooked() -> None:
    found = booked(at(0, gpu(gib=1)), at(10, gpu(700, active=0.1)))
    assert {name: amounts(one) for name, one in found.items()} == {"": (10, 1, 10 * GIB, 700)}


def test_a_pod_that_ended_between_two_readings_held_until_the_second() -> None:
    left, came = share("left", 0.5, used=5), share("came", 0.5, used=1)
    found = booked(at(0, gpu(), left), at(10, gpu(active=0.5), came))
    assert found["left"].held_seconds == 5
    assert "came" not in found
    assert found[""].used_seconds == 5, "the counter of a share ends with the share"


def test_a_counter_of_energy_that_begins_again_counts_from_zero() -> None:
    hold = Hold(who=who("train"), uuid="GPU-0", part=1.0)
    assert booked(at(0, gpu(9000), hold), at(10, gpu(40), hold))["train"].energy_joules == 40


def test_a_share_with_another_life_counts_from_zero() -> None:
    found = booked(at(0, gpu(), share("a", 1, used=100)), at(10, gpu(), share("a", 1, used=102, life=2)))
    assert found["a"].used_seconds == 10, "at most the time that passed"
    found = booked(at(0, gpu(), share("a", 1, used=100)), at(10, gpu(), share("a", 1, used=3, life=2)))
    assert found["a"].used_seconds == 3


def test_without_a_counter_of_energy_power_is_used() -> None:
    hold = Hold(who=who("train"), uuid="GPU-0", part=1.0)
    found = booked(at(0, gpu(None, watts=100), hold), at(10, gpu(None, watts=200), hold))
    assert found["train"].energy_joules == 1500
    assert booked(at(0, gpu(None), hold), at(10, gpu(None), hold))["train"].energy_joules is None


def test_in_mig_mode_use_is_unknown_and_energy_goes_by_part() -> None:
    holds = [Hold(who=who(name, HoldKind.MIG), uuid="GPU-0", part=0.5, memory_bytes=GIB) for name in "ab"]
    found = booked(at(0, gpu(active=None, gib=3), *holds), at(10, gpu(900, active=None), *holds))
    assert amounts(found["a"]) == (5, None, 10 * GIB, 450)
    assert found[""].used_seconds is None


def test_of_a_long_gap_only_holders_at_both_ends_are_known() -> None:
    stays, left = share("stays", 0.5), share("left", 0.5)
    long = LONGEST_SECONDS + 1
    found = booked(at(0, gpu(), stays, left), at(long, gpu(), stays))
    assert found["stays"].held_seconds == found[""].held_seconds == long / 2
    assert "left" not in found


def test_a_clock_that_stands_or_goes_back_books_nothing() -> None:
    hold = Hold(who=who("train"), uuid="GPU-0", part=1.0)
    for second in (5.0, 4.0):
        assert book(at(5, gpu(), hold), at(second, gpu(100), hold), {}) == ()


def test_a_gpu_that_is_lost_books_nothing_until_it_is_back() -> None:
    hold, meter = Hold(who=who("train"), uuid="GPU-0", part=1.0), Meter()
    for reading in (at(0, gpu(), hold), NodeReading(at_ns=10 * SECOND), at(20, gpu(500), hold), at(30, gpu(600), hold)):
        meter.read(reading)
    assert meter.totals["GPU-0", who("train")].held_seconds == 10
    assert meter.totals["GPU-0", who("train")].energy_joules == 100


def test_totals_begin_at_zero_and_are_forgotten_after_the_last_scrapes() -> None:
    hold, meter = Hold(who=who("train"), uuid="GPU-0", part=1.0), Meter()
    meter.read(at(0, gpu(), hold))
    assert meter.totals["GPU-0", who("train")].held_seconds == 0
    meter.read(at(10, gpu()))
    meter.read(at(9, gpu(), hold))
    assert meter.totals["GPU-0", who("train")].held_seconds == 10
    meter.read(at(REMEMBERED_SECONDS, gpu()))
    assert ("GPU-0", who("train")) in meter.totals
    meter.read(at(REMEMBERED_SECONDS + 11, gpu()))
    assert ("GPU-0", who("train")) not in meter.totals


def test_idle_power_is_the_least_that_was_seen() -> None:
    meter, a, b = Meter(), share("a", 0.5), share("b", 0.5)
    meter.read(at(0, gpu(0), a, b))
    meter.read(at(10, gpu(1000), a, b))  # 100 W without work
    meter.read(at(20, gpu(5000, active=1.0), share("a", 0.5, used=10), b))
    assert meter.totals["GPU-0", a.who].energy_joules == 500 + 500 + 3000
    assert meter.totals["GPU-0", b.who].energy_joules == 500 + 500


PARTS = st.floats(0, 1, allow_nan=False)
COUNTERS = st.none() | st.integers(0, 200 * SECOND)
HOLDS = st.lists(
    st.builds(
        Hold,
        who=st.builds(PodContainer, st.just("ml"), st.sampled_from("abcd"), st.just("main"), st.sampled_from(HoldKind)),
        uuid=st.just("GPU-0"),
        part=PARTS,
        used_ns=COUNTERS,
        memory_bytes=st.none() | st.integers(0, 80 * GIB),
        life=st.integers(0, 1),
    ),
    max_size=5,
    unique_by=lambda hold: hold.who,
)
GPUS = st.builds(
    GPUReading,
    uuid=st.just("GPU-0"),
    active=st.none() | PARTS,
    power_watts=st.none() | st.floats(0, 700),
    energy_millijoules=st.none() | st.integers(0, 10**9),
    memory_bytes=st.none() | st.integers(0, 80 * GIB),
)


@given(GPUS, GPUS, HOLDS, HOLDS, st.floats(0.01, 1000), st.floats(0, 700))
def test_the_bookings_add_up_to_the_gpu(
    first: GPUReading, second: GPUReading, holds: list[Hold], later: list[Hold], seconds: float, idle: float
) -> None:
    before = NodeReading(at_ns=0, gpus=(first,), holds=tuple(holds))
    now = NodeReading(at_ns=round(seconds * SECOND), gpus=(second,), holds=tuple(later))
    passed = now.at_ns / SECOND
    bookings = book(before, now, {"GPU-0": idle})
    for booking in bookings:
        assert all(one is None or one >= 0 for one in amounts(booking)), booking
    sums = [math.fsum(amounts(one)[at_] or 0 for one in bookings) for at_ in range(4)]
    assert math.isclose(sums[0], passed, rel_tol=1e-9)
    assert sums[1] <= passed * (1 + 1e-9)
    old, new = first.energy_millijoules, second.energy_millijoules
    if old is not None and new is not None:
        assert math.isclose(sums[3], (new - old if new >= old else new) / 1000, rel_tol=1e-6, abs_tol=1e-6)
    if first.memory_bytes is not None and all(hold.memory_bytes is None for hold in holds):
        assert math.isclose(sums[2], first.memory_bytes * passed, rel_tol=1e-6, abs_tol=1e-6)
    if second.active is not None:
        assert sums[1] >= second.active * passed * (1 - 1e-6)


@given(st.lists(st.tuples(GPUS, HOLDS, st.floats(-5, 50)), max_size=8))
def test_totals_never_shrink(steps: list[tuple[GPUReading, list[Hold], float]]) -> None:
    meter, moment = Meter(), 0.0
    old: dict[object, tuple[float, ...]] = {}
    for reading, holds, passed in steps:
        moment += passed
        meter.read(NodeReading(at_ns=round(moment * SECOND), gpus=(reading,), holds=tuple(holds)))
        for key, total in meter.totals.items():
            now = tuple(value or 0.0 for value in msgspec.structs.astuple(total)[:4])
            assert all(new >= before for new, before in zip(now, old.get(key, (0.0,) * 4), strict=True))
            old[key] = now
