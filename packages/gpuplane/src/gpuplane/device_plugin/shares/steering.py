"""Steers the kubelet's choice of ids to the GPUs of a pod's assignment, and finds the pod that has ids.

The scheduler's extender has written the assignment into the pod; where there is no extender, the node packs by itself,
with the same placement. The first call for a pod decides for all of its containers and resources.

Invariants:

- A request of a pod with an assignment gets ids of its GPUs, or none: the pod fails then, which the scheduler sees.
- While API server or kubelet does not say which pod requests, the kubelet waits for its ids, for a minute at most: with
  ids of another GPU than the assigned one a container could never start. The kubelet sets no deadline.
- Nothing is remembered that a restarted plugin could not do without: only what the kubelet never shows (init
  containers), and what was packed for a pod that is just being admitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.device_plugin.container_lookup import AdmittedContainer, KubeletContainer, PodLookup, candidates, holder
from gpuplane.device_plugin.shares.ids import by_gpu, core_of, pick
from gpuplane.device_plugin.shares.packing import node_state
from gpuplane.hardware import GPUFacts
from gpuplane.sharing import WHOLE, Assignment, Part, of_pod, request_of
from gpuplane.sharing.placement import Refusal, place
from gpuplane.sharing.placement.tightest import TightestPolicy
from kubekit.api.core import Pod
from kubekit.errors import Retryable, Terminal
from kubekit.kube import ApiError
from kubekit.rpc import RpcError

log = logging.getLogger("gpuplane.device-plugin")

_NOT_PLACED: Final = (
    "the scheduler's extender did not place this pod: make kube-scheduler ask it, see gpuplane run scheduler "
    "--print-config kube, and delete the pod"
)
_PATIENCE_SECONDS: Final = 60.0
_PAUSES_SECONDS: Final = (0.1, 0.2, 0.5, 1.0, *(2.0,) * 29)
_REMEMBERED: Final = 1000  # pods; of those that are admitted at one time there are a few


class Steering:
    """For one node, whose GPUs are `inventory`."""

    def __init__(
        self,
        pods: PodLookup,
        inventory: Sequence[GPUFacts],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pods = pods
        self._sleep = sleep
        self._gpus = tuple(inventory)
        self._health: Mapping[str, str] = {}
        self._turn = asyncio.Lock()  # the kubelet admits one pod at a time; plans must not cross
        self._passed: dict[tuple[str, str, str], frozenset[str]] = {}
        self._plans: dict[str, Assignment] = {}

    def set_health(self, health: Mapping[str, str]) -> None:
        self._health = health

    async def choose(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...] | None:
        """Return the ids for the container that the kubelet admits; None when no pod is found that requests them.

        Raises:
            KubekitError: the pod's assignment cannot be met, or it has none and the node has no room.
        """
        async with self._turn:
            found = await self._requesting(resource, size)
            if found is None:
                return None
            shown, admitted = found
            if admitted is None:
                log.warning("no pod requests resource=%s count=%d", resource, size)
                return None
            parts = await self._parts(admitted, shown)
            ids = pick(self._wanted(parts, resource, size, available, must), available, must)
            self._passed[admitted.pod.metadata.uid, admitted.container, resource] = frozenset(ids)
            while len(self._passed) > _REMEMBERED:
                del self._passed[next(iter(self._passed))]
            return ids

    async def _requesting(
        self, resource: str, size: int
    ) -> tuple[tuple[KubeletContainer, ...], AdmittedContainer | None] | None:
        """The kubelet's containers, and the one that requests; None where API server or kubelet is too late."""
        problem: object = f"no answer within {_PATIENCE_SECONDS:g} s"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                for pause in (0.0, *_PAUSES_SECONDS):
                    if pause:
                        await self._sleep(pause)
                    try:
                        shown = await self._pods.shown()
                        return shown, await self._admitted(shown, resource, size)
                    except (RpcError, ApiError) as error:
                        problem = error
                        if isinstance(error, Terminal):
                            break
        log.warning("requesting pod unknown resource=%s count=%d: %s", resource, size, problem)
        return None

    async def holder(self, resource: str, ids: Sequence[str]) -> tuple[AdmittedContainer, Part]:
        """Find the holder of these core ids, which are a part of one GPU, and the part that this container may use.

        Raises:
            Retryable: that is unknown (now).
            Terminal: the pod is assigned another GPU than it holds.
        """
        try:
            shown = await self._pods.shown()
            found = await self._shown_or_passed(shown, resource, ids)
        except (RpcError, ApiError) as error:
            raise Retryable(f"pod-resources cannot be read: {error}", where=resource) from error
        if found is None:
            raise Retryable("the kubelet lists no container that holds these ids", where=resource)
        return found, self.prove(found, core_of(ids))

    def prove(self, found: AdmittedContainer, held: Mapping[str, int]) -> Part:
        """Return the part that a container with these ids may use.

        Args:
            held: UUID -> percent.

        Raises Terminal when its pod is assigned another GPU, or asks for another part.
        """
        [(uuid, core)] = held.items()
        where = f"{'/'.join(_key(found.pod))}:{found.container}"
        gpu = next((gpu for gpu in self._gpus if gpu.uuid == uuid), None)
        if gpu is None:
            raise Terminal(f"it holds {core}% of {uuid}, which this node does not have", where=where)
        assignment = of_pod(found.pod)
        for part in assignment.containers.get(found.container, ()) if assignment is not None else ():
            if (part.uuid or uuid) != uuid or part.index != gpu.index:
                raise Terminal(f"GPU {part.index} is assigned, and it holds {core}% of GPU {gpu.index}", where=where)
        ask = next((ask for ask in request_of(found.pod).asks if ask.container == found.container), None)
        if ask is None or ask.core != core:
            raise Terminal(f"it holds {core}% of GPU {gpu.index}, which differs from its request", where=where)
        return Part(uuid, gpu.index, core, ask.memory_mib or (gpu.memory_bytes >> 20) * core // WHOLE)

    async def _shown_or_passed(
        self, shown: tuple[KubeletContainer, ...], resource: str, ids: Sequence[str]
    ) -> AdmittedContainer | None:
        # An init container first: the kubelet shows what it passes on with the main container only.
        wanted = frozenset(ids)
        one = holder(shown, resource, wanted)
        if one is not None:
            pods = await self._pods.find([(one.namespace, one.pod)])
            pod = pods.get((one.namespace, one.pod))
            return AdmittedContainer(pod, one.container) if pod is not None else None
        pods = await self._pods.find({(entry.namespace, entry.pod) for entry in shown})
        by_uid = {pod.metadata.uid: pod for pod in pods.values()}
        for (uid, container, passed), given in reversed(self._passed.items()):
            if passed == resource and given == wanted and uid in by_uid:
                return AdmittedContainer(by_uid[uid], container)
        return None

    async def _admitted(
        self, shown: tuple[KubeletContainer, ...], resource: str, size: int
    ) -> AdmittedContainer | None:
        pods = await self._pods.find({(one.namespace, one.pod) for one in shown})
        found = candidates(shown, pods, resource, size, self._passed)
        # NB: the watch may lag: for a pod that was deleted and created again under its name it has the old one.
        living = [pod for one in found if (pod := await self._newest(one.pod)) is not None]
        current = candidates(shown, {_key(pod): pod for pod in living}, resource, size, self._passed)
        current = [one for one in current if one.pod.metadata.deletion_timestamp is None] or current
        if len(current) > 1:
            log.warning(
                "requesting pod ambiguous candidates=%d count=%d resource=%s pods=%s",
                len(current),
                size,
                resource,
                ",".join("/".join(_key(one.pod)) for one in current),
            )
        # The one that came last: pods before it had their turn, and are about to be rejected or gone.
        return max(current, key=lambda one: int(one.pod.metadata.resource_version or 0), default=None)

    async def _newest(self, pod: Pod) -> Pod | None:
        """The pod as the server has it, or as it was seen last where the server does not answer."""
        try:
            return await self._pods.now(*_key(pod))
        except ApiError as error:
            log.warning("pod not readable, using the cached one pod=%s: %s", "/".join(_key(pod)), error)
            return pod

    async def _parts(self, admitted: AdmittedContainer, shown: tuple[KubeletContainer, ...]) -> tuple[Part, ...]:
        pod = admitted.pod
        assignment = of_pod(pod) or self._plans.get(pod.metadata.uid)
        if assignment is None:
            assignment = await self._packed(pod, shown)
            self._plans[pod.metadata.uid] = assignment
            while len(self._plans) > _REMEMBERED:
                del self._plans[next(iter(self._plans))]
        by_index = {gpu.index: gpu for gpu in self._gpus}
        by_uuid = {gpu.uuid: gpu for gpu in self._gpus}
        parts = []
        for part in assignment.containers.get(admitted.container, ()):
            gpu = by_uuid.get(part.uuid) if part.uuid else by_index.get(part.index)
            if gpu is None:
                raise Terminal(
                    f"GPU {part.uuid or part.index} is assigned, which this node does not have",
                    where="/".join(_key(pod)),
                    cure="delete the pod; it is placed again",
                )
            parts.append(msgspec.structs.replace(part, uuid=gpu.uuid, index=gpu.index))
        return tuple(parts)

    async def _packed(self, pod: Pod, shown: tuple[KubeletContainer, ...]) -> Assignment:
        """Place a pod that no extender has placed, on what other pods leave free."""
        request = request_of(pod)
        # The kubelet shows pods that have ended too, for a while, and gives their devices to others.
        pods = await self._pods.find({(one.namespace, one.pod) for one in shown})
        ended = {key for key, other in pods.items() if other.status.ended} | {_key(pod)}
        others = [one for one in shown if (one.namespace, one.pod) not in ended]
        placed = place(node_state(self._gpus, self._health, others), request, TightestPolicy())
        if isinstance(placed, Refusal):
            raise Terminal(placed.reason, where="/".join(_key(pod)), cure=_NOT_PLACED)
        log.info("placing pod without assignment pod=%s", "/".join(_key(pod)))
        return placed.assignment

    def _wanted(
        self, parts: Sequence[Part], resource: str, size: int, available: Sequence[str], must: Sequence[str]
    ) -> dict[str, int]:
        """UUID -> how many ids of the resource: by core, or memory where the share's GPU has it."""
        if resource == names.VCUDA_CORE:
            wanted = {part.uuid: part.core for part in parts}
        elif resource != names.VCUDA_MEMORY:
            wanted = {part.uuid: 1 for part in parts}
        elif len(parts) == 1:
            wanted = {parts[0].uuid: size}
        else:
            # With whole GPUs memory counts for nothing, but the ids have to be of some GPU: of theirs, one by one.
            free = {uuid: len(ids) for uuid, ids in by_gpu({*available, *must}).items()}
            wanted, left = {}, size
            for part in parts:
                wanted[part.uuid] = min(left, free.get(part.uuid, 0))
                left -= wanted[part.uuid]
        if sum(wanted.values()) != size:
            raise Terminal(
                f"{size} of {resource} are requested, {sum(wanted.values())} are assigned",
                cure="delete the pod; it is placed again",
            )
        return wanted


def _key(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace, pod.metadata.name
