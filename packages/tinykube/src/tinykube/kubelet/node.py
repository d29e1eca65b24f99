"""The Node object: made at the start, its status on change and every five minutes, a lease every ten seconds.

The facts of the node come from its root, as a kubelet reads /proc and /etc; see `facts`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from kubekit.api.core import LeaseObject, Node
from kubekit.errors import Retryable
from kubekit.kube import AlreadyExists, ApiError, Client, Informer, NotFound
from kubekit.kube.tasks import first_of
from tinykube.kubelet.clock import KubeletClock
from tinykube.kubelet.platform import MachineFacts
from tinykube.kubelet.settings import KubeletSettings

log = logging.getLogger("tinykube.kubelet")

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_SECONDS: Final = 40
RENEW_SECONDS: Final = 10.0
STATUS_SECONDS: Final = 300.0
KUBELET_VERSION: Final = "v1.34.1"
_RETRY_SECONDS: Final = 1.0


class KubeletFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet's report of its node. `devices` maps a resource to (capacity, allocatable). `recreated`: it has no
    memory of plugins, so the offers of a Node of its name are not its own. `boot_id` is empty where a
    machine has none.
    """

    machine: MachineFacts
    name: str
    host_ip: str
    port: int
    devices: dict[str, tuple[int, int]] = {}
    runtime_down: str = ""
    recreated: bool = False
    boot_id: str = ""
    settings: KubeletSettings = KubeletSettings()


def node_labels(facts: KubeletFacts) -> dict[str, str]:
    machine = facts.machine
    labels = {
        "beta.kubernetes.io/arch": machine.go_arch,
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine.go_arch,
        "kubernetes.io/hostname": facts.name,
        "kubernetes.io/os": "linux",
    }
    if machine.instance_type:
        labels["node.kubernetes.io/instance-type"] = machine.instance_type
    return labels | facts.settings.labels


def node_spec(settings: KubeletSettings) -> dict[str, Any]:
    """Return `spec` of a new Node. Pure."""
    spec: dict[str, Any] = {"providerID": settings.provider_id} if settings.provider_id else {}
    if settings.taints:
        spec["taints"] = [
            {"key": key, "effect": effect} | ({"value": value} if value else {})
            for key, value, effect in settings.taints
        ]
    return spec


def node_status(facts: KubeletFacts, now: str, before: tuple[Any, ...] = ()) -> dict[str, Any]:
    """`status` as a patch holds it; `before` are the conditions that stand, whose transition times stay. Pure."""
    machine, settings = facts.machine, facts.settings
    capacity = {
        "cpu": str(machine.cpus),
        "memory": f"{machine.memory_kib}Ki",
        "ephemeral-storage": "104845292Ki",
        "hugepages-2Mi": "0",
        "pods": str(settings.max_pods),
    }
    free_kib = machine.memory_kib - (settings.reserved_memory_mib << 10)
    allocatable = capacity | {"memory": f"{free_kib}Ki", "ephemeral-storage": "96625420948"}
    if settings.reserved_cpu_milli:
        allocatable["cpu"] = f"{machine.cpus * 1000 - settings.reserved_cpu_milli}m"
    for resource, (total, healthy) in facts.devices.items():
        capacity[resource] = str(total)
        allocatable[resource] = str(healthy)
    seed = hashlib.sha256(facts.name.encode()).hexdigest()
    return {
        "capacity": capacity,
        "allocatable": allocatable,
        "conditions": _conditions(facts, now, {c.type: c for c in before}),
        "addresses": [
            {"type": "InternalIP", "address": facts.host_ip},
            {"type": "Hostname", "address": facts.name},
        ],
        # Otherwise a real API server of 1.36 asks for exec by SPDY, which `server` does not speak.
        "declaredFeatures": ["ExtendWebSocketsToKubelet"],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": facts.port}},
        "nodeInfo": {
            "machineID": seed[:32],
            "systemUUID": f"{seed[:8]}-{seed[8:12]}-{seed[12:16]}-{seed[16:20]}-{seed[20:32]}",
            "bootID": facts.boot_id or f"{seed[32:40]}-{seed[40:44]}-{seed[44:48]}-{seed[48:52]}-{seed[52:64]}",
            "kernelVersion": machine.kernel,
            "osImage": machine.os_image,
            "containerRuntimeVersion": f"{machine.runtime}://{machine.runtime_version}",
            "kubeletVersion": KUBELET_VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": machine.go_arch,
        },
    }


def extended(capacity: Mapping[str, object]) -> dict[str, str]:
    """The amounts of a Node that are of extended resources."""
    return {name: str(amount) for name, amount in capacity.items() if "/" in name}


def _conditions(facts: KubeletFacts, now: str, before: dict[str, Any]) -> list[dict[str, str]]:
    down = facts.runtime_down
    rows = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        (
            "Ready",
            "False" if down else "True",
            "KubeletNotReady" if down else "KubeletReady",
            f"container runtime is down: {down}" if down else "kubelet is posting ready status",
        ),
    ]
    conditions = []
    for kind, status, reason, message in rows:
        old = before.get(kind)
        since = old.last_transition_time if old is not None and old.status == status else now
        conditions.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since or now,
            }
        )
    return conditions


class NodeReporter:
    """Keeps Node and lease. `facts` is asked at every report; `changed()` brings the next one forward."""

    def __init__(self, client: Client, facts: Any, clock: KubeletClock) -> None:
        self._client = client
        self._facts = facts
        self._clock = clock
        self._changed = asyncio.Event()
        self._ever: set[str] = set()
        self.registered = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        await self._until_done(self._register)
        self.registered.set()
        own = Informer(self._client, Node, fields=f"metadata.name={self._facts().name}")
        own.add_handler(self._look)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew())
                group.create_task(self._report())
                own.start()
                await own.synced()
                self._look(None, own.get(self._facts().name))  # it may have gone before the watch began
        finally:
            await own.stop()

    def _look(self, old: Node | None, new: Node | None) -> None:
        """Wake the reporter when the Node's Ready differs: it was thought dead, or was deleted."""
        standing = {c.type: c.status for c in new.status.conditions} if new is not None else {}
        if standing.get("Ready") != ("False" if self._facts().runtime_down else "True"):
            self._changed.set()

    async def _until_done(self, act: Any) -> None:
        said = ""
        while True:
            try:
                await act()
                return
            except (ApiError, Retryable) as error:
                if str(error) != said:
                    log.warning("node %s: %s; trying again", self._facts().name, error)
                    said = str(error)
                await self._clock.sleep(_RETRY_SECONDS)

    async def _register(self) -> None:
        facts: KubeletFacts = self._facts()
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": facts.name,
                "labels": node_labels(facts),
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "spec": node_spec(facts.settings),
            "status": node_status(facts, self._now()),
        }
        try:
            await self._client.create(body)
            log.info("node %s registered", facts.name)
        except AlreadyExists:
            node = await self._client.get(Node, facts.name)
            if facts.recreated:
                self._ever |= set(extended(node.status.capacity))
            missing = {k: v for k, v in node_labels(facts).items() if node.metadata.labels.get(k) != v}
            if missing:
                await self._client.patch(Node, facts.name, {"metadata": {"labels": missing}})
            await self._post()

    async def _post(self) -> None:
        facts: KubeletFacts = self._facts()
        node = await self._client.get(Node, facts.name)
        gone = dict.fromkeys(self._ever - set(facts.devices), (0, 0))
        self._ever |= set(facts.devices)
        facts = msgspec.structs.replace(facts, devices=gone | facts.devices)
        status = node_status(facts, self._now(), node.status.conditions)
        # Resources of other writers, such as rules of node feature discovery, are all allocatable.
        others = extended(node.status.capacity).items()
        status["allocatable"] |= {name: amount for name, amount in others if name not in facts.devices}
        await self._client.patch(Node, facts.name, {"status": status}, None, "strategic", "status")

    async def _report(self) -> None:
        while True:
            await first_of(self._changed.wait(), self._clock.sleep(STATUS_SECONDS))
            self._changed.clear()
            await self._until_done(self._post_or_register)

    async def _post_or_register(self) -> None:
        try:
            await self._post()
        except NotFound:  # the Node was deleted: a running kubelet creates it again
            await self._register()

    async def _renew(self) -> None:
        while True:
            await self._until_done(self._renew_once)
            await self._clock.sleep(RENEW_SECONDS)

    async def _renew_once(self) -> None:
        name = self._facts().name
        renewed = {
            "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": self._now(True)}
        }
        try:
            await self._client.patch(LeaseObject, name, renewed, LEASE_NAMESPACE)
        except NotFound:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
                **renewed,
            }
            await self._client.create(body)

    def _now(self, fraction: bool = False) -> str:
        moment = datetime.fromtimestamp(self._clock.time(), UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if fraction else "%Y-%m-%dT%H:%M:%SZ")
