"""Random histories, with faults at every call and crashes at every step.

Nothing is allocated twice, nothing is counted twice, nothing leaks, and in the end no pod waits that fits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane import names
from gpuplane.scheduler import wire
from gpuplane.scheduler.binding import POST_SECONDS
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.policies import Chosen
from gpuplane.scheduler.reservation import ReservationState
from gpuplane.sharing import Assignment, Ledger, LedgerGPU, of_pod, violations
from kubekit.errors import KubekitError
from kubekit.kube import EventRecorder
from tests.support.extender_world import gpu_pod
from tests.support.fake_api import FakeApi, FakeClient, Fault, pod_of
from tests.support.virtual_time import VirtualClock, settle

NODES = ["n1", "n2", "n3"]
GPUS, MEMORY = 2, 16384
ENDED = ("Succeeded", "Failed")
QUOTA = {"team": {"quota": {"T4": 3}}}


class History:
    """One cluster through good and bad days."""

    def __init__(self, verb: str) -> None:
        self.verb = verb  # filter or predicates
        self.api = FakeApi()
        self.clock = VirtualClock()
        self.wall = 10**18  # ns; it jumps
        self.lazy = False  # kube-scheduler decides for a node, and then cannot bind
        self.count = 0
        self.binds: set[asyncio.Task[None]] = set()
        self._read: dict[str, tuple[dict[str, Any], Assignment | None]] = {}  # objects are replaced, never changed
        self._checked: tuple[int, Ledger, int] | None = None
        for name in NODES:
            status = {"conditions": [{"type": "Ready", "status": "True"}]}
            self.api.put(
                "nodes", {"metadata": {"name": name, "labels": {names.QUOTA_MODEL_LABEL: "T4"}}, "status": status}
            )
            gpus = [
                {"index": index, "uuid": f"GPU-{name}-{index}", "model": "T4", "memoryMib": MEMORY}
                for index in range(GPUS)
            ]
            self.api.put("gpunodes", {"metadata": {"name": name}, "status": {"gpus": gpus}})
        quota = {"metadata": {"name": "gpuquota", "namespace": "kube-system"}, "data": {"gpu_quota": json.dumps(QUOTA)}}
        self.api.put("configmaps", quota)
        self.api.deliver()

    # -- the extender's life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        client: Any = FakeClient(self.api)
        self.recorder = EventRecorder(client, "test", clock=self.clock)
        self.leader = Leader(client, self.recorder, Chosen(), self.clock, lambda: self.wall)
        self.ready = asyncio.Event()
        self.task = asyncio.create_task(self.leader.run(self.ready.set))
        async with asyncio.timeout(60):
            await self.ready.wait()

    async def crash(self) -> None:
        """Killed; another one leads when the lease has run out, and what was under way has come true or never will."""
        self.api.go_on()
        await self.stop()
        self.api.land()
        self.api.deliver()
        await self.start()

    async def stop(self) -> None:
        for task in (self.task, *self.binds):
            task.cancel()
        await asyncio.gather(self.task, *self.binds, return_exceptions=True)
        await self.recorder.aclose()
        self.api.unwatch()

    def created(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The pod as a user creates it."""
        return pod

    # -- kube-scheduler ----------------------------------------------------------------------------------------------

    def pending(self) -> list[dict[str, Any]]:
        under_way = {task.get_name() for task in self.binds}
        return [
            pod
            for pod in self.api.objects["pods"].values()
            if not pod["spec"].get("nodeName") and pod["metadata"]["name"] not in under_way
        ]

    async def schedule(self, pod: dict[str, Any]) -> None:
        """filter, prioritize, and bind in the background."""
        args = wire.FilterArgs(pod_of(pod), list(NODES))
        if self.verb == "predicates":
            job = self._predicates(pod, args)
        else:
            kept = json.loads(self.leader.filtering.filter(args))["NodeNames"]
            if not kept:
                return
            scores = json.loads(self.leader.filtering.prioritize(wire.FilterArgs(args.pod, kept)))
            node = max(scores, key=lambda one: one["Score"])["Host"]
            job = self._bind(pod, node)
        task = asyncio.create_task(job, name=pod["metadata"]["name"])
        self.binds.add(task)
        task.add_done_callback(self.binds.discard)
        await settle()

    async def _bind(self, pod: dict[str, Any], node: str) -> None:
        meta = pod["metadata"]
        args = wire.BindArgs(meta["name"], meta["namespace"], meta["uid"], node)
        with contextlib.suppress(KubekitError):
            await self.leader.binder.bind(args, self.leader.filtering)

    async def _predicates(self, pod: dict[str, Any], args: wire.FilterArgs) -> None:
        meta = pod["metadata"]
        try:
            answer = json.loads(await self.leader.annotator.predicates(args))
        except KubekitError:
            return
        for node in () if self.lazy else answer["NodeNames"]:
            body = {"metadata": {"uid": meta["uid"]}, "target": {"name": node}}
            with contextlib.suppress(KubekitError):  # deleted meanwhile
                self.api.bind(f"{meta['namespace']}/{meta['name']}", body)

    # -- what must always be so --------------------------------------------------------------------------------------

    def holding(self) -> list[tuple[dict[str, Any], Assignment]]:
        """The pods that are bound and have not ended, with what stands on them."""
        found = []
        for key, obj in self.api.objects["pods"].items():
            known = self._read.get(key)
            if known is None or known[0] is not obj:
                known = self._read[key] = (obj, _assigned(obj))
            if known[1] is not None:
                found.append((obj, known[1]))
        return found

    def truth(self) -> Ledger:
        ledger = Ledger()
        for name in NODES:
            ledger.set_node(
                name,
                [LedgerGPU(index=at, uuid=f"GPU-{name}-{at}", model="T4", memory_mib=MEMORY) for at in range(GPUS)],
            )
        for obj, assignment in self.holding():
            ledger.hold(obj["metadata"]["uid"], obj["spec"]["nodeName"], assignment)
        return ledger

    def check(self) -> None:
        now = self.api.version, self.leader.cluster.ledger, self.leader.cluster.ledger.revision
        if now == self._checked:
            return
        self._checked = now
        assert violations(self.truth()) == []
        assert violations(self.leader.cluster.ledger) == []
        team = [assignment for obj, assignment in self.holding() if obj["metadata"]["namespace"] == "team"]
        held = sum(core for assignment in team for core, _ in assignment.held().values())
        assert held <= 300, "the team's quota"

    async def quiet(self) -> None:
        """Deliver all there is, and what follows from it."""
        while self.api.behind:
            self.api.deliver()
            await settle()

    async def end_well(self) -> None:
        """End the faults: then every pod that fits is placed, and the extender's state equals the cluster's."""
        self.api.faults.clear()
        self.api.blind = self.lazy = False
        self.api.go_on()
        self.api.land()
        self.api.deliver()
        await self.clock.advance(200)
        await self.quiet()
        for _ in range(3):
            for pod in self.pending():
                await self.schedule(pod)
                await settle()
                self.api.deliver()
                await settle()
        self.check()
        assert len(self.leader.reservations) == self.leader.reservations.count(ReservationState.TENTATIVE)
        assert not self.binds
        promised = [
            pod for pod in self.pending() if names.ASSIGNMENT_ANNOTATION in pod["metadata"].get("annotations", {})
        ]
        assert not promised, "a promise that nobody keeps"
        await self.clock.advance(100)
        await self.quiet()
        self.leader.reservations.expire()
        assert len(self.leader.reservations) == 0
        truth, ledger = self.truth(), self.leader.cluster.ledger
        assert {state.name: state.core for state in ledger.nodes()} == {
            state.name: state.core for state in truth.nodes()
        }
        assert not [pod for pod, _, _, reserved in ledger.pods() if reserved]
        for pod in self.pending():
            found = self.leader.filtering.sort(self.leader.filtering.pod_of(pod_of(pod)), NODES)
            assert not found.kept, "it fits, and was not placed"


def _assigned(obj: dict[str, Any]) -> Assignment | None:
    pod = pod_of(obj)
    if not pod.spec.node_name or pod.status.phase in ENDED:
        return None
    assignment = of_pod(pod)
    assert assignment is not None, "a pod without its share"
    return assignment


CORES, UNITS, SECONDS = [10, 30, 50, 60, 100, 200], [4, 16, 30], [1.0, 6.0, 12.0, 20.0, 70.0]
MOST = 60  # pods at a time; there is room for a third of them
JUMPS = [0, 10**9, 10**18, 4 * 10**18]  # what the node's clock says of a sudden
pods = st.tuples(st.just("create"), st.sampled_from(CORES), st.sampled_from(UNITS), st.booleans())
which = st.integers(0, 7)
schedule = st.tuples(st.just("schedule"), which)
step = st.one_of(
    pods,
    pods,
    schedule,
    schedule,
    schedule,
    st.tuples(st.just("deliver"), st.integers(1, 6)),
    st.tuples(st.just("fault"), st.sampled_from(Fault)),
    st.tuples(st.just("blind"), st.booleans()),
    st.tuples(st.just("lazy"), st.booleans()),
    st.tuples(st.just("jump"), st.sampled_from(JUMPS)),
    st.tuples(st.just("land")),
    st.tuples(st.just("go on")),
    st.tuples(st.just("delete"), which),
    st.tuples(st.just("again"), which),
    st.tuples(st.just("finish"), which),
    st.tuples(st.just("wait"), st.sampled_from(SECONDS)),
    st.tuples(st.just("crash")),
)


ODDS = {
    "create": 20,
    "schedule": 45,
    "deliver": 20,
    "finish": 12,
    "fault": 8,
    "delete": 4,
    "again": 2,
    "land": 3,
    "go on": 3,
    "wait": 5,
    "blind": 3,
    "lazy": 3,
    "jump": 1,
    "crash": 0.7,
}


def random_step(dice: random.Random) -> tuple[Any, ...]:
    """As `step`, for long histories: more pods than there is room for, and most of what happens is ordinary."""
    what = dice.choices(list(ODDS), list(ODDS.values()))[0]
    arguments: dict[str, list[Any]] = {
        "create": [dice.choice(CORES), dice.choice(UNITS), dice.random() < 0.4],
        "deliver": [dice.randint(1, 6)],
        "fault": [dice.choice(list(Fault))],
        "blind": [dice.random() < 0.3],
        "lazy": [dice.random() < 0.3],
        "jump": [dice.choice(JUMPS)],
        "wait": [dice.choice(SECONDS)],
    }
    return (what, *arguments.get(what, [] if what in ("land", "go on", "crash") else [dice.randrange(100)]))


async def live(history: History, steps: Iterable[tuple[Any, ...]]) -> None:
    await history.start()
    api = history.api
    for taken in steps:
        everybody = list(api.objects["pods"].items())
        match taken:
            case ("create", core, memory, team) if len(everybody) < MOST:
                history.count += 1
                namespace = "team" if team else "free"
                name = f"p{history.count}"
                api.put(
                    "pods", history.created(gpu_pod(name, (core, memory if core < 100 else 0), namespace=namespace))
                )
            case ("schedule", at):
                waiting = history.pending()
                if waiting:
                    await history.schedule(waiting[at % len(waiting)])
            case ("deliver", count):
                api.deliver(count)
            case ("fault", fault):
                api.faults.append(fault)
            case ("blind", blind):
                api.blind = blind
            case ("lazy", lazy):
                history.lazy = lazy
            case ("jump", wall):
                history.wall = wall
            case ("land",):
                api.land(1)
            case ("go on",):
                api.go_on()
            case ("delete", at) if everybody:
                api.remove("pods", everybody[at % len(everybody)][0])
            case ("again", at) if everybody:
                key, pod = everybody[at % len(everybody)]
                api.remove("pods", key)
                spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
                meta = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
                api.put("pods", {**pod, "metadata": meta, "spec": spec, "status": {}})
            case ("finish", at) if everybody:
                _, pod = everybody[at % len(everybody)]
                if pod["spec"].get("nodeName"):
                    api.put("pods", {**pod, "status": {"phase": "Succeeded"}})
                ended = [key for key, pod in everybody if (pod.get("status") or {}).get("phase") in ENDED]
                for key in ended[:-5]:
                    api.remove("pods", key)
            case ("wait", seconds):
                # Late writes come true within the time-out that they named, or never; slow ones are not waited for.
                passed = 0.0
                while passed < seconds:
                    if seconds > POST_SECONDS:
                        api.land()
                        api.go_on()
                        await settle()
                    await history.clock.advance(min(POST_SECONDS / 2, seconds - passed))
                    passed += POST_SECONDS / 2
            case ("crash",):
                await history.crash()
        await settle()
        history.check()
    await history.end_well()
    await history.stop()


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, max_size=60))
@pytest.mark.parametrize("verb", ["filter", "predicates"])
def test_short_histories(verb: str, steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(live(History(verb), steps))


DAY: list[tuple[Any, ...]] = [
    ("create", 60, 16, True),
    ("create", 100, 0, True),
    ("deliver", 2),
    ("schedule", 0),
    ("schedule", 0),
    ("deliver", 1),
    ("go on",),
    ("land",),
    ("wait", 6.0),
    ("deliver", 2),
    ("finish", 0),
    ("delete", 1),
    ("deliver", 2),
]


@pytest.mark.parametrize("verb", ["filter", "predicates"])
@pytest.mark.parametrize("fault", list(Fault))
def test_a_crash_at_every_step(verb: str, fault: Fault) -> None:
    async def crashing() -> None:
        for at in range(3, len(DAY) + 1):
            for blind in (False, True):
                bad = [("fault", fault), ("blind", blind)]
                await live(History(verb), [*DAY[:3], *bad, *DAY[3:at], ("crash",), *DAY[at:]])

    asyncio.run(crashing())


@pytest.mark.parametrize("verb", ["filter", "predicates"])
@pytest.mark.parametrize("seed", range(2))
def test_long_histories(verb: str, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")
    dice = random.Random(seed)
    history = History(verb)
    asyncio.run(live(history, (random_step(dice) for _ in iter(lambda: history.count < PODS, False))))


# 10,000 pods take minutes: pytest --timeout 0.
PODS = int(os.environ.get("GPUPLANE_TEST_HISTORY_PODS", "200"))
