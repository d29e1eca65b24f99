"""Karpenter's printed manifests for shared GPUs on `gpuplane up --cloud`, verbatim: from no GPU node to two, and back.

All parts are the product's own: the autoscaler's pod, its AWS provider against the simulated endpoint, the operands
on the machines. A program that waits plays the printed image, since TensorFlow is not here.

The six files count as they are: the API server gets the bytes of Provisioners and Deployments, the cloud the launch
template, and of the device plugin's values both the configurations and the nodeSelector of the DaemonSets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from gpulab.cloud.settings import CLUSTER_NAME
from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.karpenter import POOL_LABEL, Provisioner
from gpuplane.api.nodeclaim import NodeClaim
from kubekit.api.core import Node, Pod
from kubekit.api.kinds import built_in
from kubekit.api.meta import Resource
from kubekit.kube import Client
from tests.support.until import until, until_objects

SHARED = Path(__file__).parents[5] / "shared" / "manifests" / "karpenter"
GPUPLANE = (sys.executable, "-m", "gpuplane")
CONFIGS = "device-plugin-configs"
PATIENCE_SECONDS = 150.0
pytestmark = [
    pytest.mark.skipif(not SHARED.exists(), reason="no shared manifests beside this checkout"),
    pytest.mark.deadline(400),
]


class CloudWorld:
    """A cluster with a cloud and the autoscaler, as its owner has it.

    Args:
        flags: of the installation; without them the device plugin has the printed configurations.
        machines: with GPUs, besides those that the cloud sells.
    """

    def __init__(self, home: Path, *flags: str, machines: tuple[str, ...] = ()) -> None:
        self.environment = {**os.environ, "GPUPLANE_HOME": str(home), "HOME": str(home), "NO_COLOR": "1"}
        program = home / "tensorflow" / "bin" / "python"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\nexec sleep 100000\n")
        program.chmod(0o755)
        image = f"tensorflow/*={program.parent.parent}"
        # The region has a template of that name in any case; tests of the printed files replace it by theirs.
        template = ("--launch-template", str(SHARED / "launch-template.json")) if SHARED.exists() else ()
        nodes = [f"--node={machine}" for machine in machines]
        up = ("up", "--cloud", *template, "--image", image, *nodes, "--detach", "-q", "-o", "json")
        found = json.loads(self.gpuplane(*up))
        self.kubeconfig = Path(found["kubeconfig"])
        self.directory = Path(found["directory"])
        self.environment["KUBECONFIG"] = str(self.kubeconfig)
        self.cloud = found["cloud"]["environment"]
        cloud = {**self.cloud, "INTERRUPTION_QUEUE": found["cloud"]["interruptionQueue"]}
        settings = [f"--cloud-env={name}={value}" for name, value in cloud.items()]
        policy = (f"--set=devicePlugin.config.name={CONFIGS}", "--set=devicePlugin.config.default=default")
        flags = flags or policy
        self.gpuplane("install", "--autoscaler", f"--cluster-name={CLUSTER_NAME}", *settings, *flags, "-q")

    def gpuplane(self, *arguments: str) -> str:
        done = subprocess.run(
            [*GPUPLANE, *arguments], env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"gpuplane {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def bill(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.gpuplane("cloud", "ls", "-o", "json"))
        return found

    def running(self) -> list[str]:
        """The types of the instances that run."""
        return [one["machine"] for one in self.bill()["instances"] if one["state"] == "running"]

    def described(self) -> list[dict[str, Any]]:
        """The instances that run, as EC2 describes them."""
        ec2 = boto3.client(
            "ec2",
            endpoint_url=self.cloud["AWS_ENDPOINT_URL"],
            region_name=self.cloud["AWS_REGION"],
            aws_access_key_id=self.cloud["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.cloud["AWS_SECRET_ACCESS_KEY"],
        )
        running = [{"Name": "instance-state-name", "Values": ["running"]}]
        try:
            found = ec2.describe_instances(Filters=running)["Reservations"]
        finally:
            ec2.close()
        return [instance for reservation in found for instance in reservation["Instances"]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudWorld]:
    home = tmp_path_factory.mktemp("c")  # unix sockets lie below it, whose paths are short
    world = CloudWorld(home)
    yield world
    world.gpuplane("down", "-q")


@pytest.fixture
async def client(world: CloudWorld) -> AsyncIterator[Client]:
    async with Client.connect(world.kubeconfig) as client:
        yield client


def documents(name: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((SHARED / name).read_text()) if document]


async def apply_values(client: Client) -> None:
    """Apply the device plugin's values: its configurations, and the nodes on which DaemonSets run."""
    (values,) = documents("device-plugin-values.yaml")
    assert values.keys() == {"config", "nodeSelector"}
    meta = {"name": CONFIGS, "namespace": names.OPERATOR_NAMESPACE}
    await client.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": values["config"]["map"]}, "me"
    )
    [policy] = await client.list(ClusterPolicy)
    patch = {"spec": {"daemonsets": {"nodeSelector": values["nodeSelector"]}}}
    await client.patch(ClusterPolicy, policy.metadata.name, patch)


async def apply_file(client: Client, name: str, resource: Resource, namespace: str | None = None) -> None:
    """Send the bytes of a file of one object to the API server, as `kubectl apply --server-side` does."""
    [document] = documents(name)
    path = resource.path(namespace, document["metadata"]["name"])
    params = {"fieldManager": "me", "force": "true"}
    body = (SHARED / name).read_bytes()
    await client.request("PATCH", path, params, body, content_type="application/apply-patch+yaml")


async def apply_printed(client: Client) -> None:
    """Apply what is printed: the device plugin's values, two Provisioners, two Deployments."""
    await apply_values(client)
    for name in ("provisioner-gpu.yaml", "provisioner-gpu-shared.yaml"):
        await apply_file(client, name, Provisioner.RESOURCE)
    for name in ("gpu.yaml", "gpu-shared.yaml"):
        await apply_file(client, name, built_in("apps/v1", "Deployment"), "default")


async def scale(client: Client, name: str, replicas: int) -> None:
    path = built_in("apps/v1", "Deployment").path("default", name)
    body = json.dumps({"spec": {"replicas": replicas}}).encode()
    await client.request("PATCH", path, {"fieldManager": "me"}, body, content_type="application/merge-patch+json")


async def pods(client: Client, holds: Any) -> list[Pod]:
    found: list[Pod] = await until_objects(
        client, Pod, lambda found: holds(found) and found, namespace="default", seconds=PATIENCE_SECONDS
    )
    return found


def all_run(count: int) -> Any:
    """The condition that so many pods run, and no other is there."""

    def holds(found: list[Pod]) -> bool:
        left = [pod for pod in found if not pod.metadata.deletion_timestamp]
        return len(left) == count and all(pod.status.phase == "Running" for pod in left)

    return holds


async def nodes_by_pool(client: Client) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in await client.list(Node):
        if pool := node.metadata.labels.get(POOL_LABEL):
            found.setdefault(pool, []).append(node)
    return found


def tags_of(instance: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance["Tags"]}


async def test_two_deployments_buy_two_unlike_nodes_and_give_them_back(world: CloudWorld, client: Client) -> None:
    await apply_printed(client)
    await pods(client, all_run(2))
    bought = await nodes_by_pool(client)
    assert {pool: len(nodes) for pool, nodes in bought.items()} == {"gpu": 1, "gpu-shared": 1}
    (gpu,), (shared,) = bought["gpu"], bought["gpu-shared"]

    async def advertised() -> bool:
        amounts = [(await client.get(Node, node.metadata.name)).status.allocatable for node in (gpu, shared)]
        return [amount.get(names.GPU_RESOURCE) for amount in amounts] == ["1", "10"]

    await until(advertised, seconds=PATIENCE_SECONDS)
    assert [taint.key for taint in gpu.spec.taints] == ["nvidia.com/gpu"]
    assert [taint.key for taint in shared.spec.taints] == ["nvidia.com/gpu-shared"]
    for node, pool in ((gpu, "gpu"), (shared, "gpu-shared")):
        labels = node.metadata.labels
        assert labels["jina.ai/node-type"] == labels["karpenter.sh/provisioner-name"] == pool
        assert labels["node.kubernetes.io/instance-type"] == "g4dn.xlarge"
        assert labels["karpenter.sh/capacity-type"] == "spot"
    assert world.running() == ["g4dn.xlarge", "g4dn.xlarge"]
    tags = {instance["PrivateDnsName"].split(".")[0]: tags_of(instance) for instance in world.described()}
    of_gpu = tags[gpu.metadata.name]
    assert of_gpu["jina.ai/node-type"] == "gpu"  # of the printed launch template alone
    assert all(found["karpenter.sh/discovery"] == "demo" for found in tags.values())
    assert {found["karpenter.sh/nodepool"] for found in tags.values()} == {"gpu", "gpu-shared"}
    for pool in ("gpu", "gpu-shared"):
        assert (await client.get(Provisioner, pool)).spec.ttl_seconds_after_empty == 30  # the last of two

    # Ten shares on one GPU: what the autoscaler knew before the node was there.
    await scale(client, "test-gpu-shared", 10)
    await pods(client, all_run(11))
    assert world.running() == ["g4dn.xlarge", "g4dn.xlarge"]

    for name in ("test-gpu", "test-gpu-shared"):
        await scale(client, name, 0)

    async def gone() -> bool:
        return not await nodes_by_pool(client) and not await client.list(NodeClaim)

    await until(gone, poll=0.5, seconds=PATIENCE_SECONDS)
    bill = world.bill()
    assert {one["state"] for one in bill["instances"]} == {"terminated"}
    assert len(bill["instances"]) == 2
    assert bill["dollarsPerHour"] == 0
    assert [path.name for path in (world.directory / "nodes").iterdir()] == ["system"]
    assert await client.list(Node)


async def test_a_new_image_replaces_a_node(world: CloudWorld, client: Client) -> None:
    await apply_printed(client)
    await scale(client, "test-gpu-shared", 0)
    await scale(client, "test-gpu", 1)
    await pods(client, all_run(1))
    (before,) = (await nodes_by_pool(client))["gpu"]
    world.gpuplane("cloud", "new-image")

    async def replaced() -> bool:
        found = (await nodes_by_pool(client)).get("gpu", [])
        return len(found) == 1 and found[0].metadata.name != before.metadata.name

    await until(replaced, poll=0.5, seconds=300)
    await pods(client, all_run(1))
    await scale(client, "test-gpu", 0)
    await until(lambda: not world.running(), poll=1.0, seconds=PATIENCE_SECONDS)


async def test_bought_nodes_end_before_their_kinds_are_removed(world: CloudWorld, client: Client) -> None:
    await scale(client, "test-gpu", 1)
    await pods(client, all_run(1))
    assert world.running()
    world.gpuplane("uninstall", "--only=nodes", "-q")
    assert not await nodes_by_pool(client)
    assert {one["state"] for one in world.bill()["instances"]} == {"terminated"}
