"""The client's verbs, its errors, and what it does when the network or the server misbehaves."""

from __future__ import annotations

import asyncio
import json

import pytest

from gpuplane.api.gpunode import GPUNode
from kubekit.api.core import ConfigMap, Node, Pod
from kubekit.api.meta import ObjectMeta
from kubekit.errors import InvalidInput, Retryable, Terminal
from kubekit.kube import (
    AlreadyExists,
    ApiError,
    Conflict,
    EventType,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
MAPS = "/api/v1/configmaps"


async def test_get_decodes_only_what_the_kind_knows(harness):
    await harness.server.put(NODES, "n1", status={"capacity": {"cpu": "4"}, "images": [{"names": ["x"]}]})
    node = await harness.client().get(Node, "n1")
    assert node.metadata.name == "n1"
    assert node.status.capacity == {"cpu": "4"}


async def test_a_missing_object_is_terminal_and_named(harness):
    with pytest.raises(NotFound) as caught:
        await harness.client().get(Pod, "p", "default")
    assert isinstance(caught.value, Terminal)
    assert caught.value.status == 404
    assert caught.value.reason == "NotFound"
    assert "/api/v1/namespaces/default/pods/p" in str(caught.value)


async def test_list_follows_pages(harness):
    for i in range(1201):
        await harness.server.put(PODS, f"p{i:04}", "default")
    pods = await harness.client().list(Pod)
    assert len(pods) == 1201
    assert harness.server.counts() == {"GET": 3}


async def test_list_of_one_namespace_with_selectors(harness):
    await harness.server.put(PODS, "a", "one")
    await harness.server.put(PODS, "b", "two")
    pods = await harness.client().list(Pod, "two", labels="app=x", fields="spec.nodeName=n 1")
    assert [p.metadata.name for p in pods] == ["b"]
    assert harness.server.log[-1].params["labelSelector"] == "app=x"
    assert harness.server.log[-1].params["fieldSelector"] == "spec.nodeName=n 1"


async def test_an_expired_continue_token_lists_anew_and_whole(harness, fault):
    for i in range(700):
        await harness.server.put(PODS, f"p{i:04}", "default")
    body = json.dumps({"code": 410, "reason": "Expired", "message": "too old"}).encode()
    harness.server.faults.append(fault(status=410, body=body, only=lambda r: "continue" in r.params))
    pods = await harness.client().list(Pod)
    assert len(pods) == 700
    assert "limit" not in harness.server.log[-1].params


async def test_create_and_the_error_of_a_second_one(harness):
    client = harness.client()
    made = await client.create(ConfigMap(metadata=ObjectMeta(name="c", namespace="x"), data={"k": "v"}))
    assert made.metadata.uid
    sent = harness.server.log[-1].body
    assert (sent["apiVersion"], sent["kind"]) == ("v1", "ConfigMap")
    with pytest.raises(AlreadyExists):
        await client.create(ConfigMap(metadata=ObjectMeta(name="c", namespace="x")))


async def test_a_dict_is_found_by_its_kind_and_answered_as_dict(harness):
    answer = await harness.client().create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}
    )
    assert answer["metadata"]["namespace"] == "default"


async def test_a_dict_of_unknown_kind_is_refused_before_the_wire(harness):
    with pytest.raises(InvalidInput, match=r"where is example\.com/v1 Thing served"):
        await harness.client().create({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}})
    assert harness.server.log == []


async def test_replace_with_a_stale_version_conflicts(harness):
    old = await harness.server.put(MAPS, "c", "default", data={"a": "1"})
    await harness.server.put(MAPS, "c", "default", data={"a": "2"})
    with pytest.raises(Conflict) as caught:
        await harness.client().replace(old | {"apiVersion": "v1", "kind": "ConfigMap"})
    assert isinstance(caught.value, Retryable)


async def test_patch_types_and_subresource(harness):
    await harness.server.put(NODES, "n1")
    client = harness.client()
    node = await client.patch(Node, "n1", {"metadata": {"labels": {"a": "b"}}}, manager="me")
    assert node.metadata.labels == {"a": "b"}
    assert harness.server.log[-1].headers["content-type"] == "application/merge-patch+json"
    assert harness.server.log[-1].params == {"fieldManager": "me"}
    await client.patch(Node, "n1", {}, type="strategic", subresource="status")
    assert harness.server.log[-1].path == "/api/v1/nodes/n1/status"


async def test_apply_creates_and_names_its_manager(harness):
    answer = await harness.client().apply({"metadata": {"name": "n"}}, "gpuplane-driver", resource=GPUNode.RESOURCE)
    assert answer["metadata"]["name"] == "n"
    request = harness.server.log[-1]
    assert request.path == "/apis/gpuplane.dev/v1alpha1/gpunodes/n"
    assert request.params == {"fieldManager": "gpuplane-driver", "force": "true"}
    assert request.headers["content-type"] == "application/apply-patch+yaml"


async def test_delete_of_another_uid_is_refused(harness):
    await harness.server.put(NODES, "n1")
    client = harness.client()
    with pytest.raises(Conflict):
        await client.delete(Node, "n1", uid="other")
    await client.delete(Node, "n1", propagation="Foreground")
    assert harness.server.log[-1].body["propagationPolicy"] == "Foreground"
    assert harness.server.objects[NODES] == {}


@pytest.mark.parametrize("name", ["", "a/b", "..", "."])
async def test_a_name_cannot_leave_its_path(harness, name):
    with pytest.raises(InvalidInput):
        await harness.client().get(Node, name)


async def test_odd_characters_in_a_name_are_escaped(harness):
    with pytest.raises(NotFound):
        await harness.client().get(Node, "a b?watch=1\r\nX: y")
    assert harness.server.log[-1].params == {}
    assert "x" not in harness.server.log[-1].headers


async def test_every_cause_of_an_invalid_object_is_kept(harness, fault):
    causes = [{"field": "spec.a", "message": "required"}, {"field": "spec.b", "message": "bad"}]
    body = json.dumps({"code": 422, "reason": "Invalid", "message": "no", "details": {"causes": causes}}).encode()
    harness.server.faults.append(fault(status=422, body=body))
    with pytest.raises(Invalid) as caught:
        await harness.client().get(Node, "x")
    assert caught.value.causes == ("spec.a: required", "spec.b: bad")


async def test_an_answer_that_is_no_status_still_gives_a_clear_error(harness, fault):
    harness.server.faults.append(fault(status=502, body=b"<html>Bad gateway"))
    with pytest.raises(ServerError, match="<html>Bad gateway"):
        await harness.client().get(Node, "x")


# -- retries -------------------------------------------------------------------------------------------------------


async def test_retry_after_is_obeyed(harness, fault):
    await harness.server.put(NODES, "n1")
    harness.server.faults += [
        fault(status=429, headers={"Retry-After": "3"}),
        fault(status=503, headers={"Retry-After": "1"}),
    ]
    await harness.client().get(Node, "n1")
    assert harness.slept == [3.0, 1.0]


async def test_retry_after_is_not_obeyed_for_ever(harness, fault):
    harness.server.faults += [fault(status=429, headers={"Retry-After": "1"}) for _ in range(20)]
    with pytest.raises(TooManyRequests):
        await harness.client().get(Node, "n1")
    assert len(harness.slept) == 10


async def test_a_server_error_without_retry_after_is_the_callers(harness, fault):
    harness.server.faults.append(fault(status=500))
    with pytest.raises(ServerError) as caught:
        await harness.client().get(Node, "n1")
    assert isinstance(caught.value, Retryable)
    assert harness.slept == []


async def test_a_read_survives_a_kept_connection_that_died(harness, fault):
    await harness.server.put(NODES, "n1")
    client = harness.client()
    await client.get(Node, "n1")
    harness.server.faults.append(fault(drop="before"))
    await client.get(Node, "n1")
    assert harness.server.opened == 2


async def test_a_write_is_not_sent_twice_by_itself(harness, fault):
    await harness.server.put(NODES, "n1")
    client = harness.client()
    await client.get(Node, "n1")
    harness.server.faults.append(fault(drop="before"))
    with pytest.raises(Unreachable, match="closed the connection before it answered"):
        await client.patch(Node, "n1", {})
    assert harness.server.counts() == {"GET": 1, "PATCH": 1}


async def test_an_apply_may_be_sent_again(harness, fault):
    client = harness.client()
    await harness.server.put(NODES, "n1")
    await client.get(Node, "n1")
    harness.server.faults.append(fault(drop="before"))
    await client.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}, "m")
    assert harness.server.counts()["PATCH"] == 2


async def test_a_body_cut_off_is_an_error_not_a_short_body(harness, fault):
    await harness.server.put(NODES, "n1")
    harness.server.faults.append(fault(drop="during"))
    with pytest.raises(Unreachable, match="in the middle of an answer"):
        await harness.client().get(Node, "n1")


async def test_truncated_json_is_retryable(harness, fault):
    harness.server.faults.append(fault(status=200, body=b'{"metadata": {"na'))
    with pytest.raises(ServerError, match="is no Node"):
        await harness.client().get(Node, "n1")


async def test_a_silent_server_runs_into_the_timeout(harness, fault):
    harness.server.faults.append(fault(hang=True))
    with pytest.raises(Unreachable, match=r"no answer within 0\.05 s"):
        await harness.client(timeout=0.05).get(Node, "n1")


async def test_nobody_listening_is_said_so(harness):
    client = harness.client()
    await harness.stop()
    with pytest.raises(Unreachable, match="cannot connect: connection refused") as caught:
        await client.get(Node, "n1")
    assert not caught.value.sent
    assert isinstance(caught.value, ApiError)


async def test_what_does_not_speak_http_is_said_so(harness, make_harness):
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 smtp ready\r\n")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(babble, "127.0.0.1", 0)
    harness.port = other.sockets[0].getsockname()[1]
    with pytest.raises(Unreachable, match="does not speak HTTP"):
        await harness.client().get(Node, "n1")
    other.close()


async def test_a_cancelled_request_does_not_poison_the_pool(harness, fault):
    await harness.server.put(NODES, "n1")
    await harness.server.put(NODES, "n2")
    client = harness.client()
    await client.get(Node, "n1")
    harness.server.arrived.clear()
    harness.server.faults.append(fault(hang=True))
    task = asyncio.create_task(client.get(Node, "n1"))
    await harness.server.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await client.get(Node, "n2")).metadata.name == "n2"


async def test_many_requests_at_once_reuse_connections(harness):
    for i in range(200):
        await harness.server.put(NODES, f"n{i}")
    client = harness.client()
    nodes = await asyncio.gather(*(client.get(Node, f"n{i}") for i in range(200)))
    assert [n.metadata.name for n in nodes] == [f"n{i}" for i in range(200)]
    assert harness.server.opened <= 64


# -- watch ---------------------------------------------------------------------------------------------------------


async def test_watch_gives_changes_and_bookmarks(harness):
    await harness.server.put(NODES, "n1")
    watch = harness.client().watch(Node, resource_version="0")
    first = await anext(watch)
    assert (first.type, first.object.metadata.name) == (EventType.ADDED, "n1")
    await harness.server.put(NODES, "n1", spec={"unschedulable": True})
    second = await anext(watch)
    assert (second.type, second.object.spec.unschedulable) == (EventType.MODIFIED, True)
    await harness.server.bookmark()
    third = await anext(watch)
    assert (third.type, third.object, third.resource_version) == (EventType.BOOKMARK, None, "2")
    await harness.server.end_watches()
    with pytest.raises(StopAsyncIteration):
        await anext(watch)
    assert harness.server.log[-1].params["allowWatchBookmarks"] == "true"


@pytest.mark.parametrize("in_stream", [False, True])
async def test_an_expired_version_raises_gone_either_way(harness, in_stream):
    await harness.server.put(NODES, "n1")
    await harness.server.put(NODES, "n1")
    await harness.server.compact()
    harness.server.gone_in_stream = in_stream
    with pytest.raises(Gone):
        await anext(harness.client().watch(Node, resource_version="1"))


async def test_a_watch_cut_off_raises(harness):
    watch = harness.client().watch(Node, resource_version="0")
    await harness.server.put(NODES, "n1")
    await anext(watch)
    harness.server.cut()
    with pytest.raises(Unreachable):
        await anext(watch)


async def test_an_odd_object_does_not_end_a_watch(harness):
    found = []
    watch = harness.client().watch(Node, resource_version="0", bad=lambda raw, why: found.append(why))
    await harness.server.put(NODES, "odd", spec={"unschedulable": "maybe"})
    await harness.server.put(NODES, "good")
    assert (await anext(watch)).object is None
    assert (await anext(watch)).object.metadata.name == "good"
    assert "unschedulable" in found[0]
    await watch.aclose()


async def test_a_servers_warnings_are_logged_once(harness, fault, caplog):
    for text in ('299 - "unknown field \\"spec.x\\""', '299 - "unknown field \\"spec.x\\""', '299 - "deprecated"'):
        harness.server.faults.append(fault(status=200, headers={"Warning": text}, body=b"{}"))
    client = harness.client()
    for _ in range(3):
        await client.get(Node, "n1")
    assert [r.message.partition(": ")[2] for r in caplog.records] == [
        '299 - "unknown field \\"spec.x\\""',
        '299 - "deprecated"',
    ]


async def test_a_client_that_is_closed_right_after_a_stream_leaves_no_open_socket(harness, monkeypatch):
    loop = asyncio.get_running_loop()
    connect, sockets = loop.create_connection, []

    async def recorded(*arguments, **options):
        transport, protocol = await connect(*arguments, **options)
        sockets.append(transport.get_extra_info("socket"))
        return transport, protocol

    monkeypatch.setattr(loop, "create_connection", recorded)
    await harness.server.put(NODES, "n1")
    client = harness.client()
    changes = client.stream(NODES, {"watch": "true", "resourceVersion": "0"})
    await anext(changes)
    await changes.aclose()
    await client.aclose()
    assert [socket.fileno() for socket in sockets] == [-1]
