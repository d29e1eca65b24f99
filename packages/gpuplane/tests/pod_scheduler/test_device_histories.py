"""Random histories of leaders that write devices of claims, with writes that arrive late and watches that lag.

A write may stay under way for as long as it likes: after its sender gave up waiting, and after the next leader has the
lease. No device may be held by two claims, and no bound pod may lose its claim.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.scheduler.claims.device_binding import DeviceBinder
from gpuplane.scheduler.claims.device_watch import StoredDeviceClaim
from gpuplane.scheduler.claims.take_over import take_over
from kubekit.errors import KubekitError
from kubekit.kube import Conflict, ServerError
from kubekit.kube.lease import LeaseLost
from kubekit.scheduling.cache import SchedulerCache
from kubekit.scheduling.devices.facts import compile_device_claim, compile_device_class
from kubekit.scheduling.devices.slices import compile_slice
from kubekit.scheduling.podinfo import PodInfo, compile_node, compile_pod
from kubekit.scheduling.queue import ClusterEvent
from tests.support.virtual_time import VirtualClock, settle

NODES, DEVICES, CLAIMS, PODS = ("n1", "n2"), ("gpu-0", "gpu-1"), 4, 6
SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}


class Write:
    """A write under way. It arrives once, also when its caller waits no longer."""

    def __init__(self, name: str, patch: dict[str, Any]) -> None:
        self.name = name
        self.patch = patch
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()


class Server:
    """The claims of an API server, and all their versions in order."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.log: list[dict[str, Any]] = []
        self.late: list[Write] = []
        for at in range(CLAIMS):
            meta = {"name": f"c{at}", "namespace": "default", "uid": f"c{at}"}
            self._store({"metadata": meta, "spec": SPEC, "status": {}})

    def _store(self, claim: dict[str, Any]) -> dict[str, Any]:
        claim = copy.deepcopy(claim)
        claim["metadata"]["resourceVersion"] = str(len(self.log) + 1)
        self.claims[claim["metadata"]["name"]] = claim
        self.log.append(claim)
        return claim

    def apply(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Carry a patch out, as a strategic merge. Raises Conflict for another version."""
        claim = copy.deepcopy(self.claims[name])
        meta = patch["metadata"]
        if meta.get("resourceVersion", claim["metadata"]["resourceVersion"]) != claim["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        for key in ("finalizers", "annotations"):
            if key in meta:
                claim["metadata"][key] = meta[key]
        status = patch.get("status", {})
        if "allocation" in status:
            claim["status"]["allocation"] = status["allocation"]
        if "reservedFor" in status:
            users = {one["uid"]: one for one in claim["status"].get("reservedFor") or ()}
            for one in status["reservedFor"] or ():
                if one.get("$patch") == "delete":
                    users.pop(one["uid"], None)
                else:
                    users[one["uid"]] = one
            claim["status"]["reservedFor"] = list(users.values()) if status["reservedFor"] is not None else []
        return self._store(claim)

    def land(self, write: Write) -> None:
        """Let a write arrive."""
        self.late.remove(write)
        try:
            answer = self.apply(write.name, write.patch)
        except Conflict as error:
            if not write.answer.done():
                write.answer.set_exception(error)
                write.answer.exception()  # whether or not its sender still waits
            return
        if not write.answer.done():
            write.answer.set_result(answer)

    def users(self, name: str) -> set[str]:
        return {one["uid"] for one in self.claims[name]["status"].get("reservedFor") or ()}

    def end(self, pod: str) -> None:
        """As Kubernetes's controller when a pod has gone: its claims lose it, and their devices with the last user."""
        for name, claim in list(self.claims.items()):
            if pod in self.users(name):
                changed = copy.deepcopy(claim)
                left = [one for one in changed["status"]["reservedFor"] if one["uid"] != pod]
                changed["status"] = {"reservedFor": left, "allocation": changed["status"]["allocation"]} if left else {}
                if not left:
                    changed["metadata"]["finalizers"] = []
                self._store(changed)


class Replica:
    """A scheduler: what it knows, the writer of devices, and the client, which sends while it leads."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.leads = True
        self.slow = False  # the next writes stay under way
        self.fails = False  # the next write arrives, and its answer is lost
        self.cache = SchedulerCache()
        self.clock = VirtualClock()
        self.seen = 0
        self.tasks: set[asyncio.Task[None]] = set()
        me: Any = self
        self.binder = DeviceBinder(me, me, self.clock, self.start)
        self.cache.devices.classes["gpu"] = compile_device_class({"metadata": {"name": "gpu"}, "spec": {}})
        for node in NODES:
            self.cache.set_node(compile_node({"metadata": {"name": node}, "status": {"allocatable": {}}}))
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": "d", "pool": pool, "nodeName": node, "devices": [{"name": one} for one in DEVICES]}
            self.cache.devices.set_slice(compile_slice({"metadata": {"name": node}, "spec": spec}))

    def storage_changed(self, event: ClusterEvent) -> None:
        """No pod waits to be woken here."""

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def watch(self, most: int) -> None:
        """Deliver the next versions of claims."""
        for claim in self.server.log[self.seen : self.seen + most]:
            self.cache.devices.set_claim(compile_device_claim(claim))
        self.seen = min(self.seen + most, len(self.server.log))

    async def reached(self, version: str) -> None:
        """The watch catches up, and no further."""
        self.watch(max(0, int(version) - self.seen))

    # -- the client --------------------------------------------------------------------------------------------------

    async def patch(self, kind: Any, name: str, patch: dict[str, Any], *rest: Any) -> Any:
        if not self.leads:
            raise LeaseLost("not written")
        write = Write(name, copy.deepcopy(patch))
        self.server.late.append(write)
        if not self.slow:
            self.server.land(write)
        if self.fails:
            self.fails = False
            raise ServerError("the answer is lost")
        return msgspec.convert(await asyncio.shield(write.answer), StoredDeviceClaim)

    async def list(self, kind: Any, namespace: str | None = None, **options: Any) -> list[Any]:
        name = options.get("fields", "").partition("=")[2]
        return [msgspec.convert(one, kind) for key, one in self.server.claims.items() if name in ("", key)]

    async def end(self) -> None:
        self.leads = False
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def claim_of(number: int) -> str:
    return f"c{number % CLAIMS}"


class History:
    def __init__(self) -> None:
        self.server = Server()
        self.bound: dict[str, str] = {}  # by the uid of the pod, its claim
        self.deleted = Counter[int]()  # how often each pod was, and came again with another uid
        self.replica = Replica(self.server)
        self.former: list[Replica] = []
        self.replica.watch(len(self.server.log))
        self.at_work: set[str] = set()

    def uid(self, number: int) -> str:
        return f"p{number}-{self.deleted[number]}"

    def pod(self, number: int) -> PodInfo:
        claims = [{"name": "gpu", "resourceClaimName": claim_of(number)}]
        meta = {"name": f"p{number}", "namespace": "default", "uid": self.uid(number)}
        return compile_pod({"metadata": meta, "spec": {"resourceClaims": claims}})

    async def bind(self, number: int, node: str) -> None:
        """As the scheduler: reserve, write, bind, end what was reserved."""
        replica, info = self.replica, self.pod(number)
        if info.uid in self.bound or info.uid in self.at_work:
            return
        try:
            replica.binder.reserve(info, node)
        except KubekitError:
            return
        self.at_work.add(info.uid)
        replica.start(self._carry_out(replica, info, claim_of(number)), f"bind {info.uid}")

    async def _carry_out(self, replica: Replica, info: PodInfo, claim: str) -> None:
        bound = False
        try:
            if replica.binder.waits(info.uid):
                await replica.binder.bind(info.uid)
            if bound := replica.leads:
                self.bound[info.uid] = claim
        except (KubekitError, TimeoutError):
            pass
        finally:
            self.at_work.discard(info.uid)
            if replica.leads:
                replica.binder.release(info.uid, settled=bound)

    def free(self, number: int) -> None:
        """As the scheduler where no node of a waiting pod reaches the devices of its claim."""
        claim = self.replica.cache.devices.claim(f"default/{claim_of(number)}")
        if claim is not None and claim.allocation is not None and self.uid(number) not in {*self.bound, *self.at_work}:
            self.replica.binder.free_elsewhere(self.pod(number), [claim])

    async def delete(self, number: int) -> None:
        """A pod goes, bound or in between; the controller takes it out of the claims."""
        uid = self.uid(number)
        self.deleted[number] += 1
        self.replica.binder.release(uid, settled=True)
        self.bound.pop(uid, None)
        self.server.end(uid)

    async def change_leader(self) -> None:
        """The lease goes to a standby whose watch lags."""
        lag = self.replica.seen
        self.former.append(self.replica)
        await self.replica.end()
        self.at_work.clear()
        self.replica = Replica(self.server)
        self.replica.watch(lag)
        waiting = {self.uid(number) for number in range(PODS)} - set(self.bound)
        client: Any = self.replica
        await take_over(client, self.replica.clock, lambda: waiting, self.replica.reached)

    def check(self) -> None:
        held: Counter[tuple[str, str]] = Counter()
        for claim in self.server.claims.values():
            allocation = claim["status"].get("allocation") or {}
            for one in (allocation.get("devices") or {}).get("results") or ():
                held[one["pool"], one["device"]] += 1
        assert not [one for one, count in held.items() if count > 1], held
        for uid, name in self.bound.items():
            assert self.server.claims[name]["status"].get("allocation"), f"{uid} runs without the devices of {name}"
            assert uid in self.server.users(name), f"{uid} runs and is no user of {name}"


STEPS = ("bind", "bind", "bind", "watch", "slow", "fails", "land", "land", "leader", "delete", "free", "time")


async def _run(data: st.DataObject, steps: int) -> None:
    history = History()
    try:
        for _ in range(steps):
            step = data.draw(st.sampled_from(STEPS))
            replica, number = history.replica, data.draw(st.integers(0, PODS - 1))
            if step == "bind":
                await history.bind(number, data.draw(st.sampled_from(NODES)))
            elif step == "watch":
                replica.watch(data.draw(st.integers(1, 4)))
            elif step == "slow":
                replica.slow = not replica.slow
            elif step == "fails":
                replica.fails = True
            elif step == "land" and history.server.late:
                history.server.land(data.draw(st.sampled_from(history.server.late)))
            elif step == "leader":
                await history.change_leader()
            elif step == "free":
                history.free(number)
            elif step == "delete":
                await history.delete(number)
            elif step == "time":
                await replica.clock.advance(1.0)
            await settle()
            history.check()
        for write in list(history.server.late):
            history.server.land(write)
            history.check()
    finally:
        await history.replica.end()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_device_is_held_twice_whatever_arrives_late(data: st.DataObject) -> None:
    asyncio.run(_run(data, data.draw(st.integers(5, 40))))
