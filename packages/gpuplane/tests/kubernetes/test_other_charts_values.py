"""Values files of other charts, by a real helm on an embedded cluster: the device plugin's, as node pools with and
without shared GPUs use it, and the whole one of NVIDIA's GPU operator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpulab.kubernetes import binaries
from gpulab.kubernetes.unavailable import Unavailable
from gpulab.watching import node_is_ready
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.gpunode import GPUNode
from kubekit.api.core import Node, Pod
from kubekit.kube import Client
from tests.support.realkube.chart import CHART, helm
from tests.support.realkube.stories import SHARED
from tests.support.realkube.watching import gpu_node_is_ready, log, until_objects

THEIRS = Path(__file__).parents[4] / "tests/chart/charts/gpu-operator.json"
VALUES = """
config:
  name: ""
  map:
    default: |-
      version: v1
      flags:
        migStrategy: "none"
        failOnInitError: true
        nvidiaDriverRoot: "/"
        plugin:
          passDeviceSpecs: false
          deviceListStrategy: envvar
          deviceIDStrategy: uuid
    shared_gpu: |-
      version: v1
      flags:
        migStrategy: "none"
        failOnInitError: true
        nvidiaDriverRoot: "/"
        plugin:
          passDeviceSpecs: false
          deviceListStrategy: envvar
          deviceIDStrategy: uuid
      sharing:
        timeSlicing:
          renameByDefault: false
          resources:
          - name: nvidia.com/gpu
            replicas: 10
nodeSelector:
  example.com/gpu-type: nvidia
"""
PRINTED = SHARED / "karpenter/device-plugin-values.yaml"
# Labels and taints that a provisioner of nodes sets; `other` is a node without a pool.
POOLS: dict[str, tuple[dict[str, str], str]] = {
    "shared": ({"example.com/gpu-type": "nvidia", names.PLUGIN_CONFIG_LABEL: "shared_gpu"}, names.SHARED_TAINT),
    "whole": ({"example.com/gpu-type": "nvidia"}, names.GPU_RESOURCE),
    "other": ({}, ""),
}


class Embedded:
    """A cluster of its own, with one T4 on each node."""

    def __init__(self, home: Path) -> None:
        self.environment = {**os.environ, "GPUPLANE_HOME": str(home), "HOME": str(home), "NO_COLOR": "1"}
        nodes = [f"--node={name}=t4-ubuntu22" for name in POOLS]
        self.kubeconfig = Path(json.loads(self.gpuplane("up", "--detach", "-q", "-o", "json", *nodes))["kubeconfig"])

    def gpuplane(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gpuplane", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"gpuplane {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
async def pools(tmp_path: Path) -> AsyncIterator[tuple[Embedded, Client]]:
    """The node pools, with their labels and taints, before anything is installed."""
    try:
        binaries.build("helm")
    except Unavailable as problem:
        pytest.skip(f"no helm: {problem}")
    cluster = Embedded(tmp_path)
    try:
        async with Client.connect(cluster.kubeconfig) as client:
            await until_objects(client, Node, lambda nodes: sum(map(node_is_ready, nodes)) == len(POOLS) and nodes)
            for name, (labels, taint) in POOLS.items():
                taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
                await client.patch(Node, name, {"metadata": {"labels": labels}, "spec": {"taints": taints}})
            yield cluster, client
    finally:
        cluster.gpuplane("down", "-q")


@pytest.mark.skipif(not PRINTED.exists(), reason="no shared manifests beside this checkout")
def test_the_values_of_the_pools_are_the_printed_ones() -> None:
    """Field by field, but for the label that the printed provisioners put on their nodes."""
    printed, copied = yaml.safe_load(PRINTED.read_text()), yaml.safe_load(VALUES)
    assert list(printed.pop("nodeSelector").values()) == list(copied.pop("nodeSelector").values())
    for values in (printed, copied):
        values["config"]["map"] = {name: yaml.safe_load(text) for name, text in values["config"]["map"].items()}
    assert copied == printed


async def test_both_pools_are_ready_with_the_replicas_of_their_configuration(pools: tuple[Embedded, Client]) -> None:
    cluster, client = pools
    where = ("-n", names.OPERATOR_NAMESPACE, "--kubeconfig", str(cluster.kubeconfig))
    helm("install", "gpuplane", str(CHART), "--create-namespace", *where, values=VALUES)
    await until_objects(
        client,
        GPUNode,
        lambda found: {node.metadata.name for node in found if gpu_node_is_ready(node)} >= {"shared", "whole"},
    )
    # The nodeSelector of the values leaves the third node alone.
    wanted = {"shared": "10", "whole": "1"}
    await until_objects(client, Node, lambda nodes: {n: a for n, a in allocatable(nodes).items() if a} == wanted)
    for name, (_, taint) in list(POOLS.items())[:2]:
        await client.create(vectoradd(name, taint), namespace="default")
        await until_objects(client, Pod, lambda pods, name=name: ended(pods, name), namespace="default")
        assert "Test PASSED" in await log(client, name)


async def test_the_operators_own_values_install_upgrade_uninstall_and_install_again(
    pools: tuple[Embedded, Client],
) -> None:
    cluster, client = pools
    where = ("-n", names.OPERATOR_NAMESPACE, "--kubeconfig", str(cluster.kubeconfig))
    # The simulated nodes cannot pull NVIDIA's driver image; gpuplane installs the driver then.
    own_driver = ("--set", "driver.repository=,driver.image=,driver.version=")

    async def ready() -> None:
        await until_objects(client, GPUNode, lambda found: sum(map(gpu_node_is_ready, found)) == len(POOLS))

    async def limit(wanted: int) -> None:
        await until_objects(
            client,
            ClusterPolicy,
            lambda found: any(
                one.spec.daemonsets.rolling_update and one.spec.daemonsets.rolling_update.max_unavailable == str(wanted)
                for one in found
            ),
        )

    helm("install", "gpuplane", str(CHART), "--create-namespace", *own_driver, *where, values=THEIRS.read_text())
    await ready()
    await limit(1)
    more = ("--set-string", "daemonsets.rollingUpdate.maxUnavailable=2")
    helm("upgrade", "gpuplane", str(CHART), *own_driver, *more, *where, values=THEIRS.read_text())
    await limit(2)
    await ready()
    helm("uninstall", "gpuplane", *where, "--timeout", "4m")
    assert await client.list(GPUNode) == []
    nodes = await client.list(Node)
    assert not [label for node in nodes for label in node.metadata.labels if label.startswith("nvidia.com/gpu.")]
    helm("install", "gpuplane", str(CHART), "--create-namespace", *own_driver, *where, values=THEIRS.read_text())
    await ready()


def allocatable(nodes: list[Node]) -> dict[str, str | None]:
    return {node.metadata.name: node.status.allocatable.get(names.GPU_RESOURCE) for node in nodes}


def ended(pods: list[Pod], name: str) -> bool:
    return any(pod.metadata.name == name and pod.status.phase in ("Succeeded", "Failed") for pod in pods)


def vectoradd(node: str, taint: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda11.7.1-ubuntu20.04",
        "resources": {"limits": {names.GPU_RESOURCE: 1}},
    }
    spec = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"key": taint, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": node}, "spec": spec}
