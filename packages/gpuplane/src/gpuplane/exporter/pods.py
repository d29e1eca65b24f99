"""Finds which container holds which GPU, from the kubelet's pod-resources socket at each scrape (2 ms).

Invariant: metrics never wait for pods or fail because of them; without an answer they have no pod labels, and the log
says so once.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplane import names
from gpuplane.exporter.claims import AdminClaims, ClaimedDevice, claimed_gpus
from gpuplane.exporter.render import GPUHolder
from kubekit.pod_resources import PodResourcesClient
from kubekit.rpc import RpcError

if TYPE_CHECKING:
    from kubekit.protocol.podresources_pb2 import (
        AllocatableResourcesResponse,
        ContainerResources,
        ListPodResourcesResponse,
    )

log = logging.getLogger("gpuplane.exporter")

# The names of GPU resources begin with these.
PREFIXES: Final = ("nvidia.com/", names.VCUDA_CORE, names.VCUDA_MEMORY, names.ALPHA_GPU)
WHOLE: Final = 100  # ids of vcuda-core that are one GPU
MEMORY_UNIT: Final = 256 << 20  # bytes of an id of vcuda-memory
SHARES: Final = (names.VCUDA_CORE, names.VCUDA_MEMORY)
# These stand before the number of a replica: `UUID::3` of NVIDIA's plugin and ours, `nvidia0/vgpu3` of GKE's.
REPLICA_SIGNS: Final = ("::", "/vgpu")
# A whole GPU as NVIDIA's driver of resource claims names it, by the number of its device node.
CLAIMED_GPU: Final = re.compile(r"gpu-(\d{1,4})")
REPLICAS_NS: Final = 60 * 10**9  # after which the kubelet is asked again how many there are


def split_replica(device_id: str) -> tuple[str, str]:
    """(`GPU-1`, `3`) of `GPU-1::3`; the second is "" for a whole device."""
    for sign in REPLICA_SIGNS:
        device, _, replica = device_id.rpartition(sign)
        if device and replica.isdecimal():
            return device, replica
    return device_id, ""


def holders(
    answer: ListPodResourcesResponse,
    prefixes: tuple[str, ...] = PREFIXES,
    administrative: Collection[ClaimedDevice] = (),
) -> dict[str, list[GPUHolder]]:
    """Device id without its replica -> who holds it, from the kubelet's answer.

    A share has an id for each percent and each 256 MiB; its holder is reported once, as for a whole GPU.

    Args:
        prefixes: prefixes of the names of GPU resources. Ids of other devices do no harm: no GPU has them.
        administrative: devices of claims that their containers do not hold.
    """
    found: dict[str, list[GPUHolder]] = {}
    for pod in answer.pod_resources:
        # NB: each attribute of a message is decoded when it is read; this runs in every scrape.
        namespace, pod_name = pod.namespace, pod.name
        for container in pod.containers:
            name = container.name
            for device, replica, share in _held(container, prefixes):
                percent, size = share or (0, 0)
                part = share is not None
                holder = GPUHolder(
                    namespace, pod_name, name, replica, part=part, share_percent=percent, share_bytes=size
                )
                known = found.setdefault(device, [])
                if holder not in known:
                    known.append(holder)
            for device in _claimed(container, administrative):
                found.setdefault(device, []).append(GPUHolder(namespace, pod_name, name, claim=True))
    return found


def _claimed(container: ContainerResources, administrative: Collection[ClaimedDevice]) -> Iterator[str]:
    """Yield the device nodes' names of the GPUs that a container holds by resource claims, each once."""
    held = (one.device for one in claimed_gpus(container) if one not in administrative)
    named = map(CLAIMED_GPU.fullmatch, held)
    yield from dict.fromkeys(f"nvidia{int(one[1])}" for one in named if one is not None)


def _held(
    container: ContainerResources, prefixes: tuple[str, ...]
) -> Iterator[tuple[str, str, tuple[int, int] | None]]:
    """Yield of each GPU that a container holds: device id, replica, and percent and bytes where it holds a share."""
    shares: dict[str, list[str]] = {}
    for devices in container.devices:
        resource = devices.resource_name
        if resource in SHARES:
            shares.setdefault(resource, []).extend(split_replica(device_id)[0] for device_id in devices.device_ids)
        elif resource.startswith(prefixes):
            for device_id in devices.device_ids:
                yield *split_replica(device_id), None
    if shares:
        core, memory = Counter(shares.get(names.VCUDA_CORE)), Counter(shares.get(names.VCUDA_MEMORY))
        for device in dict.fromkeys(chain.from_iterable(shares.values())):
            share = (core[device], memory[device] * MEMORY_UNIT)
            yield device, "", share if core[device] < WHOLE else None


def replicas(answer: AllocatableResourcesResponse) -> dict[str, int]:
    """Return how many replicas the kubelet can allocate of each device: device id without its replica -> number."""
    own = (devices.device_ids for devices in answer.devices if devices.resource_name not in SHARES)
    ids = chain.from_iterable(own)
    return Counter(device for device, replica in map(split_replica, ids) if replica)


class GPUHolders:
    """The containers that hold GPUs, by the kubelet whose directory is `kubelet_dir`.

    `answered`: whether the kubelet answered the last question about holders.

    Args:
        resources: GPU resources next to those that are known.
        claims: finds the claims that hold no GPU; without it all do.
    """

    def __init__(
        self,
        kubelet_dir: Path,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        resources: tuple[str, ...] = (),
        claims: AdminClaims | None = None,
    ) -> None:
        self._kubelet = PodResourcesClient(kubelet_dir, sleep)
        self._claims = claims
        self._prefixes = (*PREFIXES, *resources)
        self._said = ""
        self.answered = False
        self._replicas: dict[str, int] = {}
        self._replicas_of: frozenset[str] = frozenset()
        self._replicas_at_ns = 0

    async def holders(self) -> dict[str, list[GPUHolder]]:
        """As `holders`; empty when the kubelet does not answer."""
        self.answered = False
        socket = self._kubelet.socket
        if not socket.exists():
            self._say(f"no pod labels: there is no {socket}; mount the kubelet's directory, or give --kubelet-dir")
            return {}
        try:
            answer = await self._kubelet.list()
        except RpcError as error:
            self._say(f"no pod labels: the kubelet answers {error.status.name} {error.details}".rstrip())
            return {}
        self._say("")
        self.answered = True
        if self._claims is None:
            return holders(answer, self._prefixes)
        containers = (container for pod in answer.pod_resources for container in pod.containers)
        claimed = chain.from_iterable(map(claimed_gpus, containers))
        return holders(answer, self._prefixes, await self._claims.administrative(claimed))

    async def replicas(self, held: Iterable[str], at_ns: int) -> Mapping[str, int]:
        """As `replicas`; empty when the kubelet does not answer.

        The kubelet is asked when other devices are `held` than at the last question, and once a minute: the question
        takes as long as that about holders, and the answer changes with the device plugin's configuration only.
        """
        devices = frozenset(held)
        if not self._replicas or devices != self._replicas_of or at_ns - self._replicas_at_ns > REPLICAS_NS:
            try:
                self._replicas = replicas(await self._kubelet.allocatable())
            except RpcError:
                self._replicas = {}
            self._replicas_of, self._replicas_at_ns = devices, at_ns
        return self._replicas

    def _say(self, text: str) -> None:
        if text != self._said:
            if text:
                log.warning(text)
            else:
                log.info("pod labels available again")
            self._said = text
