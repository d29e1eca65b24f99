"""Nodes that join and leave a cluster that runs."""

from __future__ import annotations

import asyncio
import functools
import stat

from gpulab.distribution import GPUPLANE
from kubekit.api.core import Node
from kubekit.kube import Client
from tests.support.until import until as until_without_errors
from tinykube.cluster import KubeletSettings, MachineSpec, add_node, processes, remove_node
from tinykube.cluster.directory import ClusterDirectory

SETTINGS = KubeletSettings(
    provider_id="aws:///us-east-1a/i-1",
    labels={"team": "ml"},
    taints=(("new", "", "NoExecute"), ("a", "b", "NoSchedule")),
    max_pods=29,
    reserved_cpu_milli=80,
    reserved_memory_mib=1024,
)
# Other processes start and end meanwhile, so every error means "not yet".
until = functools.partial(until_without_errors, ignored=Exception, seconds=60.0)


def is_ready(node):
    """Return whether the node is ready, and the node lifecycle controller has seen it."""
    if any(taint.key == "node.kubernetes.io/not-ready" for taint in node.spec.taints):
        return False
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


async def test_nodes_join_and_leave_and_the_others_go_on(embedded_cluster):
    handle = await embedded_cluster(nodes=(MachineSpec(name="stays", machine="cpu-ubuntu24"),))
    directory = ClusterDirectory(GPUPLANE, handle.name, handle.directory.parent.parent)
    async with Client.connect(handle.kubeconfig) as client:

        async def ready(name):
            node = await client.get(Node, name)
            return node if is_ready(node) else None

        await until(lambda: ready("stays"))
        before = directory.running("kubelet-stays")
        add_node(directory, MachineSpec(name="later", machine="t4-ubuntu22", kubelet=SETTINGS))
        add_node(directory, MachineSpec(name="last", machine="cpu-ubuntu24"))
        node = await until(lambda: ready("later"))
        await until(lambda: ready("last"))
        assert node.spec.provider_id == "aws:///us-east-1a/i-1"
        assert {(taint.key, taint.value, taint.effect) for taint in node.spec.taints} == {
            ("new", "", "NoExecute"),
            ("a", "b", "NoSchedule"),
        }
        assert node.metadata.labels["team"] == "ml"
        assert (node.status.capacity["cpu"], node.status.allocatable["cpu"]) == ("4", "3920m")
        assert (node.status.capacity["memory"], node.status.allocatable["memory"]) == ("16777216Ki", "15728640Ki")
        assert node.status.allocatable["pods"] == "29"

        kubelet = directory.running("kubelet-later")
        # Again, as after a crash in between: a node that has left is no error.
        await asyncio.gather(remove_node(directory, "later"), remove_node(directory, "last"))
        await remove_node(directory, "later")
        assert not processes.alive(kubelet)
        assert [path.name for path in directory.nodes.iterdir()] == ["stays"]
        assert not directory.kubeconfig_of("kubelet-later").exists()
        assert not directory.token_of("kubelet-later").exists()
        assert set(directory.tokens().nodes) == {"stays"}
        assert directory.running("kubelet-stays") == before
        assert processes.alive(before)

        add_node(directory, MachineSpec(name="later", machine="t4-ubuntu22"))
        await until(lambda: directory.running("kubelet-later"))


async def test_each_kubelet_knows_the_api_server_by_a_token_of_its_own(embedded_cluster):
    handle = await embedded_cluster(nodes=(MachineSpec(name="first", machine="cpu-ubuntu24"),), light_nodes=2)
    directory = ClusterDirectory(GPUPLANE, handle.name, handle.directory.parent.parent)
    add_node(directory, MachineSpec(name="later", machine="cpu-ubuntu24"))
    async with Client.connect(handle.kubeconfig) as client:
        for name in ("first", "later", "light-0", "light-1"):
            page = f"/api/v1/nodes/{name}/proxy/pods"
            assert (await until(functools.partial(client.request, "GET", page))).startswith(b"{")
        tokens = [directory.token_of(f"kubelet-{name}") for name in ("first", "later")]
        assert len({path.read_text() for path in tokens} | {directory.kubelet_secret()}) == 3
        assert {stat.S_IMODE(path.stat().st_mode) for path in tokens} == {0o600}
