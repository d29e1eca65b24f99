"""A controller and a kubelet in miniature: evicted pods end, and others of the same shape take their places.

Without sets it is the kubelet alone, for a cluster whose controllers are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

from gpuplane import names
from kubekit.api.core import Pod
from kubekit.errors import KubekitError
from kubekit.kube import Client, Informer
from tests.support.extender_world import gpu_pod
from tests.support.scheduled_pods import ours


class Workloads:
    """Sets of equal pods, each with a controller. `ends`: whether evicted pods end; `creates`: whether others follow.

    `deleted` are the uids of pods that are gone or terminating, in the order in which that was seen.
    """

    def __init__(self, client: Client) -> None:
        self.ends = self.creates = True
        self.deleted: list[str] = []
        self.failures: list[KubekitError] = []
        self._client = client
        self._wanted: dict[str, tuple[int, dict[str, Any]]] = {}
        self._number = itertools.count()
        self._present: set[str] = set()
        self._changed = asyncio.Event()
        self._pods: Informer[Pod] = Informer(client, Pod)
        self._pods.add_handler(lambda old, new: self._changed.set())

    def look(self) -> None:
        """Look again, after `ends` or `creates` were changed."""
        self._changed.set()

    async def add(
        self, name: str, core: int, count: int = 1, *, movable: bool = True, gpu: str = "", **spec: Any
    ) -> list[str]:
        """Create a set; return the names of its pods."""
        annotations = {names.MOVABLE_ANNOTATION: "true"} if movable else {}
        if gpu:
            annotations[names.GPU_UUIDS_ANNOTATION] = gpu
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": name, "controller": True}
        meta = {"annotations": annotations, "labels": {"app": name}, "ownerReferences": [owner]}
        pod = gpu_pod(name, (core, 0), metadata=meta) if core < 100 else gpu_pod(name, whole=core // 100, metadata=meta)
        ours(pod, **{"terminationGracePeriodSeconds": 0, **spec})
        made = [await self._create(pod) for _ in range(count)]
        self._wanted[name] = count, pod
        return made

    async def place(self, name: str, core: int, node: str, gpu: int, **more: Any) -> None:
        """Create a set of one running pod that holds a part of this GPU; its replacements may go anywhere."""
        from tests.support.fragmented import bound_pod

        pod = bound_pod(name, core, node, gpu, memory_mib=15360, **more.pop("metadata", {}))
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": name, "controller": True}
        resources = gpu_pod(name, (core, 0))["spec"]["containers"][0]["resources"]
        meta = pod["metadata"]
        keep = {key: meta[key] for key in ("name", "namespace")} | {"ownerReferences": [owner], "labels": {"app": name}}
        movable = {key: text for key, text in meta["annotations"].items() if key == names.MOVABLE_ANNOTATION}
        spec = {
            "containers": [{"name": "main", "image": "app", "resources": resources}],
            "schedulerName": names.SCHEDULER_NAME,
            "terminationGracePeriodSeconds": 0,
            **more,
        }
        first = {**keep, "annotations": meta["annotations"]}
        await self._client.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": first, "spec": {**spec, "nodeName": node}},
            resource=Pod.RESOURCE,
        )
        template = {"apiVersion": "v1", "kind": "Pod", "metadata": {**keep, "annotations": movable}, "spec": spec}
        self._wanted[name] = 1, template

    async def _create(self, pod: dict[str, Any]) -> str:
        name = f"{pod['metadata']['name']}-{next(self._number)}"
        await self._client.create({**pod, "metadata": {**pod["metadata"], "name": name}}, resource=Pod.RESOURCE)
        return name

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run())
            await self._pods.synced()
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    await self._reconcile()
                except KubekitError as error:
                    self.failures.append(error)
                    self._changed.set()
                    await asyncio.sleep(0)

    async def _reconcile(self) -> None:
        wanted = dict(self._wanted)  # NB: a set that is added meanwhile is looked at the next time
        live = dict.fromkeys(wanted, 0)
        pods = await self._client.list(Pod)  # NB: not the watch's: it may be behind what was created just now
        present = {pod.metadata.uid for pod in pods if not pod.metadata.deletion_timestamp}
        self.deleted += sorted(self._present - present)
        self._present = present
        for pod in pods:
            meta = pod.metadata
            if meta.deletion_timestamp:
                if self.ends:
                    with contextlib.suppress(KubekitError):
                        await self._client.delete(Pod, meta.name, meta.namespace, meta.uid, grace_seconds=0)
                continue
            owner = next((one.uid for one in meta.owner_references), "")
            if owner in live:
                live[owner] += 1
            if pod.spec.node_name and pod.status.phase != "Running":
                with contextlib.suppress(KubekitError):
                    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
                    await self._client.patch(Pod, meta.name, running, meta.namespace, "strategic", "status")
        for owner, (count, template) in wanted.items():
            for _ in range(count - live[owner] if self.creates else 0):
                await self._create(template)


@contextlib.asynccontextmanager
async def workloads(client: Client) -> AsyncIterator[Workloads]:
    made = Workloads(client)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert not made.failures, made.failures
