"""Events: deduplicated, combined, bounded, and never in the way."""

from __future__ import annotations

import pytest

from kubekit.api.core import Node, ObjectReference, Pod
from kubekit.api.meta import ObjectMeta
from kubekit.kube import ApiEndpoint, EventRecorder, Fenced, Lease
from kubekit.kube.auth import StaticAuth
from kubekit.kube.events import Correlator

EVENTS = "/api/v1/events"
NODE = ObjectReference(kind="Node", api_version="v1", name="n1", uid="u1")


def test_the_same_again_raises_the_count(clock):
    correlator = Correlator(clock)
    first = correlator.observe(NODE, "Normal", "StageDone", "driver")
    clock.jump(5)
    second = correlator.observe(NODE, "Normal", "StageDone", "driver")
    assert (first.count, second.count) == (1, 2)
    assert first.name == second.name
    assert second.first == first.first < second.last


def test_many_messages_of_one_reason_are_combined(clock):
    correlator = Correlator(clock)
    writes = [correlator.observe(NODE, "Warning", "StageFailed", f"try {i}") for i in range(15)]
    assert [w.count for w in writes] == [1] * 10 + [1, 2, 3, 4, 5]
    assert len({w.name for w in writes}) == 11
    assert writes[-1].message == "(combined from similar events): try 14"
    clock.jump(601)
    assert correlator.observe(NODE, "Warning", "StageFailed", "try 99").message == "try 99"


def test_one_object_cannot_flood(clock):
    correlator = Correlator(clock)
    assert sum(correlator.observe(NODE, "Normal", "R", str(i)) is not None for i in range(100)) == 25
    other = ObjectReference(kind="Node", name="n2", uid="u2")
    assert correlator.observe(other, "Normal", "R", "x") is not None
    clock.jump(300)
    assert correlator.observe(NODE, "Normal", "R", "y") is not None


def test_a_long_message_is_cut_at_a_kilobyte(clock):
    message = Correlator(clock).observe(NODE, "Normal", "R", "ä" * 2000).message
    assert len(message.encode()) <= 1024
    assert message.endswith("ä…")


async def test_events_are_written_where_describe_looks(harness, clock):
    recorder = EventRecorder(harness.client(), "gpuplane-operator", instance="pod-1", clock=clock)
    recorder.event(Node(metadata=ObjectMeta(name="n1", uid="u1")), "Normal", "StageDone", "driver 570.133.20")
    recorder.event(Pod(metadata=ObjectMeta(name="p", namespace="ml", uid="u2")), "Warning", "NeverFits", "150 core")
    recorder.event(Node(metadata=ObjectMeta(name="n1", uid="u1")), "Normal", "StageDone", "driver 570.133.20")
    await recorder.flush()
    events = {key.partition("/")[0]: event for key, event in harness.server.objects[EVENTS].items()}
    assert set(events) == {"default", "ml"}
    event = events["default"]
    assert event["count"] == 2
    assert event["involvedObject"] == {"kind": "Node", "apiVersion": "v1", "name": "n1", "uid": "u1"}
    assert (event["type"], event["reason"], event["source"]) == (
        "Normal",
        "StageDone",
        {"component": "gpuplane-operator", "host": "pod-1"},
    )
    assert event["lastTimestamp"].endswith("Z")
    assert "." not in event["lastTimestamp"]
    await recorder.aclose()
    assert recorder.written == 3


async def test_an_event_that_expired_on_the_server_is_made_again(harness, clock):
    recorder = EventRecorder(harness.client(), "c", clock=clock)
    recorder.event(NODE, "Normal", "R", "m")
    await recorder.flush()
    await harness.server.remove(EVENTS, next(iter(harness.server.objects[EVENTS])))
    recorder.event(NODE, "Normal", "R", "m")
    await recorder.flush()
    (event,) = harness.server.objects[EVENTS].values()
    assert event["count"] == 2
    await recorder.aclose()


@pytest.mark.parametrize("gone", [True, False])
async def test_a_server_that_refuses_or_is_away_disturbs_nobody(harness, clock, fault, caplog, gone):
    recorder = EventRecorder(harness.client(), "c", clock=clock)
    if gone:
        await harness.stop()
    else:
        harness.server.faults += [fault(status=403) for _ in range(20)]
    for i in range(20):
        recorder.event(NODE, "Normal", "R", f"m{i}")
    await recorder.aclose()
    assert (recorder.written, recorder.dropped) == (0, 20)
    assert sum("event not written" in r.message for r in caplog.records) == 1


async def test_events_without_the_lease_are_one_line_of_the_log(harness, clock, caplog):
    async with Fenced(ApiEndpoint(host="127.0.0.1", port=harness.port, auth=StaticAuth(token="t0"))) as client:
        client.fence = Lease(harness.client(), "operator", "gpu-operator", "me", clock=clock)
        recorder = EventRecorder(client, "c", clock=clock)
        for i in range(20):
            recorder.event(NODE, "Normal", "R", f"m{i}")
        await recorder.aclose()
    assert (recorder.written, recorder.dropped) == (0, 20)
    (line,) = [record for record in caplog.records if "event not written" in record.message]
    assert line.exc_info is None and "another one may lead" in line.message


async def test_more_than_can_wait_is_dropped(harness, clock):
    recorder = EventRecorder(harness.client(), "c", clock=clock)
    for i in range(1200):
        recorder.event(ObjectReference(kind="Node", name=f"n{i}", uid=str(i)), "Normal", "R", "m")
    assert recorder.dropped == 200
    await recorder.flush()
    assert recorder.written == 1000
    await recorder.aclose()
