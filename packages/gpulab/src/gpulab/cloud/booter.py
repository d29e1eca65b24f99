"""Makes a machine of each instance that runs, and removes the machine of each that ended.

Level-triggered: it compares the instances with the cluster's nodes after each change and once a second. After a kill it
ends what had begun to end, and takes the other machines as they are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpulab.cloud.booting import cloud_nodes, node_spec, plan_boots
from gpulab.cloud.endpoint import CloudEndpoint
from gpulab.cloud.fault_names import DEAD_BOOTS
from gpulab.cloud.instances import SHUTTING_DOWN, TERMINATED, LabInstance
from kubekit.api.core import Node
from kubekit.errors import KubekitError
from kubekit.kube import Client, NotFound
from kubekit.kube.tasks import first_of
from tinykube.cluster import add_node, remove_node
from tinykube.cluster.directory import ClusterDirectory
from tinykube.cluster.membership import ask_restart, restart_due

log = logging.getLogger("gpulab.cloud")

_LOOK_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 2.0


class Booter:
    """The machines of one cloud. `changed()` may be called on any thread."""

    def __init__(self, directory: ClusterDirectory, client: Client) -> None:
        self.ended: dict[str, float] = {}  # instance -> when its machine was off, in seconds since 1970
        self.nodes: dict[str, str] = {}  # instance -> name of its node, also after its end
        self._directory = directory
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._dead: set[str] = set()
        self._seen: set[str] = set()
        self._leaving: set[str] = set()

    def changed(self) -> None:
        self._loop.call_soon_threadsafe(self._wake.set)

    def kept(self) -> dict[str, Any]:
        """Return what `restore` takes."""
        return {"ended": self.ended, "nodes": self.nodes, "dead": self._dead, "seen": self._seen}

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Go on from what an earlier process kept."""
        self.ended, self.nodes = parts["ended"], parts["nodes"]
        self._dead, self._seen = parts["dead"], parts["seen"]

    def restart(self, instance: str) -> None:
        """Let the machine of an instance restart, if it is on. May be called on any thread. Raises OSError."""
        name = cloud_nodes(self._directory.spec().nodes).get(instance)
        if name is not None:
            ask_restart(self._directory, name)
            log.info("restarting instance=%s node=%s", instance, name)

    async def run(self, endpoint: CloudEndpoint) -> None:
        """Until cancelled."""
        with endpoint.lock:
            endpoint.machines.update(cloud_nodes(self._directory.spec().nodes))
        await self._sweep()
        await self._finish(endpoint)
        for instance, name in cloud_nodes(self._directory.spec().nodes).items():
            if restart_due(self._directory.nodes / name):  # its kubelet has not begun again yet
                self.restart(instance)
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                later = self._step(endpoint, group)
                await first_of(self._wake.wait(), asyncio.sleep(min(_LOOK_SECONDS, later or _LOOK_SECONDS)))

    async def _sweep(self) -> None:
        """Remove what an earlier process had taken from the specification, but not from the disk."""
        listed = {node.name for node in self._directory.spec().nodes}
        for place in self._directory.nodes.iterdir():
            if place.name not in listed:
                await remove_node(self._directory, place.name)

    async def _finish(self, endpoint: CloudEndpoint) -> None:
        """End the instances whose machine went just before a kill."""
        for instance in endpoint.instances():
            if instance.state == SHUTTING_DOWN and instance.id not in endpoint.machines:
                await self._leave(endpoint, instance.id, self.nodes.get(instance.id, ""))

    def _step(self, endpoint: CloudEndpoint, group: asyncio.TaskGroup) -> float | None:
        instances = endpoint.instances()
        for instance in instances:
            if instance.id not in self._seen:
                self._seen.add(instance.id)
                if endpoint.faults.take(DEAD_BOOTS):
                    log.info("the instance will not join instance=%s", instance.id)
                    self._dead.add(instance.id)
        nodes = cloud_nodes(self._directory.spec().nodes)
        plan = plan_boots(instances, nodes, self._dead, endpoint.faults.boot_seconds, time.time())
        for instance in plan.joins:
            node = node_spec(instance, endpoint.region)
            with endpoint.lock:
                endpoint.machines.add(instance.id)
                self.nodes[instance.id] = node.name
                endpoint.keep()
            add_node(self._directory, node)
            log.info("booted instance=%s type=%s node=%s", instance.id, instance.machine, node.name)
        for instance_id, name in plan.leaves:
            if instance_id not in self._leaving:
                self._leaving.add(instance_id)
                group.create_task(self._leave(endpoint, instance_id, name))
        self._note_ends(instances)
        return plan.later

    def _note_ends(self, instances: Sequence[LabInstance]) -> None:
        for instance in instances:
            if instance.state == TERMINATED:
                self.ended.setdefault(instance.id, time.time())

    async def _leave(self, endpoint: CloudEndpoint, instance: str, name: str) -> None:
        while not await self._left(name, instance):  # noqa: ASYNC110 - a full disk or an API server tells nothing
            await asyncio.sleep(_AGAIN_SECONDS)
        with endpoint.lock:
            endpoint.machines.discard(instance)
            if any(known.id == instance and known.state == SHUTTING_DOWN for known in endpoint.instances()):
                endpoint.set_state(instance, TERMINATED)
        self._leaving.discard(instance)
        self._wake.set()
        log.info("switched off instance=%s node=%s", instance, name)

    async def _left(self, name: str, instance: str) -> bool:
        try:
            if name:
                await remove_node(self._directory, name)
                await self._forget(name, instance)
        except (KubekitError, OSError) as error:
            log.warning("the machine is not removed, trying again instance=%s node=%s: %s", instance, name, error)
            return False
        return True

    async def _forget(self, name: str, instance: str) -> None:
        """Delete the Node of an instance that is gone, as the controller of a cloud does."""
        try:
            node = await self._client.get(Node, name)
            if node.spec.provider_id.endswith(f"/{instance}"):
                await self._client.delete(Node, name, uid=node.metadata.uid)
        except NotFound:
            return
