"""gpu-admission's own test, over HTTP: its nodes, its pods, and the nodes that it expects."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane import names
from kubekit.api.core import Node, Pod
from tests.support.extender_world import Running, World, gpu_pod
from tests.support.until import until

NODES = ["testnode0", "testnode1", "testnode2"]
# Containers of (core, memory in units); None asks nothing.
CASES: list[tuple[list[tuple[int, int] | None], str]] = [
    ([(10, 1), (10, 1)], "testnode0"),
    ([(100, 3), (80, 3)], "testnode1"),
    ([(200, 10), None], "testnode2"),
    ([(10, 2), None], "testnode0"),
]


@pytest.mark.parametrize("whole_nodes", [False, True])
async def test_its_conformance_case(cluster: World, running: Running, whole_nodes: bool) -> None:
    for name in NODES:
        await cluster.node(name, 2, memory_mib=1024, gpunode=False)
    await running.until(lambda: sum(1 for _ in running.leader.cluster.ledger.nodes()) == 3)
    raw = [await raw_node(cluster, name) for name in NODES]
    for number, (containers, expected) in enumerate(CASES):
        manifest = gpu_pod(f"pod-{number}", *(asked for asked in containers if asked))
        manifest["spec"]["containers"] += [{"name": "without-gpu", "image": "app"} for asked in containers if not asked]
        pod = await cluster.pod(manifest)
        args: dict[str, Any] = {"Pod": pod, "NodeNames": NODES, "Nodes": None}
        if whole_nodes:
            args |= {"NodeNames": None, "Nodes": {"items": raw}}
        answer = await running.call("/scheduler/predicates", args)
        assert not answer["Error"]
        kept = [node["metadata"]["name"] for node in answer["Nodes"]["items"]] if whole_nodes else answer["NodeNames"]
        assert kept == [expected]
        if whole_nodes:
            assert answer["Nodes"]["items"] == [raw[NODES.index(expected)]]
        assert set(answer["FailedNodes"]) | set(answer["FailedAndUnresolvableNodes"]) == set(NODES) - {expected}
        annotations = (await cluster.get(f"pod-{number}")).metadata.annotations
        assert annotations[names.PREDICATE_NODE_ANNOTATION] == expected
        assert annotations[names.GPU_ASSIGNED_ANNOTATION] == "false"
        assert annotations[names.PREDICATE_INDEX_PREFIX + "0"] == ("0,1" if number == 2 else "0")
        await bind(cluster, pod, expected)
        await running.seen(pod["metadata"]["uid"])
        await until(lambda number=number: assigned(cluster, f"pod-{number}"))
        running.well()


async def assigned(cluster: World, name: str) -> bool:
    return (await cluster.get(name)).metadata.annotations[names.GPU_ASSIGNED_ANNOTATION] == "true"


async def raw_node(cluster: World, name: str) -> Any:
    found: Any = cluster.server.registry.get("nodes", "", name)
    assert found is not None
    return {"apiVersion": Node.RESOURCE.api_version, **found}


async def bind(cluster: World, pod: dict[str, Any], node: str) -> None:
    """Bind as a kube-scheduler does that has no bindVerb."""
    meta = pod["metadata"]
    body = {"metadata": {"name": meta["name"], "uid": meta["uid"]}, "target": {"kind": "Node", "name": node}}
    path = Pod.RESOURCE.path(meta["namespace"], meta["name"], "binding")
    await cluster.client.request("POST", path, None, body)
