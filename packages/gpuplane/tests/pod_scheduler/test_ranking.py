"""The fast way to the best node says what evaluating every node says, whatever happened before."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from gpuplane import names
from gpuplane.scheduler import feasibility
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.pods.decide import DIGITS, choose_node
from gpuplane.scheduler.pods.objects import ScheduledPod, transform_scheduled_node, transform_scheduled_pod
from gpuplane.scheduler.pods.ranking import NodeRanking
from gpuplane.scheduler.policies import Chosen
from gpuplane.scheduler.reservation import ReservationEvent
from gpuplane.sharing import LedgerGPU, NodeState
from gpuplane.sharing.placement import fit
from kubekit.api.raw import RawNode, RawPod
from kubekit.kube import EventRecorder
from kubekit.scheduling.scores import room
from tests.support.extender_world import gpu_pod
from tests.support.fake_api import FakeApi, FakeClient
from tests.support.virtual_time import VirtualClock

NODES, GPUS, MEMORY = 7, 3, 15360
ASKS = [(10, 4), (30, 20), (50, 30), (100, 0), (200, 0), (0, 0)]
TAINTS: list[list[dict[str, str]]] = [
    [],
    [],
    [],
    [{"key": "a", "effect": "NoSchedule"}],
    [{"key": "b", "effect": "PreferNoSchedule"}],
]


class RankedCluster:
    """A leader whose cache and ledger are changed by hand."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        client: Any = FakeClient(FakeApi())
        clock = VirtualClock()
        self.leader = Leader(client, EventRecorder(client, "test", clock=clock), Chosen(), clock, lambda: 0, "gpuplane")
        assert self.leader.pods is not None
        self.model = self.leader.pods.model
        self.ranking = NodeRanking(self.model.cache, self.leader.cluster, self.leader.filtering)
        self.read = transform_scheduled_pod("gpuplane")
        self.placed: list[ScheduledPod] = []
        self.count = 0
        for at in range(NODES):
            self.node(f"n{at}")
            self.gpus(f"n{at}")

    def node(self, name: str) -> None:
        self.count += 1
        amounts = {
            "cpu": str(self.dice.choice([4, 16, 64])),
            "memory": "256Gi",
            "pods": str(self.dice.choice([3, 110])),
            names.VCUDA_CORE: str(GPUS * 100),
            names.VCUDA_MEMORY: str(GPUS * MEMORY // 256),
        }
        ready = {"type": "Ready", "status": str(self.dice.random() < 0.9)}
        raw = {
            "metadata": {"name": name, "uid": name, "resourceVersion": str(self.count)},
            "spec": {"taints": self.dice.choice(TAINTS), "unschedulable": self.dice.random() < 0.1},
            "status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]},
        }
        informer = self.leader.cluster.nodes
        informer._tell(informer._cache.upsert(transform_scheduled_node(msgspec.convert(raw, RawNode))))

    def gpus(self, name: str) -> None:
        listed = [
            LedgerGPU(
                index=at,
                uuid=f"{name}-{at}",
                model="T4",
                memory_mib=MEMORY,
                fault="Xid 79" if self.dice.random() < 0.1 else "",
            )
            for at in range(GPUS)
        ]
        self.leader.cluster.ledger.set_node(name, listed, cpu_milli=self.dice.choice([4000, 64000]))

    def pod(self) -> ScheduledPod:
        self.count += 1
        core, memory = self.dice.choice(ASKS)
        pod = gpu_pod(f"p{self.count}", *([(core, memory)] if core else []), schedulerName="gpuplane")
        if not core:
            pod["spec"]["containers"] = [{"name": "c", "image": "app", "resources": {}}]
        pod["spec"]["containers"][0]["resources"].setdefault("requests", {})["cpu"] = self.dice.choice(["1", "3"])
        pod["metadata"]["uid"] = f"uid-{self.count}"
        found = self.read(msgspec.convert(pod, RawPod))
        assert found is not None
        return found

    def place(self, pod: ScheduledPod, node: str) -> None:
        assert pod.info is not None
        self.leader.binder.reserve(pod, node, self.leader.filtering, ReservationEvent.BIND)
        self.model.assume(msgspec.structs.replace(pod.info, node_name=node))
        self.placed.append(pod)

    def remove(self) -> None:
        pod = self.placed.pop(self.dice.randrange(len(self.placed)))
        reservation = self.leader.reservations.get(pod.metadata.uid)
        assert reservation is not None and pod.info is not None
        self.leader.reservations.apply(reservation, ReservationEvent.REFUSED)
        self.model.forget(msgspec.structs.replace(pod.info, node_name=reservation.node))

    def check(self, pod: ScheduledPod) -> str:
        """Compare both ways; return the node, empty for a pod that fits nowhere."""
        assert pod.info is not None
        fast = self.ranking.best(pod)
        slow = choose_node(pod, self.model.cache, self.leader.filtering).node
        if pod.request or fast is None:
            assert (fast or "") == slow
            return slow
        answers, nodes = self.leader.filtering.answers(pod.request), self.model.cache.nodes
        good = [
            (round(answers.value(name), DIGITS), room(pod.info, nodes[name], facts))
            for name in (fast, slow)
            if (facts := nodes[name].facts) is not None
        ]
        assert good[0] == good[1]
        return slow


@pytest.mark.parametrize("seed", range(8))
async def test_the_best_node_is_that_of_evaluating_every_node(seed: int) -> None:
    cluster = RankedCluster(seed)
    fast = 0
    for _ in range(250):
        pod = cluster.pod()
        node = cluster.check(pod)
        fast += cluster.ranking.best(pod) is not None
        match cluster.dice.randrange(10):
            case 0:
                cluster.node(f"n{cluster.dice.randrange(NODES + 1)}")
            case 1:
                cluster.gpus(f"n{cluster.dice.randrange(NODES)}")
            case 2 | 3 | 4 if cluster.placed:
                cluster.remove()
            case 5:
                cluster.leader.policies.seen(pod.request)
                await cluster.leader.policies.learn([one.gpus for one in cluster.leader.cluster.ledger.nodes()])
            case _ if node:
                cluster.place(pod, node)
    assert fast > 100, "the fast way is taken"


async def test_a_pod_whose_node_depends_on_other_pods_is_decided_the_slow_way() -> None:
    cluster = RankedCluster(0)
    pod = gpu_pod("p", (10, 4), schedulerName="gpuplane", metadata={"uid": "u", "labels": {"app": "a"}})
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
    pod["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    found = cluster.read(msgspec.convert(pod, RawPod))
    assert found is not None and cluster.ranking.best(found) is None


@pytest.mark.parametrize("ask", [(40, 8), (100, 0)])
def test_nodes_in_the_same_state_are_rated_once_for_a_kind_that_is_new(
    monkeypatch: pytest.MonkeyPatch, ask: tuple[int, int]
) -> None:
    cluster = RankedCluster(1)
    for at in range(200):
        cluster.gpus(f"n{at}")
        cluster.node(f"n{at}")
    rated: list[str] = []

    def rate(state: NodeState, *rest: Any) -> Any:
        rated.append(state.name)
        return fit.rate(state, *rest)

    monkeypatch.setattr(feasibility, "rate", rate)
    pod = cluster.read(msgspec.convert(gpu_pod("new", ask, schedulerName="gpuplane"), RawPod))
    assert pod is not None and cluster.ranking.best(pod) is not None
    # Two amounts of CPU, eight sets of lost GPUs; nodes that the pod does not fit are rated one by one.
    unfit = sum(cluster.leader.filtering.answers(pod.request).value(f"n{at}") == float("-inf") for at in range(200))
    assert len(rated) <= 16 + unfit
