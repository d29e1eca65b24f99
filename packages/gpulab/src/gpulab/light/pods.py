"""One pod of a light node: devices, its operands as coroutines, and its status in as few writes as that takes.

The same decisions as a full node's (`kubelet.lifecycle`), without anything to start: a container of another image
runs as soon as it is there; one of the vectorAdd image has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpulab.images import IMAGES
from gpulab.light.operands import is_program, operand, operand_name, write_config_maps
from gpulab.light.process import log_path
from gpulab.light.world import PASSED
from kubekit.api.quantity import whole
from kubekit.errors import InvalidInput, KubekitError, Retryable
from kubekit.kube import ApiError, Conflict, NotFound
from tinykube.images import ImageMissing
from tinykube.kubelet.lifecycle import NEVER_SEEN, Ended, ObservedContainer, decide
from tinykube.kubelet.pod import KubeletPod, SpecContainer, all_containers, every_container, passing
from tinykube.kubelet.status import pod_status

if TYPE_CHECKING:
    from gpulab.light.nodes import LightNode, LightNodes

log = logging.getLogger("gpulab.light-nodes")

_RETRY_SECONDS: Final = 2.0
_VECTOR_ADD: Final = "gpuplane.validator.vectoradd"


class LightPod:
    """Runs one pod; `run` returns when it is gone."""

    def __init__(self, nodes: LightNodes, node: LightNode, pod: KubeletPod) -> None:
        self.nodes = nodes
        self.node = node
        self.pod = pod
        self.seen: dict[str, ObservedContainer] = {}
        self._gone = False
        self._poke = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._written: dict[str, Any] | None = None
        self._failure: tuple[str, str] | None = None
        self._begun = nodes.clock()
        self.address = "127.0.0.1"

    def update(self, pod: KubeletPod) -> None:
        # Our own status write comes back as an event; only what changes the plan is worth a look.
        ending = pod.metadata.deletion_timestamp != self.pod.metadata.deletion_timestamp
        self.pod = pod
        if ending:
            self._poke.set()

    def vanish(self) -> None:
        self._gone = True
        self._poke.set()

    async def run(self) -> None:
        try:
            self._admit()
            while not await self._step():
                pass
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            self.node.kubelet.release(self.pod.metadata.uid)

    def _admit(self) -> None:
        meta = self.pod.metadata
        for container in all_containers(self.pod):
            for resource, amount in container.resources.limits.items():
                if "/" in resource and self._failure is None and meta.deletion_timestamp is None:
                    problem = self.node.kubelet.allocate(
                        meta.uid, container.name, resource, whole(amount), passing(self.pod)
                    )
                    if problem:
                        self._failure = ("UnexpectedAdmissionError", problem)

    async def _step(self) -> bool:
        self._poke.clear()
        plan = decide(self.pod, self.seen, self.nodes.clock(), evicted=self._gone or self._failure is not None)
        try:
            # NB: a thousand operands that start in one turn of the loop would keep it from everything else for seconds.
            async with self.nodes.starting if plan.start else contextlib.nullcontext():
                while plan.stop or plan.start:
                    for stop in plan.stop:
                        await self._stop(stop.name)
                    for name in plan.start:
                        self._start(name)
                    plan = decide(
                        self.pod, self.seen, self.nodes.clock(), evicted=self._gone or self._failure is not None
                    )
                over = plan.finished is not None and self.pod.metadata.deletion_timestamp is not None
                if not self._gone and not over:  # the end of a pod that the next request deletes has no reader
                    await self._report(plan)
            if plan.finished is not None:
                self.node.kubelet.release(self.pod.metadata.uid)
                if self._gone or self.pod.metadata.deletion_timestamp is not None:
                    await self._leave()
                    return True
        except NotFound:
            self._gone = True
            self._poke.set()
        except (ApiError, Retryable) as error:
            log.warning("%s/%s: %s; trying again", self.pod.metadata.namespace, self.pod.metadata.name, error)
            await asyncio.sleep(_RETRY_SECONDS)
            return False
        if plan.wake_at is None:
            await self._poke.wait()
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poke.wait(), max(0.0, plan.wake_at - self.nodes.clock()))
        return False

    def _start(self, name: str) -> None:
        container = next(c for c in every_container(self.pod) if c.name == name)
        before = self.seen.get(name, NEVER_SEEN)
        now = self.nodes.clock()
        try:
            image = IMAGES.find(container.image)
        except ImageMissing as error:
            reason = "ImagePullBackOff" if before.waiting else "ErrImagePull"
            self.seen[name] = msgspec.structs.replace(before, waiting=(reason, error.what), retry_at=now + 10.0)
            return
        attempt = before.attempt + 1 if before.ended is not None else 0
        state = ObservedContainer(
            id=uuid.uuid4().hex * 2,
            attempt=attempt,
            started_at=now,
            previous=before.ended,
            crashes=before.crashes,
            started=True,
            ready=True,
        )
        self.seen[name] = state
        if operand_name(container):
            try:
                work = self._operand(container)
            except InvalidInput as error:
                self._end(name, 2, str(error))
                return
            self._running[name] = asyncio.create_task(self._await_end(name, work), name=f"{self.pod.metadata.name}")
        elif is_program(container):
            self.address = self.nodes.processes.address(self.pod.metadata.uid)
            self._running[name] = asyncio.create_task(self._await_process(container, attempt))
        elif _VECTOR_ADD in image.entrypoint or (container in self.pod.spec.init_containers and not container.sidecar):
            if _VECTOR_ADD in image.entrypoint:
                self._write_log(name, attempt, PASSED)
            self._end(name, 0, "")

    def _write_log(self, name: str, attempt: int, text: str) -> None:
        path = log_path(self.node.root, self.pod, name, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{self.nodes.now()} stdout F {line}\n" for line in text.splitlines()))

    async def _await_process(self, container: SpecContainer, attempt: int) -> None:
        nodes = self.nodes
        try:
            code = await nodes.processes.run(self.node, self.pod, container, attempt, nodes.now())
            self._end(container.name, code, "")
        except KubekitError as error:
            log.warning("%s: %s does not start: %s", self.node.name, container.name, error)
            self._end(container.name, 128, str(error))
        self._poke.set()

    def _operand(self, container: SpecContainer) -> Coroutine[Any, Any, None]:
        node = self.node
        return operand(
            self.pod,
            container,
            root=node.root,
            client=self.nodes.accounts.client(self.pod),
            host=node.host,
            hardware=node.hardware,
            kubelet=node.kubelet,
            now=self.nodes.now,
        )

    async def _await_end(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        container = next(c for c in every_container(self.pod) if c.name == name)
        try:
            while True:
                if await write_config_maps(self.nodes.client, self.pod, container, self.node.root):
                    break
                await asyncio.sleep(_RETRY_SECONDS)  # as a kubelet, which starts nothing without its volumes
            await work
            self._end(name, 0, "")
        except KubekitError as error:
            log.warning("%s: %s ended: %s", self.node.name, name, error)
            self._end(name, 1, str(error))
        except Exception as error:
            log.exception("%s: %s crashed", self.node.name, name)
            self._end(name, 1, repr(error))
        finally:
            work.close()
        self._poke.set()

    def _end(self, name: str, code: int, message: str) -> None:
        state = self.seen[name]
        now = self.nodes.clock()
        reason = "Completed" if code == 0 else "Error"
        ended = Ended(state.id, code, 0, reason, message[:4096], state.started_at or now, now)
        self.seen[name] = ObservedContainer(
            id=state.id, attempt=state.attempt, ended=ended, previous=state.previous, crashes=state.crashes + 1
        )

    async def _stop(self, name: str) -> None:
        task = self._running.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.seen[name].running:
            self._end(name, 0, "")

    async def _report(self, plan: Any) -> None:
        status = pod_status(
            self.pod,
            self.seen,
            plan,
            now=self.nodes.clock(),
            started_at=self._begun,
            host_ip="127.0.0.1",
            pod_ip=self.address,
            runtime=self.node.machine.runtime,
            failure=self._failure,
        )
        if status == self._written:
            return
        meta = self.pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": status}
        try:
            await self.nodes.client.patch(KubeletPod, meta.name, body, meta.namespace, "strategic", "status")
        except Conflict as error:
            raise NotFound(f"pod {meta.name} was replaced") from error
        self._written = status

    async def _leave(self) -> None:
        meta = self.pod.metadata
        if not self._gone:
            with contextlib.suppress(NotFound, Conflict):
                await self.nodes.client.delete(KubeletPod, meta.name, meta.namespace, meta.uid, grace_seconds=0)
