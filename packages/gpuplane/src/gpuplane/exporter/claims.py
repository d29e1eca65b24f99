"""Finds the GPUs that ResourceClaims allocate for administrative access (`adminAccess`), such as a monitoring pod's.

Such a pod uses the GPUs of others, and holds none. The kubelet's pod-resources have no word of it; the status of the
claim has. An allocation does not change while containers use it, so each claim is read once.

Invariant: metrics do not fail because of it. The GPUs of a claim that cannot be read count as held, and the log says so
once; the claim is read again after a while.

Source: resource.k8s.io/v1 of Kubernetes 1.36, DeviceRequestAllocationResult.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from gpuplane import names
from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource
from kubekit.errors import KubekitError
from kubekit.kube import Client

if TYPE_CHECKING:
    from kubekit.protocol.podresources_pb2 import ContainerResources

log = logging.getLogger("gpuplane.exporter")

READ_SECONDS: Final = 1.0  # for which a scrape waits at most
RETRY_SECONDS: Final = 60.0


class ClaimedDevice(msgspec.Struct, frozen=True):
    """A device of a claim. `container_device` is the device's name for the runtime; it has the claim's uid in it."""

    namespace: str
    claim: str
    pool: str
    device: str
    container_device: str


class AllocationResult(msgspec.Struct, frozen=True, rename="camel"):
    """A device that is allocated to a claim."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False


class AllocationResults(msgspec.Struct, frozen=True):
    results: tuple[AllocationResult, ...] = ()


class ReadAllocation(msgspec.Struct, frozen=True):
    devices: AllocationResults = AllocationResults()


class ClaimStatus(msgspec.Struct, frozen=True):
    allocation: ReadAllocation | None = None


class AllocatedClaim(msgspec.Struct, frozen=True):
    """A ResourceClaim, as far as the exporter reads it."""

    RESOURCE: ClassVar[Resource] = built_in("resource.k8s.io/v1", "ResourceClaim")

    metadata: ObjectMeta = ObjectMeta()
    status: ClaimStatus = ClaimStatus()


def claimed_gpus(container: ContainerResources) -> Iterator[ClaimedDevice]:
    """Yield the devices of NVIDIA's driver that a container has by claims, as the kubelet lists them."""
    for claim in container.dynamic_resources:
        for one in claim.claim_resources:
            if one.driver_name == names.DRA_DRIVER:
                where = claim.claim_namespace, claim.claim_name, one.pool_name, one.device_name
                yield ClaimedDevice(*where, ",".join(cdi.name for cdi in one.cdi_devices))


class AdminClaims:
    """Reads the claims of the node's pods, with the rights of the client's user."""

    def __init__(self, client: Client, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic
        self._known: dict[ClaimedDevice, bool] = {}
        self._failed_at: dict[ClaimedDevice, float] = {}
        self._said = False

    async def administrative(self, devices: Iterable[ClaimedDevice]) -> frozenset[ClaimedDevice]:
        """Return those of all claimed devices of the node that are for administrative access."""
        wanted, now = frozenset(devices), self._monotonic()
        self._known = {device: admin for device, admin in self._known.items() if device in wanted}
        failed = {device: at for device, at in self._failed_at.items() if now - at < RETRY_SECONDS and device in wanted}
        self._failed_at = failed
        unknown: dict[tuple[str, str], list[ClaimedDevice]] = {}
        for device in wanted - self._known.keys() - failed.keys():
            unknown.setdefault((device.namespace, device.claim), []).append(device)
        await asyncio.gather(*(self._read(*claim, found) for claim, found in unknown.items()))
        return frozenset(device for device, admin in self._known.items() if admin)

    async def _read(self, namespace: str, name: str, devices: Sequence[ClaimedDevice]) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                claim = await self._client.get(AllocatedClaim, name, namespace)
        except (KubekitError, TimeoutError) as error:
            self._failed_at |= dict.fromkeys(devices, self._monotonic())
            if not self._said:
                why = str(error) or "no answer in time"
                log.warning("claim not read, its GPUs count as held claim=%s/%s: %s", namespace, name, why)
            self._said = True
            return
        self._said = False
        self._known |= {device: _is_administrative(device, claim) for device in devices}


def _is_administrative(device: ClaimedDevice, claim: AllocatedClaim) -> bool:
    """Return whether a claim has a device for administrative access only: an ordinary request may have it too."""
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else ()
    key = (names.DRA_DRIVER, device.pool, device.device)
    found = [one.admin_access for one in results if (one.driver, one.pool, one.device) == key]
    return bool(found) and all(found)
