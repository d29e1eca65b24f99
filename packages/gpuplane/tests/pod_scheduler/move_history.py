"""A scheduler that moves pods, on a fake API server: sets of pods, orders, faults, crashes, and what must hold."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpuplane import names
from gpuplane.api.nodeclaim import DO_NOT_DISRUPT
from gpuplane.api.upgrade import unix_time
from gpuplane.scheduler.defrag.limits import EVICTION_SECONDS, HOUR, MoveLimits
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.pods.movable import MoveOrder, order_text
from gpuplane.scheduler.policies import Chosen
from gpuplane.sharing import Ledger, LedgerGPU, of_pod, violations
from kubekit.api.core import ConfigMap
from kubekit.kube import Conflict, EventRecorder, NotFound
from kubekit.kube.errors import TooManyRequests
from kubekit.kube.tasks import first_of
from tests.support.extender_world import gpu_pod
from tests.support.fake_api import FakeApi, FakeClient, pod_of
from tests.support.scheduled_pods import ours
from tests.support.virtual_time import VirtualClock, settle

NODES, GPUS, MEMORY = ("n0", "n1", "n2"), 2, 15360
LIMITS = MoveLimits(
    automatic=True, per_hour=4, at_once=2, after_seconds=0.0, cool_down_seconds=600.0, hold_seconds=60.0
)
SETS, REPLICAS, MOST_WAITING = 6, 2, 6
VOLUME_KINDS = (
    *("persistentvolumeclaims", "persistentvolumes", "storageclasses", "csinodes", "csidrivers"),
    *("csistoragecapacities", "volumeattachments"),
)
MOVABLE = {names.MOVABLE_ANNOTATION: "true"}
KINDS: list[dict[str, str]] = [MOVABLE, MOVABLE, MOVABLE, {}, {**MOVABLE, DO_NOT_DISRUPT: "true"}]


class MovingClient(FakeClient):
    """Also evicts, as an API server that holds the disruption budgets."""

    records_fail = True

    def __init__(self, history: MoveHistory) -> None:
        super().__init__(history.api)
        self.history = history

    async def request(self, method: str, path: str, params: Any = None, body: Any = None) -> bytes:
        if not path.endswith("/eviction"):
            return await super().request(method, path, params, body)
        key = "/".join((path.split("/")[4], path.split("/")[6]))
        with self._may_outlive():
            await self.api.write(lambda: self.history.evict(key, body["deleteOptions"]["preconditions"]["uid"]))
        return b"{}"

    async def patch(self, kind: Any, *args: Any, **more: Any) -> Any:
        with self._may_outlive() if kind is ConfigMap else contextlib.nullcontext():
            return await super().patch(kind, *args, **more)

    async def create(self, obj: Any, **more: Any) -> Any:
        with self._may_outlive():
            return await super().create(obj, **more)

    @contextlib.contextmanager
    def _may_outlive(self) -> Iterator[None]:
        """A write that is late may arrive after the next scheduler leads."""
        before = len(self.api.late)
        try:
            yield
        finally:
            self.history.late += self.api.late[before:]
            del self.api.late[before:]


class MoveHistory:
    """A cluster with sets of pods, pods that wait, and a scheduler that moves."""

    def __init__(self) -> None:
        self.api = FakeApi()
        for unused in VOLUME_KINDS:
            self.api.objects.setdefault(unused, {})
        self.clock = VirtualClock()
        self.count = self.crashes = self.failed = 0
        self.late: list[Callable[[], None]] = []
        self.sets: dict[str, dict[str, Any]] = {}
        self.most: Counter[str] = Counter()  # running pods of each set, at any time
        self.evicted: list[tuple[str, float]] = []
        for name in NODES:
            amounts = {
                "cpu": "64", "memory": "256Gi", "pods": "110",
                names.VCUDA_CORE: str(100 * GPUS), names.VCUDA_MEMORY: str(MEMORY * GPUS // 256),
            }  # fmt: skip
            status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": amounts, "capacity": amounts}
            self.api.put("nodes", {"metadata": {"name": name, "labels": {}}, "status": status})
            gpus = [{"index": at, "uuid": f"GPU-{name}-{at}", "model": "T4", "memoryMib": MEMORY} for at in range(GPUS)]
            self.api.put("gpunodes", {"metadata": {"name": name}, "status": {"gpus": gpus}})
        self.api.put("namespaces", {"metadata": {"name": "default"}})
        self.api.deliver()

    async def start(self) -> None:
        client: Any = MovingClient(self)
        self.recorder = EventRecorder(client, "test", clock=self.clock)
        now_ns = lambda: int((unix_time(self.clock.wall()) or 0) * 10**9)  # noqa: E731 - the wall clock
        self.leader = Leader(client, self.recorder, Chosen(), self.clock, now_ns, names.SCHEDULER_NAME, LIMITS)
        ready = asyncio.Event()
        self.task = asyncio.create_task(self.leader.run(ready.set))
        async with asyncio.timeout(60):
            assert await first_of(ready.wait(), self.task) == 0
        await settle()

    async def stop(self) -> None:
        self.failed += self.mover.failed
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.recorder.aclose()
        self.api.unwatch()

    async def crash(self) -> None:
        self.crashes += 1
        self.api.go_on()
        await self.stop()
        self.api.land()
        self.api.deliver()
        self.api.blind = False
        self.api.faults.clear()
        gone = self.gone_without_replacement()
        await self.start()
        held = {key for key, *_ in self.leader.cluster.ledger.pods()}
        assert {f"place:{uid}" for uid in gone} <= held, "the place of a pod that is gone is not held"

    def gone_without_replacement(self) -> list[str]:
        """The uids of pods whose moves are recorded as under way, and whose replacements do not exist."""
        stored = self.api.objects["configmaps"].get(f"{names.OPERATOR_NAMESPACE}/{names.MOVES_CONFIGMAP}")
        records = json.loads(stored["data"][names.MOVES_KEY] or "[]") if stored is not None else []
        now, pods = unix_time(self.clock.wall()) or 0.0, self.api.objects["pods"].values()
        there = {pod["metadata"]["uid"] for pod in pods}
        gone = [one for one in records if not one.get("ended") and one["until"] > now and one["uid"] not in there]
        missing = Counter({name: REPLICAS - len(self.of_set(name)) for name in self.sets})
        moved = Counter(one["owner"] for one in gone)
        return [one["uid"] for one in gone if missing[one["owner"]] >= moved[one["owner"]]]

    def leader_places(self) -> list[str]:
        return [key for key, *_ in self.leader.cluster.ledger.pods() if key.startswith("place:")]

    def land(self) -> None:
        """All writes that were late arrive."""
        self.api.land()
        for write in self.late:
            write()
        self.late.clear()

    @property
    def mover(self) -> Any:
        assert self.leader.pods is not None
        return self.leader.pods.mover

    # -- the rest of the cluster -------------------------------------------------------------------------------------

    def add_set(self, core: int, kind: int, protected: bool) -> None:
        if len(self.sets) >= SETS:
            return
        name = f"s{len(self.sets)}"
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": name, "controller": True}
        meta = {"annotations": dict(KINDS[kind]), "labels": {"app": name}, "ownerReferences": [owner]}
        self.sets[name] = ours(gpu_pod(name, (core, 0), metadata=meta))
        if protected:
            budget = {
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": name}}, "minAvailable": REPLICAS},
                "status": {"disruptionsAllowed": 0},
            }
            self.api.put("poddisruptionbudgets", budget)
        self.reconcile()

    def of_set(self, name: str) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.api.objects["pods"].values()
            if pod["metadata"].get("labels", {}).get("app") == name and "deletionTimestamp" not in pod["metadata"]
        ]

    def end(self) -> None:
        """Kubelets end what is terminating."""
        for key, pod in list(self.api.objects["pods"].items()):
            if "deletionTimestamp" in pod["metadata"]:
                self.api.remove("pods", key)

    def reconcile(self) -> None:
        """Controllers create what is missing; kubelets start and end pods."""
        for key, pod in list(self.api.objects["pods"].items()):
            if "deletionTimestamp" in pod["metadata"]:
                self.api.remove("pods", key)
            elif pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") != "Running":
                self.api.put("pods", {**pod, "status": {**(pod.get("status") or {}), "phase": "Running"}})
        for name, template in self.sets.items():
            for _ in range(REPLICAS - len(self.of_set(name))):
                self.count += 1
                meta = {**template["metadata"], "name": f"{name}-{self.count}"}
                self.api.put("pods", {**template, "metadata": meta, "status": {"phase": "Pending"}})

    def add_waiting(self, core: int) -> None:
        waiting = [key for key in self.api.objects["pods"] if key.startswith("default/w")]
        if len(waiting) < MOST_WAITING:
            self.count += 1
            pod = gpu_pod(f"w{self.count}", (core, 0))
            pod["metadata"]["creationTimestamp"] = self.clock.wall()
            self.api.put("pods", {**ours(pod), "status": {"phase": "Pending"}})

    def evict(self, key: str, uid: str) -> None:
        pod = self.api.objects["pods"].get(key)
        if pod is None:
            raise NotFound("gone")
        meta = pod["metadata"]
        if meta["uid"] != uid:
            raise Conflict("another uid")
        if "deletionTimestamp" in meta:
            return
        name = meta["labels"]["app"]
        if f"default/{name}" in self.api.objects["poddisruptionbudgets"]:
            raise TooManyRequests("the budget has no eviction left")
        said = meta["annotations"]
        assert said.get(names.MOVABLE_ANNOTATION) == "true" and DO_NOT_DISRUPT not in said, "it says no"
        assert uid not in {one for one, _ in self.evicted}, "evicted twice"
        self.evicted.append((uid, unix_time(self.clock.wall()) or 0.0))
        self.api.put("pods", {**pod, "metadata": {**meta, "deletionTimestamp": self.clock.wall()}})

    def order(self, at: int, node: int, gpu: int) -> None:
        bound = [pod for name in self.sets for pod in self.of_set(name) if pod["spec"].get("nodeName")]
        if bound:
            pod = bound[at % len(bound)]
            end = (unix_time(self.clock.wall()) or 0.0) + 60.0
            text = order_text(MoveOrder(NODES[node], _text(end), (f"GPU-{NODES[node]}-{gpu}",)))
            said = {**pod["metadata"]["annotations"], names.MOVE_ANNOTATION: text}
            self.api.put("pods", {**pod, "metadata": {**pod["metadata"], "annotations": said}})

    # -- what must always be so --------------------------------------------------------------------------------------

    def truth(self) -> Ledger:
        ledger = Ledger()
        for name in NODES:
            gpus = [LedgerGPU(index=at, uuid=f"GPU-{name}-{at}", model="T4", memory_mib=MEMORY) for at in range(GPUS)]
            ledger.set_node(name, gpus)
        for obj in self.api.objects["pods"].values():
            if obj["spec"].get("nodeName"):
                assignment = of_pod(pod_of(obj))
                assert assignment is not None
                ledger.hold(obj["metadata"]["uid"], obj["spec"]["nodeName"], assignment)
        return ledger

    def check(self) -> None:
        assert violations(self.truth()) == []
        assert violations(self.leader.cluster.ledger) == []
        times = [time for _, time in self.evicted]
        assert all(sum(end - HOUR < time <= end for time in times) <= LIMITS.per_hour for end in times), times
        assert self.mover.budget.under_way <= LIMITS.at_once
        for name in self.sets:
            self.most[name] = max(self.most[name], self.running(name))

    def running(self, name: str) -> int:
        return sum(bool(pod["spec"].get("nodeName")) for pod in self.of_set(name))

    async def end_well(self) -> None:
        """The bad days are over: what is under way ends, and nothing is held."""
        self.api.faults.clear()
        self.api.blind = False
        for _ in range(4):
            self.api.go_on()
            self.land()
            self.reconcile()
            while self.api.behind:
                self.api.deliver()
                await settle()
        for _ in range(4):
            await self.clock.advance(LIMITS.hold_seconds * 2)
            self.reconcile()
            while self.api.behind:
                self.api.deliver()
                await settle()
        self.check()
        assert not [key for key, *_ in self.leader.cluster.ledger.pods() if key.startswith(("place:", "replacement:"))]
        pods = self.leader.pods
        assert pods is not None
        bound = {
            f"default/{pod['metadata']['name']}": pod["spec"]["nodeName"]
            for pod in self.api.objects["pods"].values()
            if pod["spec"].get("nodeName")
        }
        assert {info.key: info.node_name for info in pods.model.cache.pods.values()} == bound
        if not self.failed + self.mover.failed:
            for name in self.sets:
                assert self.running(name) >= self.most[name], f"{name} has fewer running pods than before"


def _text(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def live(history: MoveHistory, steps: Iterable[tuple[Any, ...]]) -> MoveHistory:
    await history.start()
    api = history.api
    try:
        for taken in steps:
            match taken:
                case ("set", core, kind, protected):
                    history.add_set(core, kind, protected)
                case ("pod", core):
                    history.add_waiting(core)
                case ("finish", at):
                    there = [key for key in api.objects["pods"] if key.startswith("default/w")]
                    if there:
                        api.remove("pods", there[at % len(there)])
                case ("order", at, node, gpu):
                    history.order(at, node, gpu)
                case ("deliver", count):
                    api.deliver(count)
                case ("all",):
                    api.deliver()
                case ("reconcile",):
                    history.reconcile()
                case ("end",):
                    history.end()
                case ("fault", fault):
                    api.faults.append(fault)
                case ("blind", blind):
                    api.blind = blind
                case ("land",):
                    history.land()
                case ("go on",):
                    api.go_on()
                case ("wait", seconds):
                    if seconds >= EVICTION_SECONDS:
                        # The API server has carried an eviction out by then, or never will.
                        history.land()
                        api.go_on()
                        await settle()
                    await history.clock.advance(seconds)
                case ("crash",):
                    await history.crash()
            await settle()
            history.check()
        await history.end_well()
    finally:
        with contextlib.suppress(AttributeError):
            await history.stop()
    return history
