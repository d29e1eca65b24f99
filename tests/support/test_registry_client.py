"""The client that histories use: its watches deliver in order, and the end of its process waits for no event."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kubekit.api.core import Node, ObjectReference
from kubekit.kube import EventRecorder
from tests.support.registry_client import RegistryClient, WriteFault
from tests.support.virtual_time import VirtualClock, settle
from tinykube.apiserver.registry import Registry

NODE = ObjectReference(kind="Node", name="n")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def registry(clock: VirtualClock) -> Registry:
    return Registry(clock=clock.now)


async def label(registry: Registry, value: str) -> None:
    await registry.patch("nodes", None, "n", {"metadata": {"labels": {"step": value}}}, "merge")


async def test_changes_that_are_due_at_one_moment_are_delivered_in_their_order(
    registry: Registry, clock: VirtualClock
) -> None:
    delays = iter((0.0, 1.0, 0.0, 0.0))
    client = RegistryClient(registry, clock, delay=lambda: next(delays))
    watch = client.watch(Node, resource_version=str(registry.store.version))
    seen: list[str] = []

    async def follow() -> None:
        async for event in watch:
            assert event.object is not None
            seen.append(event.object.metadata.labels.get("step", ""))

    following = asyncio.create_task(follow())
    writes: list[asyncio.Task[None]] = []
    # Done in the moment at which the change before it is due, and before that is delivered.
    clock.call_later(1.0, lambda: writes.append(asyncio.create_task(label(registry, "2"))))
    await registry.create("nodes", None, {"metadata": {"name": "n", "labels": {"step": "0"}}})
    await label(registry, "1")
    await clock.advance(0.5)
    assert seen == ["0"]
    await clock.advance(0.5)
    assert seen == ["0", "1", "2"]
    await label(registry, "3")
    await settle()
    assert seen == ["0", "1", "2", "3"]
    assert all(write.done() for write in writes)
    following.cancel()


@pytest.mark.parametrize(
    ("faults", "written"),
    [
        ([WriteFault.STOP_BEFORE], 0),
        ([WriteFault.STOP_AFTER], 1),
        ([WriteFault.STOP_LATE], 0),
        ([WriteFault.NONE, WriteFault.STOP_BEFORE], 1),
        ([WriteFault.NONE, WriteFault.STOP_AFTER], 2),
        ([WriteFault.LEASE], 0),
    ],
    ids=lambda value: "-".join(fault.name for fault in value) if isinstance(value, list) else str(value),
)
async def test_a_process_that_ends_has_no_event_to_wait_for(
    registry: Registry, clock: VirtualClock, faults: list[WriteFault], written: int
) -> None:
    left: Iterator[WriteFault] = iter(faults)
    client = RegistryClient(registry, clock, fault=lambda: next(left))
    recorder = EventRecorder(client, "test", clock=clock)  # type: ignore[arg-type]  # the face of a client
    for _ in range(4):
        recorder.event(NODE, "Normal", "Same", "the first creates the event, the others raise its count")
    flushing = asyncio.create_task(recorder.flush())
    await settle()
    assert flushing.done()
    assert sum(event["count"] for event in registry.list("events")) == written
    assert recorder.written + recorder.dropped == 4
    await recorder.aclose()
