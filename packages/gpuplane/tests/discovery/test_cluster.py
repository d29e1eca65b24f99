"""Rules on a cluster: installed, applied, changed, broken, deleted, and nothing left of them.

The embedded cluster with one machine; operator, worker and master are the processes that a real one runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.crds import crds
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.nodefeature import NodeFeature, NodeFeatureRule
from gpuplane.api.nodefeature_node import RESOURCES_BOOK, other_discovery
from gpuplane.operator.installation import resource_of
from kubekit.api.core import DaemonSet, Deployment, Event, Node, Pod
from kubekit.kube import Client, Invalid
from tests.support.until import until_objects
from tinykube.cluster import MachineSpec

PATIENCE_SECONDS = 60.0
PREFIX = "feature.node.kubernetes.io/"
GPU = {"feature": "pci.device", "matchExpressions": {"vendor": {"op": "In", "value": ["10de"]}}}
RULE: dict[str, Any] = {
    "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
    "kind": "NodeFeatureRule",
    "metadata": {"name": "gpu-nodes"},
    "spec": {
        "rules": [
            {
                "name": "gpu nodes",
                "labels": {"system": "@system.osrelease.ID", "vendor.io/gpus": "true"},
                "labelsTemplate": "{{ range .pci.device }}device-{{ .device }}=true\n{{ end }}",
                "annotations": {"vendor.io/note": "has GPUs"},
                "taints": [{"key": "vendor.io/gpus", "effect": "PreferNoSchedule", "value": "yes"}],
                "extendedResources": {"vendor.io/licences": "3"},
                "matchFeatures": [GPU],
            }
        ]
    },
}


class World:
    """A client, and what it sees of the one Node."""

    def __init__(self, client: Client, kubeconfig: Path) -> None:
        self.client = client
        self._kubeconfig = kubeconfig

    async def gpuplane(self, *arguments: str) -> None:
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
        command = (sys.executable, "-m", "gpuplane", *arguments)
        done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    async def until(self, kind: Any, holds: Callable[[list[Any]], Any]) -> Any:
        """Return the result of `holds(objects)` once it is true; it is called after each change."""
        return await until_objects(self.client, kind, holds, seconds=PATIENCE_SECONDS)

    async def node(self, holds: Callable[[Node], Any]) -> Node:
        found: Node = await self.until(Node, lambda nodes: next((node for node in nodes if holds(node)), None))
        return found

    async def apply(self, rule: dict[str, Any]) -> None:
        await self.client.apply(rule, "kubectl", resource=NodeFeatureRule.RESOURCE)


def of_rules(node: Node) -> tuple[Any, ...]:
    """Everything on a Node that could come from a rule."""
    meta = node.metadata
    return (
        {name for name in meta.labels if "vendor.io" in name or name.startswith((f"{PREFIX}system", f"{PREFIX}device"))}
        - {name for name in meta.labels if name.startswith(f"{PREFIX}system-os_release")},
        {name: value for name, value in meta.annotations.items() if "vendor.io" in name or "nfd." in name},
        [taint for taint in node.spec.taints if "vendor.io" in taint.key],
        {name for name in node.status.capacity if "vendor.io" in name},
    )


@pytest.fixture
async def world(embedded_cluster: Any) -> Any:
    handle = await embedded_cluster(nodes=(MachineSpec(name="n1", machine="t4-ubuntu22"),))
    async with Client.connect(handle.kubeconfig) as client:
        yield World(client, handle.kubeconfig)


async def test_a_rules_whole_life(world: World) -> None:
    await world.gpuplane("install", "-q", "--no-scheduler", "--admission", "none")
    bare = of_rules(await world.node(lambda node: node.metadata.labels.get(f"{PREFIX}pci-10de.present")))
    assert bare == (set(), {}, [], set())

    await world.apply(RULE)
    node = await world.node(lambda node: "vendor.io/licences" in node.status.allocatable)
    labels = node.metadata.labels
    assert (labels[f"{PREFIX}system"], labels["vendor.io/gpus"], labels[f"{PREFIX}device-1eb8"]) == (
        "ubuntu",
        "true",
        "true",
    )
    assert node.metadata.annotations["vendor.io/note"] == "has GPUs"
    assert [(taint.key, taint.value, taint.effect) for taint in node.spec.taints if "vendor" in taint.key] == [
        ("vendor.io/gpus", "yes", "PreferNoSchedule")
    ]
    assert node.status.capacity["vendor.io/licences"] == "3"
    assert not other_discovery(node.metadata.annotations)

    changed = {**RULE, "spec": {"rules": [{**RULE["spec"]["rules"][0], "extendedResources": {"vendor.io/seats": "5"}}]}}
    changed["spec"]["rules"][0] |= {"labels": {"vendor.io/other": "1"}, "labelsTemplate": "", "taints": []}
    await world.apply(changed)
    node = await world.node(lambda node: of_rules(node)[3] == {"vendor.io/seats"})
    settled = {RESOURCES_BOOK: "vendor.io/seats"}
    found = of_rules(await world.node(lambda node: settled.items() <= node.metadata.annotations.items()))
    assert found[0] == {"vendor.io/other"}
    assert found[2] == []

    # A rule that cannot be evaluated on this node leaves the labels as they are, and reports why.
    number = {"feature": "system.osrelease", "matchExpressions": {"ID": {"op": "Gt", "value": ["1"]}}}
    wrong = {**RULE, "spec": {"rules": [{"name": "wrong", "matchFeatures": [number]}]}}
    await world.apply(wrong)
    event = await world.until(Event, lambda events: next((e for e in events if e.reason == "RuleNotApplied"), None))
    assert "no whole number" in event.message
    assert event.involved_object.name == "gpu-nodes"
    assert of_rules(await world.client.get(Node, "n1")) == found
    with pytest.raises(Invalid, match="Nearly"):
        number["matchExpressions"] = {"ID": {"op": "Nearly", "value": ["1"]}}
        await world.apply(wrong)

    await world.client.delete(NodeFeatureRule, "gpu-nodes")
    await world.node(lambda node: of_rules(node) == bare)
    await world.until(NodeFeature, lambda objects: not objects)


async def test_switched_off_it_leaves_the_labels_of_the_machine_and_nothing_else(world: World) -> None:
    await world.gpuplane("install", "-q", "--no-scheduler", "--admission", "none")
    await world.apply(RULE)
    await world.node(lambda node: "vendor.io/licences" in node.status.allocatable)
    await world.client.create(
        {
            "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
            "kind": "NodeFeature",
            "metadata": {"name": "gone", "labels": {"nfd.node.kubernetes.io/node-name": "no-such-node"}},
            "spec": {},
        },
        namespace="default",
        resource=NodeFeature.RESOURCE,
    )
    await world.until(NodeFeature, lambda objects: [one.metadata.name for one in objects] == ["n1"])
    (policy,) = await world.client.list(ClusterPolicy)
    await world.client.patch(ClusterPolicy, policy.metadata.name, {"spec": {"nfd": {"enabled": False}}})
    node = await world.node(lambda node: of_rules(node) == (set(), {}, [], set()))
    assert node.metadata.labels[f"{PREFIX}pci-10de.present"] == "true"
    await world.until(NodeFeature, lambda objects: not objects)
    await world.until(Pod, lambda pods: not [pod for pod in pods if "feature-discovery-" in pod.metadata.name[:30]])
    for kind in (DaemonSet, Deployment):
        assert not [one for one in await world.client.list(kind) if one.metadata.name.startswith("node-feature")]
    await world.client.patch(ClusterPolicy, policy.metadata.name, {"spec": {"nfd": {"enabled": True}}})
    await world.node(lambda node: "vendor.io/licences" in node.status.allocatable)
    await world.gpuplane("uninstall", "-q")
    node = await world.client.get(Node, "n1")
    assert of_rules(node) == (set(), {}, [], set())
    assert not [name for name in node.metadata.labels if name.startswith(PREFIX)]


async def test_beside_another_installation_nodes_are_prepared_by_its_labels_and_all_of_it_stays(world: World) -> None:
    kind = next(made for made in crds() if made["spec"]["names"]["kind"] == "NodeFeatureRule")
    theirs = {**kind, "metadata": {"name": kind["metadata"]["name"], "labels": {"owner": "theirs"}}}
    where = resource_of(kind)
    await world.client.apply(theirs, "their-installation", resource=where)
    info = (await world.node(lambda node: node.status.node_info.kernel_version)).status.node_info
    # As it labels by default: PCI devices by class and vendor.
    short = {
        "pci-0302_10de.present": "true",
        "system-os_release.ID": "ubuntu",
        "system-os_release.VERSION_ID": "22.04",
        "system-os_release.VERSION_ID.major": "22",
        "kernel-version.full": info.kernel_version,
    }
    labels = {PREFIX + name: value for name, value in short.items()}
    books = {"nfd.node.kubernetes.io/feature-labels": ",".join(sorted(short))}
    await world.client.patch(Node, "n1", {"metadata": {"labels": labels, "annotations": books}})
    await world.gpuplane("install", "-q", "--no-scheduler", "--admission", "none")
    await world.until(GPUNode, lambda found: any(node.status.summary.stage == "ready" for node in found))
    node = await world.client.get(Node, "n1")
    assert {name: value for name, value in node.metadata.labels.items() if name.startswith(PREFIX)} == labels
    assert node.metadata.labels["nvidia.com/gpu.product"] == "Tesla-T4"
    assert not await world.client.list(NodeFeature)
    await world.gpuplane("uninstall", "-q")
    node = await world.client.get(Node, "n1")
    assert {name: value for name, value in node.metadata.labels.items() if name.startswith(PREFIX)} == labels
    assert books.items() <= node.metadata.annotations.items()
    assert not [name for name in node.metadata.labels if name.startswith("nvidia.com/")]
    left = json.loads(await world.client.request("GET", where.path()))["items"]
    assert [(one["metadata"]["name"], one["metadata"]["labels"]) for one in left] == [
        (kind["metadata"]["name"], {"owner": "theirs"})
    ]
