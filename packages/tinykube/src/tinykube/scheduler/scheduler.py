"""The scheduler's shell: follows nodes and pods, asks `decide` for one pod at a time, and binds.

A decision is made on the cache without awaiting (unless extenders are asked), counted there at once (assumed), and
bound by a task of its own, so that the next pod need not wait for the write. A binding that fails takes the assumption
back. Everything is rebuilt from the API server at start; the cache is never written anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kubekit.errors import KubekitError
from kubekit.scheduling import decide, preemption, scores
from kubekit.scheduling.cache import ClusterNode, SchedulerCache
from kubekit.scheduling.filters import Failure
from kubekit.scheduling.podinfo import DEFAULT_SCHEDULER, PodInfo
from kubekit.scheduling.queue import ERROR, EXTENDER, ClusterEvent, Queue, QueueEntry
from kubekit.scheduling.selectors import compile_selector
from kubekit.scheduling.volumes.store import VolumePlan
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.services import endpoint
from tinykube.apiserver.subresources import bind
from tinykube.apiserver.writes import BY_SYSTEM
from tinykube.controllers.recorder import Recorder
from tinykube.scheduler.claims import ClaimBinder, ReservedClaims
from tinykube.scheduler.config import SchedulerConfig
from tinykube.scheduler.devices import DeviceTracker
from tinykube.scheduler.extender import ExtenderClient, ExtenderError
from tinykube.scheduler.extender_service import is_behind
from tinykube.scheduler.secret_mounts import SecretMounts
from tinykube.scheduler.storage import StorageTracker
from tinykube.scheduler.tracker import Tracker
from tinykube.scheduler.volume_binding import PodVolumeBinder, ReservedVolumes

if TYPE_CHECKING:
    from tinykube.apiserver.registry import Registry

_BINDINGS_AT_ONCE: Final = 64
_PODS_PER_TURN: Final = 8
_log = logging.getLogger("tinykube.scheduler")


class SchedulingResult(msgspec.Struct):
    """The result of one try: a node, or why not."""

    node: str = ""
    found: decide.Found | None = None
    message: str = ""
    plugins: frozenset[str] = frozenset()


class Scheduler:
    """Schedules the pods of its scheduler names until cancelled. `mounts`: see `SecretMounts`."""

    def __init__(
        self,
        registry: Registry,
        config: SchedulerConfig | None = None,
        mounts: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self._registry = registry
        self._config = config or SchedulerConfig()
        read = SecretMounts(registry, mounts or {}).read
        self._extenders = [ExtenderClient(extender, self._resolve, read) for extender in self._config.extenders]
        self._ignored = frozenset().union(*(e.ignored_resources for e in self._extenders))
        self._pods = registry.resource("pods")
        self._nodes = registry.resource("nodes")
        self.cache = SchedulerCache(self._config.hard_affinity_weight)
        self.queue = Queue()
        self._wake = asyncio.Event()
        self.tracker = Tracker(registry, self.cache, self.queue, self._config.names, self._wake.set)
        self._storage = StorageTracker(registry, self.cache.volumes, self.queue, self._wake.set)
        self._devices = DeviceTracker(registry, self.cache.devices, self.queue, self._wake.set)
        self._volumes = PodVolumeBinder(registry, self.cache)
        self._claims = ClaimBinder(registry, self.cache, self._devices.changed)
        self._recorder = Recorder(registry, DEFAULT_SCHEDULER)
        self._bindings: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_BINDINGS_AT_ONCE)
        self._start = 0

    async def run(self) -> None:
        """Follows the API server and schedules until cancelled."""
        self._storage.start()
        self._devices.start()
        self.tracker.start()
        self._volumes.start()
        recording = asyncio.create_task(self._recorder.run(), name="scheduler events")
        try:
            await self._work()
        finally:
            recording.cancel()
            for binding in self._bindings:
                binding.cancel()
            for extender in self._extenders:
                extender.close()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        while True:
            entry = self.queue.pop(loop.time())
            if entry is None:
                self._wake.clear()
                wait = self.queue.next_due(loop.time())
                try:
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            try:
                await self._try(entry)
            except Exception:
                # A failed write about one pod must not end the scheduling of all.
                _log.exception("%s", entry.pod.key)
            turn += 1
            if turn % _PODS_PER_TURN == 0:
                await asyncio.sleep(0)

    # -- one pod -------------------------------------------------------------------------------------------------
    async def _try(self, entry: QueueEntry) -> None:
        pod = entry.pod
        raw = self._registry.get(self._pods, pod.namespace, pod.name)
        if raw is None or raw["metadata"].get("uid") != pod.uid or pod.terminating:
            self.queue.drop(pod.key)
            return
        extenders = [e for e in self._extenders if e.wants(pod, raw) and self._may_ask(e, pod, raw)]
        try:
            choice = await self._choose(pod, raw, extenders)
            claims, volumes = self._reserve(pod, choice.node)
        except Exception as error:
            # A pod that makes the scheduler fail must not stop the others.
            known = isinstance(error, KubekitError)
            _log.warning("%s: %s", pod.key, error, exc_info=None if known else error)
            choice = SchedulingResult(message=str(error), plugins=frozenset({ERROR}))
            claims, volumes = self._reserve(pod, "")
        if not choice.node:
            self.queue.failed(entry, choice.plugins, asyncio.get_running_loop().time())
            if choice.found is not None and choice.found.elsewhere:
                await self._claims.free_elsewhere(pod, choice.found.elsewhere.values())
            await self._report(pod, raw, choice)
            return
        placed = msgspec.structs.replace(pod, node_name=choice.node)
        self.tracker.assume(placed)
        if not volumes:  # else it may wait for long, and takes no slot
            await self._slots.acquire()
        task = asyncio.create_task(self._bind(entry, placed, raw, extenders, claims, volumes))
        self._bindings.add(task)
        task.add_done_callback(self._bindings.discard if volumes else self._bound)

    def _reserve(self, pod: PodInfo, node: str) -> tuple[ReservedClaims, ReservedVolumes]:
        """Reserve devices and volumes on a node, or nothing where there is none. Raises KubekitError."""
        if not node:
            return ReservedClaims(pod), ReservedVolumes(pod, VolumePlan(node))
        volumes = self._volumes.reserve(pod, node)
        try:
            return self._claims.reserve(pod, node), volumes
        except Exception:
            self._volumes.release(volumes)
            raise

    def _bound(self, task: asyncio.Task[None]) -> None:
        self._bindings.discard(task)
        self._slots.release()

    def _resolve(self, namespace: str, name: str, port: int) -> tuple[str, int] | None:
        return endpoint(self._registry.get, self._registry.list, namespace, name, port)

    def _may_ask(self, extender: ExtenderClient, pod: PodInfo, raw: Mapping[str, Any]) -> bool:
        """Return whether an extender behind a Service can be asked about a pod, see `extender_service`."""
        if extender.service is None:
            return True
        service = self._registry.get("services", extender.service.namespace, extender.service.name)
        return service is not None and not is_behind(service, pod, raw["metadata"].get("labels") or {})

    async def _choose(
        self, pod: PodInfo, raw: Mapping[str, Any], extenders: Sequence[ExtenderClient]
    ) -> SchedulingResult:
        if not self.cache.node_count:
            return SchedulingResult(message=decide.NO_NODES, plugins=frozenset({"NodeName"}))
        ignored = self._ignored if extenders else frozenset()
        found = decide.find(pod, self.cache, ignored, self._start, self._config.percentage_of_nodes_to_score)
        self._start = found.next_start
        asked = False
        for extender in extenders:
            if found.feasible and extender.config.filter_verb:
                asked = True
                await self._ask(extender, raw, found)
        if not found.feasible:
            plugins = found.plugins() | ({EXTENDER} if asked else frozenset())
            made_room = await self._preempt(pod, raw, found, extenders, ignored)
            return SchedulingResult(found=found, message=decide.fit_error(found, made_room), plugins=plugins)
        if len(found.feasible) == 1:
            return SchedulingResult(node=found.feasible[0].name)
        sums = scores.totals(pod, self.cache, found.feasible)
        for extender in extenders:
            if extender.config.prioritize_verb:
                await self._add_scores(extender, raw, found.feasible, sums)
        return SchedulingResult(node=decide.best(found.feasible, sums, random.randrange(1 << 30)).name)

    async def _ask(self, extender: ExtenderClient, raw: Mapping[str, Any], found: decide.Found) -> None:
        try:
            answer = await extender.filter(raw, self._raw_nodes(found.feasible))
        except ExtenderError:
            if extender.config.ignorable:
                return
            raise
        kept = set(answer.kept)
        for node in found.feasible:
            if node.name not in kept:
                found.failures[node.name] = Failure(EXTENDER, (), False)  # those without a reason have none
        for resolvable, failures in ((True, answer.failed), (False, answer.unresolvable)):
            for name, reason in failures.items():
                found.failures[name] = Failure(EXTENDER, (reason,), resolvable)
        found.feasible = [node for node in found.feasible if node.name in kept]

    async def _add_scores(
        self, extender: ExtenderClient, raw: Mapping[str, Any], nodes: list[ClusterNode], sums: list[int]
    ) -> None:
        try:
            given = await extender.prioritize(raw, self._raw_nodes(nodes))
        except ExtenderError as error:
            # As in kube-scheduler: without its scores the others decide.
            _log.warning("extender %s gave no scores: %s", extender.config.url_prefix, error)
            return
        for index, node in enumerate(nodes):
            sums[index] += given.get(node.name, 0)

    def _raw_nodes(self, nodes: Sequence[ClusterNode]) -> list[Mapping[str, Any]]:
        raw = (self._registry.get(self._nodes, "", node.name) for node in nodes)
        return [node for node in raw if node is not None]

    # -- binding -------------------------------------------------------------------------------------------------
    async def _bind(
        self,
        entry: QueueEntry,
        pod: PodInfo,
        raw: Mapping[str, Any],
        extenders: Sequence[ExtenderClient],
        claims: ReservedClaims,
        volumes: ReservedVolumes,
    ) -> None:
        binder = next((e for e in extenders if e.config.bind_verb), None)
        written = False
        try:
            if volumes:
                await self._volumes.write(volumes)
                await self._volumes.wait(volumes)
            await self._claims.write(claims)
            written = True
            if binder is not None:
                await binder.bind(pod, pod.node_name)
            else:
                binding = {"metadata": {"uid": pod.uid}, "target": {"name": pod.node_name}}
                await bind(self._registry, pod.namespace, pod.name, binding, BY_SYSTEM)
        except Exception as error:
            if not isinstance(error, KubekitError):
                _log.exception("binding %s to %s", pod.key, pod.node_name)
            self.tracker.forget(pod)
            if self._volumes.release(volumes):
                self.queue.notify(ClusterEvent.VOLUME_CHANGED, "", asyncio.get_running_loop().time())
            await self._claims.release(claims)
            if self._registry.get(self._pods, pod.namespace, pod.name) is None:
                self.queue.drop(pod.key)
                return
            self.queue.failed(entry, {ERROR}, asyncio.get_running_loop().time())
            self._wake.set()
            bound_by_us = written and binder is None
            text = f'running Bind plugin "DefaultBinder": {error}' if bound_by_us else str(error)
            await self._report(pod, raw, SchedulingResult(message=text, plugins=frozenset({ERROR})))
            return
        self.queue.drop(pod.key)
        message = f"Successfully assigned {pod.key} to {pod.node_name}"
        self._recorder.record(raw, "Pod", "Scheduled", message, action="Binding")

    # -- no node -------------------------------------------------------------------------------------------------
    async def _preempt(
        self,
        pod: PodInfo,
        raw: Mapping[str, Any],
        found: decide.Found,
        extenders: Sequence[ExtenderClient],
        ignored: frozenset[str],
    ) -> str:
        """Makes room if that is possible; answers what to say about it."""
        planned = preemption.plan(pod, self.cache, found, self._budgets(), ignored)
        candidates = planned.candidates
        for extender in extenders:
            if candidates and extender.config.preempt_verb:
                victims = {
                    v.key: self._registry.get(self._pods, v.namespace, v.name) for c in candidates for v in c.victims
                }
                known = {key: victim for key, victim in victims.items() if victim is not None}
                candidates = await extender.preempt(raw, candidates, known)
        if not candidates:
            return planned.message
        chosen = preemption.choose(candidates)
        for victim in chosen.victims:
            await self._evict(victim, pod, chosen.node)
        for other in preemption.outbid(self.cache.nodes[chosen.node], pod):
            self.tracker.withdraw(other.key)
            await self._nominate(other, None)
        self.tracker.nominate(pod, chosen.node)
        await self._nominate(pod, chosen.node)
        return ""

    async def _nominate(self, pod: PodInfo, node: str | None) -> None:
        patch = {"status": {"nominatedNodeName": node}}
        try:
            await self._registry.patch(self._pods, pod.namespace, pod.name, patch, "merge", subresource="status")
        except ApiFailure as error:
            if error.status != 404:
                raise

    async def _evict(self, victim: PodInfo, pod: PodInfo, node: str) -> None:
        raw = self._registry.get(self._pods, victim.namespace, victim.name)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            return
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{DEFAULT_SCHEDULER}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": self._registry.now(),
        }
        await self._condition(victim, condition)
        preconditions = {"uid": victim.uid}
        await self._registry.delete(self._pods, victim.namespace, victim.name, preconditions=preconditions)
        self._recorder.record(
            raw, "Pod", "Preempted", f"Preempted by pod {pod.uid} on node {node}", action="Preempting"
        )

    def _budgets(self) -> list[preemption.Budget]:
        return [
            preemption.Budget(
                pdb["metadata"]["namespace"],
                compile_selector(pdb["spec"].get("selector")),
                (pdb.get("status") or {}).get("disruptionsAllowed") or 0,
            )
            for pdb in self._registry.list(("policy", "poddisruptionbudgets"))
        ]

    async def _report(self, pod: PodInfo, raw: Mapping[str, Any], choice: SchedulingResult) -> None:
        """FailedScheduling as event and as condition PodScheduled; unchanged, only the event's count rises."""
        reason = "SchedulerError" if ERROR in choice.plugins else "Unschedulable"
        self._recorder.record(raw, "Pod", "FailedScheduling", choice.message, "Warning", "Scheduling")
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": choice.message}
        try:
            await self._condition(pod, condition)
        except ApiFailure as error:
            if error.status not in (404, 409):
                _log.warning("%s: condition not written: %s", pod.key, error)

    async def _condition(self, pod: PodInfo, condition: dict[str, Any]) -> None:
        """Sets one condition of a pod; no write when it says so already."""
        raw = self._registry.get(self._pods, pod.namespace, pod.name)
        if raw is None or raw["metadata"].get("uid") != pod.uid:
            return
        standing = (raw.get("status") or {}).get("conditions") or []
        same: Mapping[str, Any] = next((c for c in standing if c["type"] == condition["type"]), {})
        if all(same.get(field) == value for field, value in condition.items() if field != "lastTransitionTime"):
            return
        moved = same.get("status") != condition["status"]
        since = self._registry.now() if moved else same.get("lastTransitionTime")
        others = [c for c in standing if c["type"] != condition["type"]]
        made = {"lastProbeTime": None, "lastTransitionTime": since}
        if generation := raw["metadata"].get("generation"):
            made["observedGeneration"] = generation
        conditions = [*others, {**condition, **made}]
        body = {**raw, "status": {**(raw.get("status") or {}), "conditions": conditions}}
        await self._registry.update(self._pods, pod.namespace, pod.name, body, subresource="status")
