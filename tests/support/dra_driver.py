"""A driver of dynamic resource allocation: publishes devices, registers with a kubelet, prepares claims by CDI.

It does what a driver has to do and no more, and remembers what it was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final

from kubekit.api.kinds import built_in
from kubekit.errors import InvalidInput
from kubekit.kube import Client
from kubekit.protocol import dra_pb2 as pb
from kubekit.protocol import drahealth_pb2 as health_pb
from kubekit.protocol import pluginregistration_pb2 as registration_pb
from kubekit.rpc_server import serving

SLICE: Final = built_in("resource.k8s.io/v1", "ResourceSlice")
CLAIM: Final = built_in("resource.k8s.io/v1", "ResourceClaim")
CLASS: Final = built_in("resource.k8s.io/v1", "DeviceClass")
TEMPLATE: Final = built_in("resource.k8s.io/v1", "ResourceClaimTemplate")
DRIVER: Final = "gpu.example.com"
_PACKAGES: Final = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1",
}


class TestDriver:
    """One instance of a driver on a node whose file system begins at `root`.

    It lists `service`, and answers under the name of `serves`. `refuse` and `skip` spoil answers; calls wait while
    `answers` is not set. `calls` are the methods and claims' names in their order. `health`: by device, with a message.
    """

    __test__ = False

    def __init__(
        self,
        root: Path,
        node: str,
        client: Client,
        *,
        name: str = DRIVER,
        service: str = "v1.DRAPlugin",
        instance: str = "",
    ) -> None:
        self.root = root
        self.node = node
        self.name = name
        self.service = service
        self.serves = service
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.is_open = False
        self.refuse = ""
        self.skip = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = asyncio.Event()
        self.health: dict[str, tuple[int, str]] = {}
        self.health_seconds = 0
        self.registrations: list[registration_pb.RegistrationStatus] = []
        self.notified = asyncio.Event()
        self.registered = asyncio.Event()
        self._client = client
        self._generation = 0
        self._slices: tuple[dict[str, Any], ...] = ()
        self._changed = asyncio.Condition()
        self._stack = contextlib.AsyncExitStack()
        self._endpoint = f"/var/lib/kubelet/plugins/{name}/dra{instance}.sock"
        self._registry = root / f"var/lib/kubelet/plugins_registry/{name}{instance}-reg.sock"

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open both sockets."""
        endpoint = self.root / self._endpoint.lstrip("/")
        for path in (endpoint, self._registry):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        package = _PACKAGES[self.serves]
        methods = {
            f"/{package}.DRAPlugin/NodePrepareResources": self._prepare,
            f"/{package}.DRAPlugin/NodeUnprepareResources": self._unprepare,
        }
        if self.health:
            methods["/v1alpha1.DRAResourceHealth/NodeWatchResources"] = self._watch
        await self._stack.enter_async_context(serving(methods, endpoint))
        self._stack.callback(endpoint.unlink, missing_ok=True)
        registration = {
            "/pluginregistration.Registration/GetInfo": self._info,
            "/pluginregistration.Registration/NotifyRegistrationStatus": self._notified,
        }
        await self._stack.enter_async_context(serving(registration, self._registry))
        self._stack.callback(self._registry.unlink, missing_ok=True)
        self.is_open = True

    async def stop(self) -> None:
        """Close and remove both sockets."""
        await self._stack.aclose()
        self.is_open = False
        self.registered.clear()

    async def publish(self, *slices: dict[str, Any]) -> None:
        """Publish the slices of the node's pool, in the place of those before. Each is the spec without its pool."""
        self._generation += 1
        self._slices = slices
        pool = {"name": self.node, "generation": self._generation, "resourceSliceCount": len(slices)}
        await self.withdraw()
        for number, one in enumerate(slices):
            body = {"driver": self.name, "pool": pool, "nodeName": self.node, **one}
            name = f"{self.node}-{self.name}-{number}"
            await self._client.create({"metadata": {"name": name}, "spec": body}, resource=SLICE)

    async def renew(self) -> None:
        """Publish the slices again if the kubelet has deleted them, as it does at its start."""
        chosen = f"spec.driver={self.name},spec.nodeName={self.node}"
        found = json.loads(await self._client.request("GET", SLICE.path(), {"fieldSelector": chosen}))
        if len(found["items"]) != len(self._slices):
            await self.publish(*self._slices)

    async def withdraw(self) -> None:
        """Delete the slices."""
        chosen = {"fieldSelector": f"spec.driver={self.name},spec.nodeName={self.node}"}
        await self._client.request("DELETE", SLICE.path(), chosen)

    async def report(self, **health: tuple[int, str]) -> None:
        """Report the health of devices to the kubelets that watch."""
        async with self._changed:
            self.health |= {name.replace("_", "-"): one for name, one in health.items()}
            self._changed.notify_all()

    # -- registration ------------------------------------------------------------------------------------------------

    async def _info(self, request: bytes) -> AsyncIterator[bytes]:
        info = registration_pb.PluginInfo(
            type="DRAPlugin", name=self.name, endpoint=self._endpoint, supported_versions=[self.service]
        )
        yield info.SerializeToString()

    async def _notified(self, request: bytes) -> AsyncIterator[bytes]:
        self.registrations.append(registration_pb.RegistrationStatus.FromString(request))
        self.notified.set()
        if self.registrations[-1].plugin_registered:
            self.registered.set()
        yield b""

    # -- claims ------------------------------------------------------------------------------------------------------

    async def _begin(self, method: str, claims: Iterable[pb.Claim]) -> None:
        self.calls.append((method, tuple(sorted(claim.name for claim in claims))))
        self.asked.set()
        await self.answers.wait()

    async def _prepare(self, request: bytes) -> AsyncIterator[bytes]:
        wanted = pb.NodePrepareResourcesRequest.FromString(request).claims
        await self._begin("prepare", wanted)
        answer = pb.NodePrepareResourcesResponse()
        for claim in () if self.skip else wanted:
            if self.refuse:
                answer.claims[claim.uid].error = self.refuse
            else:
                await self._prepare_claim(claim, answer.claims[claim.uid])
        yield answer.SerializeToString()

    async def _prepare_claim(self, claim: pb.Claim, answer: pb.NodePrepareResourceResponse) -> None:
        text = await self._client.request("GET", CLAIM.path(claim.namespace, claim.name))
        stored = json.loads(text)
        if stored["metadata"]["uid"] != claim.uid:
            raise InvalidInput("the claim was replaced")
        devices = []
        for result in stored["status"]["allocation"]["devices"]["results"]:
            if result["driver"] != self.name:
                continue
            name = f"{claim.uid}-{result['device']}" + (f"-{result['shareID']}" if result.get("shareID") else "")
            key = result["device"].upper().replace("-", "_")
            env = [f"DEVICE_{key}={result['request']}"]
            if consumed := result.get("consumedCapacity"):
                env.append(f"SHARE_{key}={json.dumps(consumed, sort_keys=True)}")
            devices.append({"name": name, "containerEdits": {"env": env}})
            answer.devices.add(
                request_names=[result["request"].partition("/")[0]],
                pool_name=result["pool"],
                device_name=result["device"],
                cdi_device_ids=[f"{self.name}/device={name}"],
                share_id=result.get("shareID"),
            )
        spec = {"cdiVersion": "0.6.0", "kind": f"{self.name}/device", "devices": devices}
        path = self.spec_of(claim.uid)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(spec))

    def spec_of(self, uid: str) -> Path:
        """Return the path of a prepared claim's CDI specification."""
        return self.root / f"var/run/cdi/{self.name}-{uid}.json"

    async def _unprepare(self, request: bytes) -> AsyncIterator[bytes]:
        wanted = pb.NodeUnprepareResourcesRequest.FromString(request).claims
        await self._begin("unprepare", wanted)
        answer = pb.NodeUnprepareResourcesResponse()
        for claim in () if self.skip else wanted:
            answer.claims[claim.uid].error = self.refuse
            if not self.refuse:
                self.spec_of(claim.uid).unlink(missing_ok=True)
        yield answer.SerializeToString()

    async def _watch(self, request: bytes) -> AsyncIterator[bytes]:
        while True:
            async with self._changed:
                answer = health_pb.NodeWatchResourcesResponse()
                for name, (health, message) in self.health.items():
                    answer.devices.add(
                        device={"pool_name": self.node, "device_name": name},
                        health=health,
                        message=message,
                        health_check_timeout_seconds=self.health_seconds,
                    )
                yield answer.SerializeToString()
                await self._changed.wait()
