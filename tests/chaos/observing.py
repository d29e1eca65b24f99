"""The state of a chaos run's cluster: pods from the API server, devices from the kubelets, pages from the nodes."""

from __future__ import annotations

import contextlib

from gpuplane import names
from gpuplane.limits import ShareStore
from gpuplane.sharing import of_pod
from kubekit.api.core import Pod
from kubekit.errors import KubekitError
from kubekit.kube import Client
from kubekit.pod_resources import PodResourcesClient
from tests.chaos.check import ChaosPod, ChaosState, HeldPart
from tests.chaos.world import GPUS_WHOLE, QUOTAS, SHARED, TENANTS, WHOLE, World

UNIT_MIB = 256
RESOURCES = (names.GPU_RESOURCE, names.VCUDA_CORE, names.VCUDA_MEMORY)


async def observe(world: World, client: Client) -> ChaosState:
    """Read the state once. Raises KubekitError while the API server is away.

    NB: devices and pages are read before the pods. A pod that is new since then shows no page and no device, never the
    other way round.
    """
    devices = [found for node in (WHOLE, SHARED) for found in await _devices(world, node)]
    store = ShareStore(world.root(SHARED) / names.LIMITS_DIR)
    pages = {}
    for share in store.all():
        [limit] = share.limits.gpus
        pages[share.owner.pod_uid] = HeldPart(limit.uuid, limit.core, limit.memory_bytes >> 20)
    # One list: two would be of two moments.
    pods = [_pod(pod, pages) for pod in await client.list(Pod) if pod.metadata.namespace in TENANTS]
    return ChaosState(
        pods=tuple(pods),
        devices=tuple(devices),
        gpus={SHARED: world.gpus},
        whole={WHOLE: GPUS_WHOLE},
        quotas=QUOTAS,
    )


async def _devices(world: World, node: str) -> list[tuple[str, str, str]]:
    """Devices of each container, as the node's kubelet lists them; none while it does not answer."""
    with contextlib.suppress(KubekitError, OSError):
        answer = await PodResourcesClient(world.root(node) / "var/lib/kubelet").list()
        return [
            (node, held.resource_name, device)
            for pod in answer.pod_resources
            for container in pod.containers
            for held in container.devices
            if held.resource_name in RESOURCES
            for device in held.device_ids
        ]
    return []


def _pod(pod: Pod, pages: dict[str, HeldPart]) -> ChaosPod:
    meta, limits = pod.metadata, pod.spec.containers[0].resources.limits
    parts: tuple[HeldPart, ...] = ()
    if names.VCUDA_CORE in limits and (assignment := of_pod(pod)) is not None and pod.spec.node_name:
        parts = tuple(HeldPart(p.uuid, p.core, p.memory_mib) for each in assignment.containers.values() for p in each)
    return ChaosPod(
        name=f"{meta.namespace}/{meta.name}",
        namespace=meta.namespace,
        uid=meta.uid,
        phase=pod.status.phase,
        node=pod.spec.node_name,
        core=int(limits.get(names.VCUDA_CORE, 0)),
        memory_mib=int(limits.get(names.VCUDA_MEMORY, 0)) * UNIT_MIB,
        whole=int(limits.get(names.GPU_RESOURCE, 0)),
        parts=parts,
        page=pages.get(meta.uid),
        leaving=bool(meta.deletion_timestamp),
    )
