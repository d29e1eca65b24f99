"""An extender named by its Service: how it is found, and which pods do not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import pytest

from packages.tinykube.tests.scheduler.test_scheduler import SHARE, Board, ExtenderServer, managed
from tests.support.until import until
from tinykube.scheduler import Scheduler
from tinykube.scheduler.extender_service import ServicePort, service_of

URL = "http://placer.gpu-operator:3456/scheduler"
SERVICE = {
    "metadata": {"name": "placer", "namespace": "gpu-operator"},
    "spec": {"selector": {"app": "placer"}, "ports": [{"port": 3456, "targetPort": 9}]},
}


@pytest.mark.parametrize(
    ("url", "service"),
    [
        ("http://placer.gpu-operator:3456/scheduler", ServicePort("gpu-operator", "placer", 3456)),
        ("http://placer.gpu-operator.svc:3456", ServicePort("gpu-operator", "placer", 3456)),
        ("https://placer.gpu-operator.svc.cluster.local", ServicePort("gpu-operator", "placer", 443)),
        ("http://placer.gpu-operator", ServicePort("gpu-operator", "placer", 80)),
        ("http://127.0.0.1:3456", None),
        ("http://10.1:80", None),
        ("http://localhost:3456", None),
        ("http://extender.example.com", None),
        ("http://example.com.:80", None),
    ],
)
def test_a_url_names_a_service_as_cluster_dns_reads_it(url, service):
    assert service_of(url) == service


@pytest.fixture
def extender():
    server = ExtenderServer()
    yield server
    server.close()


@pytest.fixture
async def board(objects):
    board = Board(objects)
    await board.registry.create("namespaces", None, {"metadata": {"name": "gpu-operator"}})
    task = asyncio.create_task(Scheduler(board.registry, managed(URL, filter_verb="filter", bind_verb="")).run())
    yield board
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def serve(board, port):
    """Put a ready pod behind the Service that listens on a port of this machine."""
    service = {**SERVICE, "spec": {**SERVICE["spec"], "ports": [{"port": 3456, "targetPort": port}]}}
    if board.registry.get("services", "gpu-operator", "placer") is None:
        await board.registry.create("services", "gpu-operator", service)
    else:
        await board.registry.patch("services", "gpu-operator", "placer", {"spec": service["spec"]}, "merge")
    pod = {**board.objects.pod("placer-0", labels={"app": "placer"}, nodeName="a")}
    del pod["metadata"]["uid"]
    pod["metadata"]["namespace"] = "gpu-operator"
    await board.registry.create("pods", "gpu-operator", pod)
    ready = {"status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}}
    await board.registry.patch("pods", "gpu-operator", "placer-0", ready, "merge", subresource="status")


async def test_a_service_is_reached_at_a_ready_pod_behind_it(board, extender):
    await board.node("a")
    await serve(board, urlsplit(extender.url).port)
    extender.answers["filter"] = lambda body: {"NodeNames": [], "FailedNodes": {"a": "no GPU has 30% core"}}
    await board.pod("p", requests=SHARE)
    condition = await board.until(lambda: board.condition("p"))
    assert condition["message"].startswith("0/1 nodes are available: 1 no GPU has 30% core.")


async def test_a_pod_waits_for_an_extender_without_a_ready_pod_and_says_so(board, extender):
    await board.node("a")
    await board.registry.create("services", "gpu-operator", SERVICE)
    await board.pod("p", requests=SHARE)
    condition = await board.until(lambda: board.condition("p"))
    assert condition["message"] == f'Post "{URL}/filter": no endpoints available for service "placer"'
    extender.answers["filter"] = lambda body: {"NodeNames": ["a"]}
    await serve(board, urlsplit(extender.url).port)
    assert await until(lambda: board.node_of("p"), poll=0.01) == "a"


async def test_nothing_waits_for_an_extender_that_is_not_installed(board):
    await board.node("a", allocatable={"tencent.com/vcuda-core": "100"})
    await board.pod("p", requests=SHARE)
    assert await board.until(lambda: board.node_of("p")) == "a"


async def test_the_extenders_own_pods_do_not_wait_for_it(board):
    await board.node("a", allocatable={"tencent.com/vcuda-core": "100"})
    await board.registry.create("services", "gpu-operator", SERVICE)
    pod = board.objects.pod("placer-0", namespace="gpu-operator", labels={"app": "placer"}, requests=SHARE)
    del pod["metadata"]["uid"]
    await board.registry.create("pods", "gpu-operator", pod)
    found = lambda: board.registry.get("pods", "gpu-operator", "placer-0")["spec"].get("nodeName")  # noqa: E731
    assert await board.until(found) == "a"
