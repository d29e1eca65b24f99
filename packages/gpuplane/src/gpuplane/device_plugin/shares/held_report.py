"""Writes into GPUNode which pod holds how much of which GPU, as the kubelet has given it: the extender compares it with
what pods say of themselves.

Invariants: only running pods are reported, by their uid, since for them the kubelet lists no predecessor's ids; a write
only for a change, and at most one in `SECONDS`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.device_plugin.container_lookup import KubeletContainer
from gpuplane.device_plugin.shares.ids import by_gpu
from gpuplane.operand import OperandContext
from gpuplane.sharing import WHOLE
from kubekit.api.core import Pod
from kubekit.errors import KubekitError

log = logging.getLogger("gpuplane.device-plugin")

SECONDS: Final = 5.0
MANAGER: Final = names.FIELD_MANAGER_PREFIX + "held"
Held = dict[str, dict[str, int]]
"""UUID -> uid of a pod -> percent of core."""


class PodLister(Protocol):
    async def shown(self) -> tuple[KubeletContainer, ...]: ...

    def all(self) -> Iterable[Pod]: ...


def held(shown: Iterable[KubeletContainer], pods: Iterable[Pod], uuids: Iterable[str]) -> Held:
    """Return the parts of these GPUs that the kubelet has allocated to running pods."""
    running = {
        (pod.metadata.namespace, pod.metadata.name): pod.metadata.uid for pod in pods if pod.status.phase == "Running"
    }
    known, found = frozenset(uuids), Held()
    for one in shown:
        uid = running.get((one.namespace, one.pod), "")
        for resource, ids in one.ids.items():
            if not uid or resource == names.VCUDA_MEMORY:
                continue
            for uuid, mine in by_gpu(ids).items():
                if uuid in known:
                    of_gpu = found.setdefault(uuid, {})
                    core = len(mine) if resource == names.VCUDA_CORE else WHOLE
                    of_gpu[uid] = of_gpu.get(uid, 0) + core
    return found


def change(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """The merge patch that leads from one to the other."""
    found: dict[str, Any] = {}
    for uuid in before.keys() | after.keys():
        old, new = before.get(uuid, {}), after.get(uuid)
        if new is None:
            found[uuid] = None
        elif new != old:
            found[uuid] = {**dict.fromkeys(old.keys() - new.keys()), **new}
    return found


class HeldReport:
    """Of one node, whose GPUs have these UUIDs."""

    def __init__(self, context: OperandContext, pods: PodLister, uuids: Iterable[str]) -> None:
        self._context = context
        self._pods = pods
        self._uuids = tuple(uuids)
        self._written: Held | None = None  # None: the stored report is unknown

    async def run(self) -> None:
        """Until cancelled."""
        said = ""
        while True:
            try:
                await self.step()
                said = ""
            except KubekitError as error:
                if said != str(error):
                    said = str(error)
                    log.warning("held GPUs not written yet: %s", error)
                self._written = None
            await self._context.sleep(SECONDS)

    async def step(self) -> None:
        """Looks once, and writes what has changed. Raises KubekitError."""
        client, name = self._context.client, self._context.node_name
        wanted = held(await self._pods.shown(), self._pods.all(), self._uuids)
        if self._written is None:
            self._written = (await client.get(GPUNode, name)).status.held
        patch = change(self._written, wanted)
        if patch:
            await client.patch(GPUNode, name, {"status": {"held": patch}}, manager=MANAGER)
            self._written = wanted
