"""Finds which container holds which GPU, from the kubelet's pod-resources socket at each scrape (2 ms).

Invariant: metrics never wait for pods or fail because of them; without an answer they have no pod labels, and the log
says so once.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplane import names
from gpuplane.exporter.render import GPUHolder
from kubekit.pod_resources import PodResourcesClient
from kubekit.rpc import RpcError

if TYPE_CHECKING:
    from kubekit.protocol.podresources_pb2 import ListPodResourcesResponse

log = logging.getLogger("gpuplane.exporter")

# What the names of GPU resources begin with.
PREFIXES: Final = ("nvidia.com/", names.VCUDA_CORE, names.VCUDA_MEMORY, names.ALPHA_GPU)
WHOLE: Final = 100  # ids of vcuda-core that are one GPU
# A replica of a shared GPU: `UUID::3` of NVIDIA's plugin and ours, `nvidia0/vgpu3` of GKE's.
_REPLICA: Final = re.compile(r"(?P<device>.+?)(?:::|/vgpu)(?P<replica>\d+)")


def split_replica(device_id: str) -> tuple[str, str]:
    """(`GPU-1`, `3`) of `GPU-1::3`; the second is "" for a whole device."""
    found = _REPLICA.fullmatch(device_id)
    return (found["device"], found["replica"]) if found else (device_id, "")


def holders(answer: ListPodResourcesResponse, prefixes: tuple[str, ...] = PREFIXES) -> dict[str, list[GPUHolder]]:
    """Device id without its replica -> who holds it, from the kubelet's answer.

    A share has an id for each percent and each 256 MiB; its holder is reported once, as for a whole GPU.

    Args:
        prefixes: prefixes of the names of GPU resources. Ids of other devices do no harm: no GPU has them.
    """
    found: dict[str, list[GPUHolder]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            core = Counter(
                split_replica(device_id)[0]
                for devices in container.devices
                if devices.resource_name == names.VCUDA_CORE
                for device_id in devices.device_ids
            )
            for devices in container.devices:
                if not devices.resource_name.startswith(prefixes):
                    continue
                share = devices.resource_name in (names.VCUDA_CORE, names.VCUDA_MEMORY)
                for device_id in devices.device_ids:
                    device, replica = split_replica(device_id)
                    replica = "" if share else replica
                    part = share and core[device] < WHOLE
                    holder = GPUHolder(pod.namespace, pod.name, container.name, replica, part=part)
                    known = found.setdefault(device, [])
                    if holder not in known:
                        known.append(holder)
    return found


class GPUHolders:
    """The containers that hold GPUs, by the kubelet whose directory is `kubelet_dir`.

    Args:
        resources: GPU resources next to those that are known.
    """

    def __init__(
        self,
        kubelet_dir: Path,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        resources: tuple[str, ...] = (),
    ) -> None:
        self._kubelet = PodResourcesClient(kubelet_dir, sleep)
        self._prefixes = (*PREFIXES, *resources)
        self._said = ""

    async def holders(self) -> dict[str, list[GPUHolder]]:
        """As `holders`; empty when the kubelet does not answer."""
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
        return holders(answer, self._prefixes)

    def _say(self, text: str) -> None:
        if text != self._said:
            if text:
                log.warning(text)
            else:
                log.info("pod labels available again")
            self._said = text
