"""The resource metrics API, asked as clients ask it; the kubelets are small fakes whose counters grow with the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kubekit.kube.exposition import series
from packages.tinykube.tests.apiserver.conftest import Api
from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers.clusterroles import aggregate
from tinykube.metrics import MetricsService

BASE = "/apis/metrics.k8s.io/v1beta1"
TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io"


class Kubelets:
    """Each container uses the cores that are set for it, since it started, and 3 MiB."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.containers: dict[str, dict[tuple[str, str], tuple[float, float]]] = {}  # pod, container: cores, start
        self.scrapes: list[tuple[str, float]] = []
        self.texts: dict[str, str] = {}  # of kubelets that answer something else

    async def read(self, node: dict[str, Any]) -> str:
        name, now = node["metadata"]["name"], self.api.time
        self.scrapes.append((name, now))
        if name not in self.containers:
            raise ApiFailure(500, "InternalError", "no kubelet there")
        if name in self.texts:
            return self.texts[name]
        lines, total = [], 0.0
        for (pod, container), (cores, start) in self.containers[name].items():
            which = series({"container": container, "namespace": "default", "pod": pod})
            used = cores * (now - start)
            total += used
            at = int(now * 1000)
            lines += [f"container_cpu_usage_seconds_total{which} {used} {at}"]
            lines += [f"container_memory_working_set_bytes{which} {3 << 20} {at}"]
            lines += [f"container_start_time_seconds{which} {start}"]
        lines += [f"node_cpu_usage_seconds_total {total}", f"node_memory_working_set_bytes {1 << 30}"]
        return "\n".join(lines)


class World:
    def __init__(self, api: Api) -> None:
        self.api = api
        self.kubelets = Kubelets(api)
        self.service = MetricsService(api.registry, self.kubelets.read, lambda: api.time, self.sleep)

    async def sleep(self, seconds: float) -> None:
        wake = self.api.time + seconds
        await asyncio.sleep(0)
        self.api.time = max(self.api.time, wake)

    async def node(self, name: str, port: int = 1, **labels: str) -> None:
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        body = {"metadata": {"name": name, "labels": labels}, "status": status}
        await self.api.registry.create("nodes", None, body)
        self.kubelets.containers[name] = {}

    async def pod(self, name: str, node: str, labels: Any = None, **cores: float) -> None:
        spec = {"nodeName": node, "containers": [{"name": one, "image": "i"} for one in cores]}
        await self.api.registry.create("pods", "default", {"metadata": {"name": name, "labels": labels}, "spec": spec})
        for one, amount in cores.items():
            self.kubelets.containers[node][name, one] = amount, self.api.time

    async def top(self, path: str = "namespaces/default/pods", **params: str) -> dict[str, Any]:
        found = await self.api.get(f"{BASE}/{path}", **params)
        return {
            item["metadata"]["name"]: {one["name"]: one["usage"]["cpu"] for one in item["containers"]}
            if "containers" in item
            else item["usage"]["cpu"]
            for item in found["items"]
        }


@pytest.fixture
async def world(api: Api) -> AsyncIterator[World]:
    made = World(api)
    await made.service.furnish()
    await made.node("a", 1, zone="x")
    await made.node("b", 2)
    await made.pod("one", "a", {"app": "web"}, c=0.5, d=0.25)
    await made.pod("two", "b", c=2.0)
    api.time += 100
    yield made


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    yield Api()


async def test_pods_and_nodes_have_their_use(world: World) -> None:
    assert await world.top() == {"one": {"c": "500m", "d": "250m"}, "two": {"c": "2"}}
    assert await world.top("pods") == await world.top()
    assert await world.top("nodes") == {"a": "750m", "b": "2"}
    assert await world.top(labelSelector="app=web") == {"one": {"c": "500m", "d": "250m"}}
    assert await world.top(fieldSelector="metadata.name=two") == {"two": {"c": "2"}}
    assert await world.top("nodes", labelSelector="zone=x") == {"a": "750m"}
    assert await world.top("namespaces/other/pods") == {}


async def test_one_object_has_the_form_of_the_api(world: World) -> None:
    found = await world.api.get(f"{BASE}/namespaces/default/pods/one")
    assert found["metadata"].pop("creationTimestamp")
    assert found == {
        "kind": "PodMetrics",
        "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"name": "one", "namespace": "default", "labels": {"app": "web"}},
        "timestamp": "2027-01-15T08:01:42Z",
        "window": "2s",
        "containers": [
            {"name": "c", "usage": {"cpu": "500m", "memory": "3Mi"}},
            {"name": "d", "usage": {"cpu": "250m", "memory": "3Mi"}},
        ],
    }
    node = await world.api.get(f"{BASE}/nodes/b")
    assert (node["kind"], node["usage"]) == ("NodeMetrics", {"cpu": "2", "memory": "1Gi"})


async def test_nothing_is_scraped_that_no_one_reads(world: World) -> None:
    world.api.time += 3600
    assert world.kubelets.scrapes == []
    await world.top(labelSelector="app=web")
    assert [name for name, _ in world.kubelets.scrapes] == ["a", "a"]


async def test_a_reader_that_comes_back_gets_the_use_since_its_last_visit(world: World) -> None:
    await world.top()
    begun = len(world.kubelets.scrapes)
    world.api.time += 14
    await world.top()
    assert len(world.kubelets.scrapes) == begun  # the same values again
    world.api.time += 1
    found = await world.api.get(f"{BASE}/namespaces/default/pods/one")
    assert found["window"] == "15s"
    assert len(world.kubelets.scrapes) == begun + 1
    world.api.time += 45
    assert (await world.api.get(f"{BASE}/namespaces/default/pods/one"))["window"] == "45s"
    world.api.time += 61
    assert (await world.api.get(f"{BASE}/namespaces/default/pods/one"))["window"] == "2s"


async def test_readers_at_the_same_time_share_their_scrapes(world: World) -> None:
    first, second = await asyncio.gather(world.top(), world.top())
    assert first == second
    assert len(world.kubelets.scrapes) == 4


async def test_a_pod_that_has_just_started_has_no_metrics_yet(world: World) -> None:
    await world.top()
    await world.pod("new", "a", c=1.0)
    world.api.time += 9
    assert "new" not in await world.top()
    answer = await world.api("GET", f"{BASE}/namespaces/default/pods/new")
    assert (answer.status, answer.message) == (404, 'podmetrics.metrics.k8s.io "default/new" not found')
    world.api.time += 7
    assert (await world.top())["new"] == {"c": "1"}


async def test_what_is_not_there(world: World) -> None:
    answer = await world.api("GET", f"{BASE}/namespaces/default/pods/nosuch")
    assert (answer.status, answer.message) == (404, 'pods "nosuch" not found')
    del world.kubelets.containers["b"]
    assert set(await world.top()) == {"one"}
    assert set(await world.top("nodes")) == {"a"}
    answer = await world.api("GET", f"{BASE}/nodes/b")
    assert (answer.status, answer.message) == (404, 'nodemetrics.metrics.k8s.io "b" not found')
    for method in ("POST", "DELETE", "PUT"):
        assert (await world.api(method, f"{BASE}/nodes/a", {})).status == 405
    answer = await world.api("GET", f"{BASE}/nodes", watch="true")
    assert (answer.status, answer.message) == (
        405,
        'watch is not supported on resources of kind "nodes.metrics.k8s.io"',
    )
    assert (await world.api("GET", f"{BASE}/nodes", fieldSelector="spec.x=y")).status == 400


async def test_nodes_of_one_kubelet_have_no_metrics(world: World) -> None:
    """As light nodes, which have no processes."""
    await world.node("light-1", 9)
    await world.node("light-2", 9)
    await world.pod("light", "light-1", c=1.0)
    world.api.time += 100
    assert set(await world.top("nodes")) == {"a", "b"}
    assert set(await world.top()) == {"one", "two"}
    assert {name for name, _ in world.kubelets.scrapes} == {"a", "b"}


@pytest.mark.parametrize(
    "text",
    [
        "node_cpu_usage_seconds_total 1\nnode_memory_working_set_bytes +Inf",
        'container_cpu_usage_seconds_total{a="b"} 1',
    ],
)
async def test_a_kubelet_that_answers_nonsense_hides_no_other_node(world: World, text: str) -> None:
    world.kubelets.texts["a"] = text
    assert await world.top("nodes") == {"b": "2"}


async def test_tables(world: World) -> None:
    answer = await world.api("GET", f"{BASE}/namespaces/default/pods", headers=TABLE)
    assert [column["name"] for column in answer.json["columnDefinitions"]] == ["Name", "cpu", "memory", "Window"]
    rows = [row["cells"] for row in answer.json["rows"]]
    assert rows == [["one", "750m", "6Mi", "2s"], ["two", "2", "3Mi", "2s"]]
    answer = await world.api("GET", f"{BASE}/nodes/a", headers=TABLE)
    assert [row["cells"] for row in answer.json["rows"]] == [["a", "750m", "1Gi", "2s"]]


async def test_discovery_lists_the_group_until_it_is_removed(world: World) -> None:
    kinds = {kind.info.qualified for kind in world.api.registry.kinds}
    assert {"pods.metrics.k8s.io", "nodes.metrics.k8s.io"} <= kinds
    assert (await world.api("DELETE", SERVICE)).status == 200
    assert (await world.api("GET", f"{BASE}/nodes")).status == 404
    await world.service.furnish()
    assert await world.top("nodes") == {"a": "750m", "b": "2"}


async def test_an_installed_metrics_server_takes_over(world: World) -> None:
    service = {"spec": {"service": {"namespace": "kube-system", "name": "metrics-server"}}}
    assert (await world.api.patch(SERVICE, service)).status == 200
    await world.api("GET", f"{BASE}/nodes")
    assert world.kubelets.scrapes == []
    assert world.api.registry.kinds.served("metrics.k8s.io", "v1beta1", "nodes") is None


async def test_the_reader_role_is_part_of_the_roles_of_users(world: World) -> None:
    roles = world.api.registry.list("clusterroles")
    for name in ("view", "edit", "admin"):
        label = {f"rbac.authorization.k8s.io/aggregate-to-{name}": "true"}
        role = {"metadata": {"name": name}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": label}]}}
        assert {"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]} in (
            aggregate(role, roles)
        )
