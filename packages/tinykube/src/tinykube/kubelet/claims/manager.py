"""Prepares the claims of pods with their drivers, gives the devices to containers, and unprepares them.

Invariants:

- A claim stands in the checkpoint before its first driver is called, and until the last one has unprepared it.
- A driver prepares a claim once for all pods that use it; the last of them ends it. One claim is worked on by one pod
  at a time.
- A call that a driver refuses, or does not answer, is tried again; a pod does not end before its claims are unprepared.

Source: pkg/kubelet/cm/dra/manager.go of Kubernetes 1.36.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from kubekit.errors import KubekitError, Retryable
from kubekit.kube import Client
from kubekit.kube.tasks import first_of
from kubekit.protocol import dra_pb2 as pb
from kubekit.protocol import drahealth_pb2 as health_pb
from kubekit.protocol.sockets import PLUGIN_REGISTRY_DIR, PLUGINS_DIR
from tinykube.kubelet.claims import checkpoint
from tinykube.kubelet.claims.checkpoint import NodePreparedClaim, PreparedDevice
from tinykube.kubelet.claims.health import DeviceKey, HealthRecord
from tinykube.kubelet.claims.plugins import DriverInstance, DriverRegistry
from tinykube.kubelet.claims.references import KubeletClaim, check_usable, claim_name
from tinykube.kubelet.clock import KubeletClock
from tinykube.kubelet.pod import KubeletPod, SpecContainer

log = logging.getLogger("tinykube.kubelet")

RECONCILE_SECONDS: Final = 60.0


class ClaimManager:
    """The claims of one node.

    Args:
        root: the machine's file system; `directory` is the kubelet's directory in it.
        changed: called with the uids of pods whose devices report another health.
        registered: awaited before the Node's resource slices are deleted.
    """

    def __init__(
        self,
        root: Path,
        directory: Path,
        node: str,
        client: Client,
        clock: KubeletClock,
        changed: Callable[[Collection[str]], None],
        registered: asyncio.Event,
    ) -> None:
        self._directory = directory
        self._client = client
        self._clock = clock
        self._changed = changed
        self._claims: dict[str, NodePreparedClaim] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._health = HealthRecord()
        self._expiry = asyncio.Event()
        self._pods: Collection[str] | None = None
        registry = directory / PLUGIN_REGISTRY_DIR
        self.drivers = DriverRegistry(root, registry, node, client, clock, self._on_health, registered.wait)
        self._tasks: list[asyncio.Task[None]] = []

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the checkpoint and begin to follow drivers."""
        for name in (PLUGIN_REGISTRY_DIR, PLUGINS_DIR):
            (self._directory / name).mkdir(parents=True, exist_ok=True)
        self._claims = {claim.key: claim for claim in checkpoint.load(self._directory / checkpoint.NAME)}
        loops = (self.drivers.run(), self._expire(), self._reconcile())
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep_only(self, pods: Collection[str]) -> None:
        """After a restart: claims of pods that are not there any more are unprepared.

        Args:
            pods: the uids of the node's pods, now and later.
        """
        self._pods = pods

    async def _reconcile(self) -> None:
        while True:
            pods = self._pods
            if pods is not None:
                for uid in {uid for claim in self._claims.values() for uid in claim.pods if uid not in pods}:
                    try:
                        await self.unprepare(uid)
                    except Retryable as error:
                        log.warning("claims of pod %s, which is gone: %s", uid, error)
            await self._clock.sleep(RECONCILE_SECONDS if pods is not None else 1.0)

    @contextlib.asynccontextmanager
    async def _locked(self, keys: Iterable[str]) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield

    def _save(self) -> None:
        checkpoint.save(self._directory / checkpoint.NAME, self._claims.values())

    # -- prepare -----------------------------------------------------------------------------------------------------

    async def prepare(self, pod: KubeletPod) -> None:
        """Make the devices of a pod's claims ready for its containers. Raises Retryable where that failed."""
        if not pod.spec.resource_claims:
            return
        found = []
        for one in pod.spec.resource_claims:
            name = claim_name(pod, one)
            if name is not None:
                stored = await self._read(pod.metadata.namespace, name)
                check_usable(pod, stored, made=bool(one.resource_claim_template_name))
                found.append(stored)
        async with self._locked(claim.key for claim in found):
            for stored in found:  # all drivers are there before the first one is called
                for driver in stored.drivers:
                    self.drivers.get(driver)
            await self._prepare(pod.metadata.uid, found)

    async def _read(self, namespace: str, name: str) -> KubeletClaim:
        try:
            return await self._client.get(KubeletClaim, name, namespace)
        except KubekitError as error:
            raise Retryable(f"fetch ResourceClaim {name}: {error}") from error

    async def _prepare(self, pod: str, found: list[KubeletClaim]) -> None:
        unready: dict[str, NodePreparedClaim] = {}
        for stored in found:
            claim = self._claims.setdefault(stored.key, stored.on_node())
            if claim.uid != stored.metadata.uid:
                text = f"old ResourceClaim with same name {claim.name} and different UID {claim.uid} still exists"
                raise Retryable(f"{text} (previous pod force-deleted?!)")
            claim.pods.add(pod)
            if not claim.prepared:
                unready[claim.uid] = claim
        self._save()
        for driver, claims in _by_driver(unready.values()).items():
            await self._prepare_with(self.drivers.get(driver), claims)
        for claim in unready.values():
            claim.prepared = True
        self._save()

    async def _prepare_with(self, driver: DriverInstance, claims: dict[str, NodePreparedClaim]) -> None:
        answer = await driver.prepare([_message(claim) for claim in claims.values()])
        _check_answer("NodePrepareResources", answer.claims, claims)
        for uid, result in answer.claims.items():
            claims[uid].drivers[driver.driver] = tuple(
                PreparedDevice(
                    one.pool_name,
                    one.device_name,
                    tuple(one.request_names),
                    tuple(one.cdi_device_ids),
                    one.share_id if one.HasField("share_id") else None,
                )
                for one in result.devices
            )

    # -- unprepare ---------------------------------------------------------------------------------------------------

    async def unprepare(self, pod: str) -> None:
        """End the claims that no other pod of the node uses. Raises Retryable where that failed.

        Args:
            pod: the uid of a pod none of whose containers runs.
        """
        async with self._locked([claim.key for claim in self._claims.values() if pod in claim.pods]):
            held = [claim for claim in self._claims.values() if pod in claim.pods]
            last = {claim.uid: claim for claim in held if len(claim.pods) == 1}
            for driver, claims in _by_driver(last.values()).items():
                answer = await self.drivers.get(driver).unprepare([_message(claim) for claim in claims.values()])
                _check_answer("NodeUnprepareResources", answer.claims, claims)
            for claim in held:
                claim.pods.discard(pod)
                if not claim.pods:
                    del self._claims[claim.key]
            if held:
                self._save()

    # -- containers --------------------------------------------------------------------------------------------------

    def cdi_devices(self, pod: KubeletPod, container: SpecContainer) -> tuple[str, ...]:
        """Return the names of the CDI devices that a container gets. Raises Retryable where a claim is not prepared."""
        found: dict[str, None] = {}
        for _, _, claim, devices in self.devices(pod, container):
            if claim is None:
                raise Retryable("its claims are not prepared")
            found.update((name, None) for _, one in devices for name in one.cdi)
        return tuple(found)

    def devices(
        self, pod: KubeletPod, container: SpecContainer
    ) -> Iterator[tuple[str, str, NodePreparedClaim | None, list[tuple[str, PreparedDevice]]]]:
        """Yield what a container gets: the pod's name for the claim, the request, the claim, (driver, device).

        The claim is None while the node does not know it.
        """
        named = {one.name: one for one in pod.spec.resource_claims}
        for wanted in container.resources.claims:
            name = claim_name(pod, named[wanted.name]) if wanted.name in named else None
            if name is None:
                continue
            claim = self._claims.get(f"{pod.metadata.namespace}/{name}")
            yield (
                wanted.name,
                wanted.request,
                claim,
                [
                    (driver, one)
                    for driver, devices in (claim.drivers if claim is not None else {}).items()
                    for one in devices
                    if one.serves(wanted.request)
                ],
            )

    def describe(self, pod: KubeletPod, container: SpecContainer, rows: Any) -> None:
        """Add the container's claims to the `dynamic_resources` of pod-resources."""
        described: dict[str, Any] = {}
        for _, _, claim, devices in self._known_devices(pod, container):
            if claim is None:
                continue
            if claim.key not in described:
                described[claim.key] = rows.add(claim_name=claim.name, claim_namespace=claim.namespace)
            for driver, one in devices:
                described[claim.key].claim_resources.add(
                    cdi_devices=[{"name": name} for name in one.cdi],
                    driver_name=driver,
                    pool_name=one.pool,
                    device_name=one.name,
                )

    # -- health ------------------------------------------------------------------------------------------------------

    def resources_status(self, pod: KubeletPod) -> dict[str, list[dict[str, Any]]]:
        """Return `allocatedResourcesStatus` of the containers that have devices, by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        now = self._clock.time()
        for container in pod.spec.containers:
            rows: dict[str, dict[str, dict[str, Any]]] = {}
            for name, request, _, devices in self._known_devices(pod, container):
                row = rows.setdefault(f"claim:{name}/{request}" if request else f"claim:{name}", {})
                for driver, one in devices:
                    health = self._health.of((driver, one.pool, one.name), now)
                    identity = one.cdi[0] if one.cdi else f"{driver}/{one.pool}/{one.name}"
                    message = {"message": health.message} if health.message else {}
                    row.setdefault(identity, {"resourceID": identity, "health": health.health, **message})
            listed = [{"name": name, "resources": list(row.values())} for name, row in rows.items() if row]
            if listed:
                found[container.name] = listed
        return found

    def _known_devices(self, pod: KubeletPod, container: SpecContainer) -> Any:
        try:
            return list(self.devices(pod, container))
        except Retryable:
            return []

    def _on_health(self, driver: str, report: health_pb.NodeWatchResourcesResponse | None) -> None:
        if report is None:
            changed = self._health.forget(driver)
        else:
            changed = self._health.report(driver, report.devices, self._clock.time())
            self._expiry.set()
        self._tell(changed)

    def _tell(self, devices: set[DeviceKey]) -> None:
        """Have the status of the pods with these devices written."""
        pods = {
            uid
            for claim in self._claims.values()
            for driver, held in claim.drivers.items()
            if any((driver, one.pool, one.name) in devices for one in held)
            for uid in claim.pods
        }
        if pods:
            self._changed(pods)

    async def _expire(self) -> None:
        while True:
            self._expiry.clear()
            due = self._health.next_expiry()
            if due is None:
                await self._expiry.wait()
                continue
            # NB: a report is too old after its time, not at it.
            await first_of(self._expiry.wait(), self._clock.sleep(due - self._clock.time() + 0.1))
            self._tell(self._health.expired(self._clock.time()))


def _by_driver(claims: Iterable[NodePreparedClaim]) -> dict[str, dict[str, NodePreparedClaim]]:
    found: dict[str, dict[str, NodePreparedClaim]] = {}
    for claim in claims:
        for driver in claim.drivers:
            found.setdefault(driver, {})[claim.uid] = claim
    return found


def _message(claim: NodePreparedClaim) -> pb.Claim:
    return pb.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)


def _check_answer(method: str, results: Any, claims: dict[str, NodePreparedClaim]) -> None:
    """Raise Retryable unless an answer has a good result for each claim."""
    for uid, result in results.items():
        if uid not in claims:
            raise Retryable(f"{method} returned result for unknown claim UID {uid}")
        if result.error:
            raise Retryable(f"{method} failed for ResourceClaim {claims[uid].name}: {result.error}")
    if missing := len(claims) - len(results):
        raise Retryable(f"{method} skipped {missing} ResourceClaims")
