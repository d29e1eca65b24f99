"""The holders of devices; the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.kubelet.devices import checkpoint
from tinykube.kubelet.devices.ledger import (
    AllocationOptions,
    ContainerDevices,
    DeviceHolding,
    DeviceLedger,
    DeviceMount,
    ListedDevice,
    candidates,
    choose,
)

IDS = tuple(f"GPU-{n}" for n in range(4))
DEVICES = {i: ListedDevice(healthy=i != "GPU-3", numa=(int(i[-1]) // 2,)) for i in IDS}


def hold(pod: str, container: str, *ids: str) -> DeviceHolding:
    given_ = ContainerDevices(
        envs={"A": container}, devices=(DeviceMount("/dev/x", "/dev/x"),), cdi=("nvidia.com/gpu=0",)
    )
    return DeviceHolding(pod_uid=pod, container=container, resource="nvidia.com/gpu", ids=ids, given=given_)


def test_used_and_sick_devices_are_not_given() -> None:
    assert candidates(DEVICES, {"GPU-0"}, (), 2) == AllocationOptions((), ("GPU-1", "GPU-2"))
    assert candidates(DEVICES, {"GPU-0"}, (), 3) is None


def test_an_init_containers_devices_come_first() -> None:
    assert candidates(DEVICES, {"GPU-1"}, ("GPU-1",), 2) == AllocationOptions(("GPU-1",), ("GPU-1", "GPU-0", "GPU-2"))


def test_what_a_lasting_container_got_of_an_init_container_is_not_free_again() -> None:
    ledger = DeviceLedger([hold("p", "first", "GPU-0", "GPU-1"), hold("q", "first", "GPU-2")])
    assert ledger.reusable("p", "nvidia.com/gpu", {"first"}) == ["GPU-0", "GPU-1"]
    ledger.hold(hold("p", "main", "GPU-0"))
    assert ledger.reusable("p", "nvidia.com/gpu", {"first"}) == ["GPU-1"]


@pytest.mark.parametrize(
    ("preferred", "chosen"),
    [
        (("b", "a"), ("b", "a")),
        (("b",), ("a", "b")),
        (("b", "b"), ("a", "b")),
        (("b", "x"), ("a", "b")),
        (("b", "c"), ("a", "b")),
        ((), ("a", "b")),
    ],
)
def test_a_preference_is_honoured_when_it_can_be(preferred: tuple[str, ...], chosen: tuple[str, ...]) -> None:
    assert choose(AllocationOptions(("a",), ("a", "b", "c")), preferred, 2) == chosen


pods = st.sampled_from(["p", "q", "r"])


@given(
    st.lists(
        st.one_of(st.tuples(st.just("hold"), pods, st.integers(1, 3)), st.tuples(st.just("free"), pods, st.just(0)))
    )
)
def test_no_device_has_two_holders(steps: list[tuple[str, str, int]]) -> None:
    ledger = DeviceLedger()
    for step, pod, wanted in steps:
        if step == "free":
            ledger.release(pod)
        elif not ledger.of(pod, "c"):
            choice = candidates(DEVICES, ledger.in_use("nvidia.com/gpu"), (), wanted)
            if choice is not None:
                ledger.hold(hold(pod, "c", *choose(choice, (), wanted)))
        ids = [i for holding in ledger.all() for i in holding.ids]
        assert len(ids) == len(set(ids))
        assert "GPU-3" not in ids


@given(st.lists(st.tuples(pods, st.sampled_from(["c", "d"]), st.lists(st.sampled_from(IDS), unique=True)), max_size=6))
def test_the_checkpoint_gives_back_what_it_was_given(entries: list[tuple[str, str, list[str]]]) -> None:
    ledger = DeviceLedger(hold(pod, container, *ids) for pod, container, ids in entries)
    again = checkpoint.decode(checkpoint.encode(ledger.all(), {"nvidia.com/gpu": DEVICES}))
    assert again.registered == {"nvidia.com/gpu"}
    key = lambda h: (h.pod_uid, h.container)  # noqa: E731
    assert [(key(h), set(h.ids), h.given) for h in again.holdings] == [
        (key(h), set(h.ids), h.given) for h in ledger.all()
    ]


def test_a_torn_checkpoint_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.NAME
    checkpoint.save(path, [hold("p", "c", "GPU-0")], {"nvidia.com/gpu": DEVICES})
    known = checkpoint.load(path)
    assert known is not None and [h.ids for h in known.holdings] == [("GPU-0",)]
    path.write_bytes(path.read_bytes().replace(b"GPU-0", b"GPU-1"))
    assert checkpoint.load(path) == checkpoint.Checkpoint()
    assert checkpoint.load(tmp_path / "none") is None
