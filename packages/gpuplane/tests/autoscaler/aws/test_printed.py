"""Karpenter's printed manifests for shared GPUs against moto, whole files: two nodes, both Deployments, none at zero.

The autoscaler with its AWS provider is production code, and asks moto over HTTP. Played are the machines: an instance
of moto joins as its user data says, and its device plugin offers the units that its configuration makes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuplane import names
from gpuplane.api import pluginconfig
from gpuplane.autoscaler.overhead import allocatable
from gpuplane.autoscaler.providers.aws.provider import AwsProvider
from gpuplane.autoscaler.providers.aws.settings import AwsSettings
from gpuplane.autoscaler.quantities import as_quantities
from gpuplane.sharing.forecast import forecast
from packages.gpuplane.tests.autoscaler.aws.account import Account
from tests.support.autoscaler_world import CLAIMS, PROVISIONERS, TYPES, AutoscalerWorld
from tests.support.aws_endpoint import REGION
from tests.support.node_taints import follow_conditions
from tests.support.virtual_time import settle

PRINTED: Final = Path(__file__).parents[6] / "shared" / "manifests" / "karpenter"
DEPLOYMENTS: Final = ("apps", "deployments")
BOOT_SECONDS: Final = 30.0
TTL_SECONDS: Final = 30.0
BOOTSTRAP: Final = (
    "/etc/eks/bootstrap.sh demo --kubelet-extra-args '--register-with-taints=karpenter.sh/unregistered:NoExecute'"
)
pytestmark = pytest.mark.skipif(not PRINTED.exists(), reason="no shared manifests beside this checkout")


def printed(name: str) -> Any:
    """Return a file of one object; of a field that stands twice the last counts, as in Karpenter's own parser."""
    return yaml.safe_load((PRINTED / name).read_text())


class MotoWorld(AutoscalerWorld):
    """A cluster whose machines are moto's instances."""

    def __init__(self, account: Account) -> None:
        super().__init__(now=time.time())  # moto stamps launches with the system's clock
        self.account = account
        settings = AwsSettings("demo", REGION, account.endpoint.url, isolated=True, kubernetes="1.31")
        self.cloud: Any = AwsProvider(settings, clock=self.machine)  # type: ignore[assignment]
        self._seen: dict[str, float] = {}  # instance -> when the test saw it first

    async def furnish(self) -> None:
        await super().furnish()
        values = printed("device-plugin-values.yaml")
        self.configs = values["config"]["map"]
        data = {"metadata": {"name": "plugin"}, "data": self.configs}
        await self.registry.create("configmaps", "gpu-operator", data)
        plugin = {"devicePlugin": {"config": {"name": "plugin", "default": "default"}}}
        policy = {
            "apiVersion": "nvidia.com/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p"},
            "spec": {**plugin, "daemonsets": {"nodeSelector": values["nodeSelector"]}},
        }
        await self.registry.create(("nvidia.com", "clusterpolicies"), None, policy)
        for name in ("provisioner-gpu.yaml", "provisioner-gpu-shared.yaml"):
            await self.registry.create(PROVISIONERS, None, printed(name))
        for name in ("gpu.yaml", "gpu-shared.yaml"):
            await self.registry.create(DEPLOYMENTS, "default", printed(name))

    async def scale(self, name: str, replicas: int) -> None:
        await self.registry.patch(DEPLOYMENTS, "default", name, {"spec": {"replicas": replicas}}, "merge")

    # -- playing ---------------------------------------------------------------------------------------------------

    async def schedule(self) -> None:
        await self._play_deployments()
        await super().schedule()
        await self._play_machines()

    async def _play_deployments(self) -> None:
        for pod in self.registry.list("pods", "default"):
            if "deletionTimestamp" in pod["metadata"]:
                await self.registry.delete("pods", "default", pod["metadata"]["name"], grace=0)
        for deployment in self.registry.list(DEPLOYMENTS, "default"):
            spec = deployment["spec"]
            labels = spec["template"]["metadata"]["labels"]
            pods = [pod for pod in self.registry.list("pods", "default") if pod["metadata"]["labels"] == labels]
            for pod in pods[spec["replicas"] :]:
                await self.registry.delete("pods", "default", pod["metadata"]["name"], grace=0)
            for number in range(len(pods), spec["replicas"]):
                meta = {"name": f"{deployment['metadata']['name']}-{number}-{self.clock.now():.3f}", "labels": labels}
                await self.registry.create("pods", "default", {"metadata": meta, "spec": spec["template"]["spec"]})
                refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                status = {"phase": "Pending", "conditions": [refused]}
                await self.registry.patch(
                    "pods", "default", meta["name"], {"status": status}, "merge", subresource="status"
                )

    async def _play_machines(self) -> None:
        running = {one["InstanceId"]: one for one in self.account.instances()}
        nodes = {node["spec"]["providerID"].rpartition("/")[2]: node for node in self.nodes()}
        for identity, instance in running.items():
            if identity not in self._seen:
                # NB: a fleet of moto leaves out the security groups of its launch template, which would be a drift.
                self.account.ec2.modify_instance_attribute(InstanceId=identity, Groups=[self.account.group])
            seen = self._seen.setdefault(identity, self.clock.now())
            if identity not in nodes and self.clock.now() - seen >= BOOT_SECONDS:
                await self._join_instance(instance)
        for identity, node in nodes.items():
            if identity not in running:
                silent = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
                await self._set_status(node["metadata"]["name"], silent)
            elif "jina.ai/gpu-type" in node["metadata"]["labels"] and not node["status"].get("allocatable", {}).get(
                names.GPU_RESOURCE
            ):
                await self._prepare(node)

    async def _join_instance(self, instance: dict[str, Any]) -> None:
        """A kubelet registers with the taints of the instance's user data; GPUs come with the device plugin."""
        text = self.account.ec2.describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
        flags = base64.b64decode(text["UserData"]["Value"]).decode()
        [taints] = re.findall(r"--register-with-taints=([^\s']+)", flags)
        parts = [re.fullmatch(r"([^:=]+)(?:=([^:]*))?:(\w+)", taint) for taint in taints.split(",")]
        name = instance["PrivateDnsName"].split(".")[0]
        zone = instance["Placement"]["AvailabilityZone"]
        body = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}},
            "spec": {
                "providerID": f"aws:///{zone}/{instance['InstanceId']}",
                "taints": [{"key": part[1], "value": part[2] or "", "effect": part[3]} for part in parts if part],
            },
        }
        await self.registry.create("nodes", None, body)
        free = as_quantities(allocatable(TYPES[instance["InstanceType"]]))
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": self.registry.now()}
        await self._set_status(name, {"conditions": [ready], "capacity": free, "allocatable": free})
        await follow_conditions(self.registry, name)

    async def _prepare(self, node: dict[str, Any]) -> None:
        """The operands have prepared a node: its device plugin offers what the node's configuration makes."""
        labels = node["metadata"]["labels"]
        machine = TYPES[labels["node.kubernetes.io/instance-type"]]
        config = pluginconfig.load(self.configs[labels.get(names.PLUGIN_CONFIG_LABEL, "default")].encode())
        assert machine.gpu is not None
        units = forecast(machine.gpu.model, machine.gpu.memory_mib, machine.gpus, config, labels)
        name = node["metadata"]["name"]
        offers = node["status"]["allocatable"] | {key: str(count) for key, count in units.offered.items()}
        await self._set_status(name, {"capacity": offers, "allocatable": offers})
        done = {"ready": {"state": "done", "since": self.registry.now()}}
        await self.registry.create(
            ("gpuplane.dev", "gpunodes"), None, {"metadata": {"name": name}, "status": {"stages": done}}
        )

    async def _set_status(self, name: str, status: dict[str, Any]) -> None:
        await self.registry.patch("nodes", None, name, {"status": status}, "merge", subresource="status")

    # -- time ------------------------------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], Any], seconds: float = 120.0, step: float = 1.0) -> Any:
        """Let time pass until a condition is true. Time stands still while a call of boto3 is on its way."""
        end = self.clock.now() + seconds
        while True:
            await settle()
            while any(thread.name == "aws" for thread in threading.enumerate()):
                await asyncio.sleep(0.001)
                await settle()
            if found := holds():
                return found
            assert self.clock.now() < end, f"did not come about in {seconds:g} s: {self.registry.list(CLAIMS)}"
            await self.clock.advance(step)
            await self.schedule()

    def by_pool(self) -> dict[str, list[dict[str, Any]]]:
        """Return the nodes that are ready for pods, by pool."""
        found: dict[str, list[dict[str, Any]]] = {}
        for node in self.nodes():
            if "karpenter.sh/initialized" in node["metadata"]["labels"]:
                found.setdefault(node["metadata"]["labels"]["karpenter.sh/nodepool"], []).append(node)
        return found

    def runs(self, pods: int) -> bool:
        return len(self.registry.list("pods", "default")) == len(self.bound()) == pods


def launch_template(account: Account, image: str) -> dict[str, Any]:
    """Return the printed launch template with what its words stand for."""
    words = {
        "IMAGE": image,
        "NODE_SECURITY_GROUP": account.group,
        "BASE64_OF_BOOTSTRAP_WITH_CLUSTER_NAME": base64.b64encode(BOOTSTRAP.encode()).decode(),
    }
    text = (PRINTED / "launch-template.json").read_text()
    for word, meaning in words.items():
        text = text.replace(f'"{word}"', json.dumps(meaning))
    found: dict[str, Any] = json.loads(text)
    return found


def make_templates(account: Account) -> None:
    """Make the printed launch template, and its like for the shared pool."""
    made = launch_template(account, account.image)
    account.ec2.delete_launch_template(LaunchTemplateName=made["LaunchTemplateName"])
    account.ec2.create_launch_template(**made)
    account.ec2.create_launch_template(**made | {"LaunchTemplateName": "karpenter-gpu-shared-demo"})


async def test_the_printed_files_buy_two_nodes_replace_one_of_an_old_image_and_leave_none(account: Account) -> None:
    account.endpoint.spot_prices = {"g4dn.xlarge": 0.2, "g4dn.2xlarge": 0.3}
    make_templates(account)
    world = MotoWorld(account)
    await world.furnish()
    try:
        async with world.autoscaling():
            await world.until(lambda: world.runs(2), 300)
            await world.until(lambda: len(world.by_pool()) == 2)
            nodes = world.by_pool()
            offers = {pool: found[0]["status"]["allocatable"][names.GPU_RESOURCE] for pool, found in nodes.items()}
            assert offers == {"gpu": "1", "gpu-shared": "10"}
            instances = {one["PrivateDnsName"].split(".")[0]: one for one in account.instances()}
            assert len(instances) == 2
            for pool, [node] in nodes.items():
                instance = instances[node["metadata"]["name"]]
                assert (instance["InstanceType"], instance["InstanceLifecycle"]) == ("g4dn.xlarge", "spot")
                tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
                assert (tags["karpenter.sh/nodepool"], tags["karpenter.sh/discovery"]) == (pool, "demo")
                assert [taint["key"] for taint in node["spec"]["taints"]] == [f"nvidia.com/{pool}"]

            await world.scale("test-gpu-shared", 10)
            await world.until(lambda: world.runs(11))
            assert len(account.instances()) == 2, "ten pods share a GPU"

            newest = account.new_image("gpu-2")
            changed = launch_template(account, newest)
            del changed["TagSpecifications"]  # they stay as they are
            account.ec2.create_launch_template_version(**changed)
            old = nodes["gpu"][0]["metadata"]["name"]
            await world.until(
                lambda: old not in {node["metadata"]["name"] for node in world.nodes()} and world.runs(11), 900
            )
            assert sorted(one["ImageId"] for one in account.instances()) == sorted([account.image, newest])

            for name in ("test-gpu", "test-gpu-shared"):
                await world.scale(name, 0)
            await world.schedule()
            emptied = world.clock.now()
            await world.until(lambda: not world.nodes() and not world.claims(), 300)
            assert world.clock.now() - emptied >= TTL_SECONDS
            assert account.instances() == []
            assert account.endpoint.made.count("CreateFleet") == 3
    finally:
        await world.cloud.aclose()
