"""Claims with their nodes on the embedded API server, a cloud in memory, and time that the test moves.

Played is the world around the autoscaler's decisions: instances that end when asked to, kubelets that let pods go.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpuplane.api import nodeclaim
from gpuplane.api.karpenter import POOL_LABEL
from gpuplane.autoscaler.catalogue import InstanceType
from gpuplane.autoscaler.providers.provider import (
    CloudInstance,
    Interruption,
    LaunchRequest,
    MachineClass,
    ResolvedClass,
)
from kubekit.kube import ApiEndpoint, Client, EventRecorder, SharedInformers
from kubekit.kube.auth import StaticAuth
from tests.support.node_taints import follow_conditions
from tests.support.virtual_time import VirtualClock, settle
from tinykube.apiserver.identity import ADMIN
from tinykube.apiserver.server import ApiServer

CLAIMS = ("karpenter.sh", "nodeclaims")
_PAUSES = 8
_PAUSE_SECONDS = 0.005
_QUIET_STEPS = 3  # without a request, after which time flies
ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition(group: str, version: str, plural: str, kind: str) -> dict[str, Any]:
    """Return a CRD of a cluster-scoped kind with status and any fields."""
    schema = {"type": "object", "properties": {"spec": ANY, "status": ANY}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{**served, "subresources": {"status": {}}}],
        },
    }


class MemoryCloud:
    """A cloud in memory. `resolved` answers for every class. With `slow`, instances end at `settle_all` only."""

    def __init__(self) -> None:
        self.found: dict[str, CloudInstance] = {}
        self.terminated: list[str] = []
        self.rebooted: list[str] = []
        self.resolved = ResolvedClass()
        self.slow = False
        self.notices: asyncio.Queue[Interruption] = asyncio.Queue()
        self.acknowledged: list[str] = []

    def settle_all(self) -> None:
        for provider_id, instance in self.found.items():
            if instance.state == "stopping":
                self.found[provider_id] = msgspec.structs.replace(instance, state="gone")

    async def types(self) -> Sequence[InstanceType]:
        return ()

    async def resolve(self, machines: MachineClass) -> ResolvedClass:
        return self.resolved

    async def launch(self, request: LaunchRequest) -> CloudInstance:
        raise AssertionError("nothing is launched here")

    async def instance(self, provider_id: str) -> CloudInstance | None:
        return self.found.get(provider_id)

    async def instances(self) -> Sequence[CloudInstance]:
        return [one for one in self.found.values() if one.state != "gone"]

    async def terminate(self, provider_id: str) -> None:
        self.terminated.append(provider_id)
        if provider_id in self.found:
            state = "stopping" if self.slow else "gone"
            self.found[provider_id] = msgspec.structs.replace(self.found[provider_id], state=state)

    async def reboot(self, provider_id: str) -> None:
        self.rebooted.append(provider_id)

    async def interruptions(self) -> AsyncGenerator[Interruption, None]:
        while True:
            yield await self.notices.get()

    async def acknowledge(self, notice: Interruption) -> None:
        self.acknowledged.append(notice.receipt)

    async def aclose(self) -> None:
        pass


class CountingClient(Client):
    """A client that counts its requests: `sent` all of them, `open` those without an answer yet."""

    sent = 0
    open = 0

    async def request(self, *arguments: Any, **named: Any) -> bytes:
        self.sent += 1
        self.open += 1
        try:
            return await super().request(*arguments, **named)
        finally:
            self.open -= 1


class ClaimedNodes:
    """An API server with claims, nodes and pods."""

    def __init__(self, server: ApiServer, client: CountingClient) -> None:
        self.server = server
        self.registry = server.registry
        self.client = client
        self.cloud = MemoryCloud()
        self.clock = VirtualClock(time.time())  # the API server stamps deletions by the system's clock
        self.informers = SharedInformers(client, self.clock)
        self.events = EventRecorder(client, "test", clock=self.clock)
        self._activity = (0, 0)

    async def add(self, name: str, *, node: bool = True, ready: bool = True, **more: Any) -> None:
        """Add a claim, its instance and, with `node`, its initialized Node. `more`: annotations, spec, image, pool."""
        provider_id = f"aws:///zone-1/i-{name}"
        pool = more.get("pool", "pool")
        labels = {POOL_LABEL: pool, "node.kubernetes.io/instance-type": "g4dn.xlarge"}
        meta = {
            "name": name,
            "labels": labels,
            "annotations": more.get("annotations", {}),
            "finalizers": [nodeclaim.FINALIZER],
        }
        body = {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": meta,
            "spec": more.get("spec", {}),
        }
        await self.registry.create(CLAIMS, None, body)
        kinds = (nodeclaim.LAUNCHED, nodeclaim.REGISTERED, nodeclaim.INITIALIZED) if node else (nodeclaim.LAUNCHED,)
        conditions = [
            {"type": kind, "status": "True", "reason": kind, "lastTransitionTime": self.clock.wall()} for kind in kinds
        ]
        status = {"providerID": provider_id, "conditions": conditions, "imageID": more.get("image", "")}
        await self.registry.patch(CLAIMS, None, name, {"status": status}, "merge", subresource="status")
        self.cloud.found[provider_id] = CloudInstance(
            provider_id, name, pool, "g4dn.xlarge", "zone-1", "on-demand", more.get("image", ""), "running", ""
        )
        if node:
            await self._join(name, labels, ready=ready)

    async def _join(self, name: str, labels: dict[str, str], *, ready: bool = True) -> None:
        answer = {"type": "Ready", "status": "True" if ready else "Unknown"}
        body = {
            "metadata": {"name": f"node-{name}", "labels": labels, "finalizers": [nodeclaim.FINALIZER]},
            "spec": {"providerID": f"aws:///zone-1/i-{name}"},
            "status": {"conditions": [answer]},
        }
        await self.registry.create("nodes", None, body)
        await follow_conditions(self.registry, f"node-{name}")

    async def initialize(self, name: str) -> None:
        """Let the node of a claim join and take pods."""
        claim = self.claim(name)
        assert claim is not None
        await self._join(name, claim["metadata"]["labels"])
        initialized = {"type": nodeclaim.INITIALIZED, "status": "True", "reason": nodeclaim.INITIALIZED}
        conditions = [
            *claim["status"]["conditions"],
            {**initialized, "lastTransitionTime": self.clock.wall()},
        ]
        await self.registry.patch(
            CLAIMS, None, name, {"status": {"conditions": conditions}}, "merge", subresource="status"
        )

    async def add_pod(self, name: str, claim: str, **more: Any) -> None:
        """Add a running pod on the node of a claim. `more`: owner, labels, annotations, and fields of its spec."""
        meta: dict[str, Any] = {"name": name, "labels": more.pop("labels", {})}
        meta["annotations"] = more.pop("annotations", {})
        owner = more.pop("owner", "ReplicaSet")
        meta["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": owner, "name": "owner", "uid": "u", "controller": True}
        ]
        spec = {"nodeName": f"node-{claim}", "containers": [{"name": "c", "image": "i"}], **more}
        await self.registry.create("pods", "default", {"metadata": meta, "spec": spec})
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.registry.patch("pods", "default", name, {"status": status}, "merge", subresource="status")

    async def kill_pods(self) -> None:
        """Play the kubelets: pods that are being deleted end."""
        for pod in self.pods():
            if "deletionTimestamp" in pod["metadata"]:
                await self.registry.delete("pods", "default", pod["metadata"]["name"], grace=0)

    def pods(self) -> list[dict[str, Any]]:
        return self.registry.list("pods")

    def claim(self, name: str) -> dict[str, Any] | None:
        return self.registry.get(CLAIMS, None, name)

    def node(self, claim: str) -> dict[str, Any] | None:
        return self.registry.get("nodes", None, f"node-{claim}")

    def condition(self, claim: str, kind: str) -> dict[str, Any]:
        found = (self.claim(claim) or {}).get("status", {}).get("conditions", ())
        return next((one for one in found if one["type"] == kind), {})

    async def until(self, holds: Callable[[], Any], *, step: float = 1.0, seconds: float = 900.0) -> Any:
        """Move time until a condition holds, and return its value; at most so many seconds of it.

        Requests and watches are real, so time stands still for them after a step in which there was one, and after the
        next two.
        """
        end = self.clock.now() + seconds
        quiet = 0  # steps without a request
        while True:
            is_active = quiet < _QUIET_STEPS
            for _ in range(_PAUSES if is_active else 1):
                if is_active:
                    await asyncio.sleep(_PAUSE_SECONDS)
                await settle()
                if value := holds():
                    return value
            assert self.clock.now() < end, f"not in {seconds:g} s; claims {self.registry.list(CLAIMS)}"
            before = self._activity
            await self.clock.advance(step)
            self._activity = (self.client.sent, self.registry.store.version)
            quiet = 0 if self.client.open > 0 or self._activity != before else quiet + 1

    @contextlib.asynccontextmanager
    async def running(self, *tasks: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Run controllers for the block."""
        running = [asyncio.ensure_future(task()) for task in tasks]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended


@contextlib.asynccontextmanager
async def claimed_nodes(folder: Path) -> AsyncIterator[ClaimedNodes]:
    """Serve an empty cluster for the block."""
    server = await ApiServer.start(folder)
    server.extensions.identity.add("admin", ADMIN)
    tls = ssl.create_default_context(cafile=str(server.authority))
    endpoint = ApiEndpoint(host="127.0.0.1", port=server.port, auth=StaticAuth(token="admin"), tls=tls)
    async with CountingClient(endpoint) as client:
        await client.apply(definition("karpenter.sh", "v1", "nodeclaims", "NodeClaim"), "test")
        cluster = ClaimedNodes(server, client)
        try:
            yield cluster
        finally:
            await cluster.events.aclose()
    await server.stop()
