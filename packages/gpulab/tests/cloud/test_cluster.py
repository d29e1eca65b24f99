"""The simulated cloud on an embedded cluster: instances become nodes, and their ends take the machines away."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import boto3
import msgspec
import pytest
from botocore.exceptions import ClientError

from gpulab.cloud.client import answers, ask
from gpulab.cloud.control import BootOrder, CapacityOrder, FaultOrder, InterruptOrder
from gpulab.cloud.settings import COMPONENT, CloudAddress, CloudSettings, environment, read_address
from gpulab.distribution import GPUPLANE
from kubekit.api.core import Node, Pod
from kubekit.errors import InvalidInput
from kubekit.kube import Client
from simgpu import STATE_PATH
from simgpu.faults import Faults
from tests.support.until import until
from tinykube.cluster import processes
from tinykube.cluster.directory import ClusterDirectory

PATIENCE_SECONDS = 60.0


class Lab:
    """A cluster with a cloud, and clients of both."""

    def __init__(self, directory: ClusterDirectory, address: CloudAddress, client: Client) -> None:
        self.directory = directory
        self.address = address
        self.client = client
        found = environment(address)
        self.ec2: Any = boto3.client(
            "ec2",
            endpoint_url=address.url,
            region_name=address.region,
            aws_access_key_id=found["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=found["AWS_SECRET_ACCESS_KEY"],
        )

    def launch(self, kind: str = "spot", machine: str = "g4dn.xlarge", token: str = "") -> str:
        """Launch one instance of the printed launch template; its id."""
        subnets = self.ec2.describe_subnets(Filters=[{"Name": "tag:karpenter.sh/discovery", "Values": ["demo"]}])
        overrides = [{"InstanceType": machine, "SubnetId": subnets["Subnets"][0]["SubnetId"]}]
        template = {"LaunchTemplateName": "karpenter-gpu-demo", "Version": "$Latest"}
        answer = self.ec2.create_fleet(
            Type="instant",
            LaunchTemplateConfigs=[{"LaunchTemplateSpecification": template, "Overrides": overrides}],
            TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": kind},
            **({"ClientToken": token} if token else {}),
        )
        instance: str = answer["Instances"][0]["InstanceIds"][0]
        return instance

    def state(self, instance: str) -> str:
        found = self.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
        state: str = found["State"]["Name"]
        return state

    async def node_of(self, instance: str) -> Node | None:
        nodes = await self.client.list(Node)
        return next((node for node in nodes if node.spec.provider_id.endswith(f"/{instance}")), None)

    async def joined(self, instance: str) -> Node:
        """The node of an instance once it is Ready."""

        async def ready() -> Node | None:
            node = await self.node_of(instance)
            standing = {c.type: c.status for c in node.status.conditions} if node is not None else {}
            return node if standing.get("Ready") == "True" else None

        node: Node = await until(ready, seconds=PATIENCE_SECONDS)
        return node

    async def gone(self, instance: str, node: str) -> None:
        """Return when nothing is left of an instance's machine."""

        async def nothing() -> bool:
            return self.state(instance) == "terminated" and await self.node_of(instance) is None

        await until(nothing, seconds=PATIENCE_SECONDS)
        assert not (self.directory.nodes / node).exists()
        assert not self.directory.kubeconfig_of(f"kubelet-{node}").exists()
        assert self.directory.running(f"kubelet-{node}") is None
        assert not processes.of_directory(self.directory.nodes / node)


@pytest.fixture
async def lab(embedded_cluster):
    settings = msgspec.to_builtins(CloudSettings())
    handle = await embedded_cluster(components={COMPONENT: settings})
    directory = ClusterDirectory(GPUPLANE, handle.name, handle.directory.parent.parent)

    def started() -> CloudAddress | None:
        address = read_address(directory)
        return address if address is not None and answers(address) else None

    address = await until(lambda: asyncio.to_thread(started), seconds=PATIENCE_SECONDS)
    async with Client.connect(handle.kubeconfig) as client:
        yield Lab(directory, address, client)


async def test_an_instance_joins_as_a_bare_node_and_leaves_without_a_trace(lab):
    instance = lab.launch()
    node = await lab.joined(instance)
    name = node.metadata.name
    assert node.spec.provider_id == f"aws:///us-east-1a/{instance}"
    assert [(taint.key, taint.effect) for taint in node.spec.taints] == [("karpenter.sh/unregistered", "NoExecute")]
    assert node.metadata.labels["node.kubernetes.io/instance-type"] == "g4dn.xlarge"
    assert node.metadata.labels["topology.kubernetes.io/zone"] == "us-east-1a"
    assert (node.status.capacity["cpu"], node.status.allocatable["cpu"]) == ("4", "3920m")
    assert node.status.allocatable["pods"] == "29"
    root = lab.directory.nodes / name / "root"
    assert (root / "proc/modules").read_text() == ""
    assert list((root / "sys/bus/pci/devices").glob("*/vendor"))
    bill = ask(lab.address, "GET", "bill")
    assert [(one["id"], one["node"], one["state"]) for one in bill["instances"]] == [(instance, name, "running")]
    assert bill["dollarsPerHour"] == 0.2104
    lab.ec2.terminate_instances(InstanceIds=[instance])
    await lab.gone(instance, name)
    assert ask(lab.address, "GET", "bill")["dollarsPerHour"] == 0


def long_pod(node: str) -> dict[str, Any]:
    """Return a pod that runs on a node until it is ended."""
    container = {"name": "c", "image": "busybox", "command": ["sleep", "1000"]}
    spec = {"nodeName": node, "tolerations": [{"operator": "Exists"}], "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "long"}, "spec": spec}


async def test_a_node_leaves_with_containers_of_a_kubelet_that_was_killed(lab):
    instance = lab.launch("on-demand", "g4dn.12xlarge")
    node = await lab.joined(instance)
    name = node.metadata.name
    await lab.client.create(long_pod(name), namespace="default")

    def containers() -> list[Any]:
        return list((lab.directory.nodes / name / "containers").glob("*/record.json"))

    await until(containers, seconds=PATIENCE_SECONDS)
    kubelet = lab.directory.running(f"kubelet-{name}")
    assert kubelet is not None
    os.kill(kubelet.pid, signal.SIGKILL)
    lab.ec2.terminate_instances(InstanceIds=[instance])
    await lab.gone(instance, name)


async def test_a_restart_ends_containers_and_gives_the_machine_another_boot_id(lab):
    instance = lab.launch("on-demand", "g4dn.12xlarge")
    node = await lab.joined(instance)
    name, root = node.metadata.name, lab.directory.nodes / node.metadata.name / "root"
    await lab.client.create(long_pod(name), namespace="default")

    def started(times: int) -> Any:
        async def holds() -> bool:
            pod = await lab.client.get(Pod, "long", "default")
            return any(c.restart_count == times and c.state.running is not None for c in pod.status.container_statuses)

        return holds

    await until(started(0), seconds=PATIENCE_SECONDS)
    boot = node.status.node_info.boot_id
    assert boot == (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    (root / "var/lib/kept").write_text("on disk")
    (root / "run/lost").write_text("in memory")
    with Faults(root / STATE_PATH) as faults:
        faults.off_bus(2)
    lab.ec2.reboot_instances(InstanceIds=[instance])

    async def again() -> Node | None:
        found = await lab.node_of(instance)
        return found if found is not None and found.status.node_info.boot_id != boot else None

    assert (await until(again, seconds=PATIENCE_SECONDS)).metadata.uid == node.metadata.uid
    await lab.joined(instance)
    await until(started(1), seconds=PATIENCE_SECONDS)
    assert (root / "var/lib/kept").exists() and not (root / "run/lost").exists()
    with Faults(root / STATE_PATH) as faults:
        assert not faults._gpu(2).lost
    assert lab.state(instance) == "running"
    with pytest.raises(ClientError, match="InvalidInstanceID"):
        lab.ec2.reboot_instances(InstanceIds=["i-0000000000000000f"])


async def test_people_take_instances_back_and_make_them_slow_or_rare(lab):
    instance = lab.launch()
    node = await lab.joined(instance)
    with pytest.raises(InvalidInput, match="no such instance"):
        ask(lab.address, "POST", "interrupt", InterruptOrder("i-none", 1.0))
    ask(lab.address, "POST", "interrupt", InterruptOrder(instance, 0.1))
    await lab.gone(instance, node.metadata.name)
    with pytest.raises(InvalidInput, match="it is terminated"):
        ask(lab.address, "POST", "interrupt", InterruptOrder(instance, 0.1))

    found = ask(lab.address, "POST", "capacity", CapacityOrder("g4dn.xlarge", capacity_type="spot"))
    assert found["closed"][0]["machine"] == "g4dn.xlarge"
    with pytest.raises(IndexError):
        lab.launch()
    assert ask(lab.address, "POST", "capacity", CapacityOrder("g4dn.xlarge", open=True))["closed"] == []
    with pytest.raises(InvalidInput, match=r"no instance type 'm5\.large'"):
        ask(lab.address, "POST", "capacity", CapacityOrder("m5.large"))
    with pytest.raises(InvalidInput, match="no zone 'us-east-1z'"):
        ask(lab.address, "POST", "capacity", CapacityOrder("g4dn.xlarge", "us-east-1z"))

    ask(lab.address, "POST", "fault", FaultOrder("dead-boots", 1))
    dead = lab.launch()
    alive = lab.launch()
    await lab.joined(alive)
    assert await lab.node_of(dead) is None
    assert lab.state(dead) == "running"

    assert ask(lab.address, "POST", "boot", BootOrder(1000.0))["bootSeconds"] == 1000.0
    slow = lab.launch()
    ask(lab.address, "POST", "boot", BootOrder(0.0))
    await lab.joined(slow)


async def restarted(lab):
    """Kill the cloud's process; returns when another one answers."""
    cloud = lab.directory.running(COMPONENT)
    assert cloud is not None
    os.kill(cloud.pid, signal.SIGKILL)

    def another() -> bool:
        found = lab.directory.running(COMPONENT)
        return found is not None and found.pid != cloud.pid and answers(lab.address)

    await until(lambda: asyncio.to_thread(another), seconds=PATIENCE_SECONDS)


async def test_a_cloud_that_was_killed_has_its_instances_their_tokens_and_machines(lab):
    instance = lab.launch(token="one")
    node = await lab.joined(instance)
    kubelet = lab.directory.running(f"kubelet-{node.metadata.name}")
    ask(lab.address, "POST", "capacity", CapacityOrder("g5.xlarge"))
    templates = lab.ec2.describe_launch_templates()["LaunchTemplates"]
    late = lab.launch(token="two")  # killed in the middle: the answer is there, the machine perhaps not
    await restarted(lab)
    assert lab.state(instance) == "running"
    assert lab.directory.running(f"kubelet-{node.metadata.name}") == kubelet, "its machine went on"
    assert lab.launch(token="one") == instance, "no instance is bought twice"
    assert lab.launch(token="two") == late
    assert lab.ec2.describe_launch_templates()["LaunchTemplates"] == templates
    assert ask(lab.address, "GET", "faults")["closed"][0]["machine"] == "g5.xlarge"
    await lab.joined(late)
    bill = ask(lab.address, "GET", "bill")["instances"]
    assert {one["id"]: one["node"] for one in bill}.keys() == {instance, late}
    assert all(one["node"] for one in bill)


async def test_a_cloud_killed_in_a_termination_ends_it(lab):
    first, second = lab.launch(), lab.launch()
    nodes = [await lab.joined(one) for one in (first, second)]
    lab.ec2.terminate_instances(InstanceIds=[first])
    await restarted(lab)
    await lab.gone(first, nodes[0].metadata.name)
    assert lab.state(second) == "running"
    lab.ec2.terminate_instances(InstanceIds=[second])
    await until(
        lambda: not (lab.directory.nodes / nodes[1].metadata.name).exists(), poll=0.01, seconds=PATIENCE_SECONDS
    )
    await restarted(lab)
    await lab.gone(second, nodes[1].metadata.name)


async def test_a_supervisor_that_was_killed_finds_the_nodes_again(lab):
    first = lab.launch()
    node = await lab.joined(first)
    supervisor = lab.directory.running("supervisor")
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    second = lab.launch()
    await lab.joined(second)
    lab.ec2.terminate_instances(InstanceIds=[first])
    await lab.gone(first, node.metadata.name)
