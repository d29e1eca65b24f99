"""Placers that decide as a cluster does: our pod scheduler, and kube-scheduler with the extender.

Objects reach the scheduler's own view of the cluster as from a watch, and the code that a cluster runs decides. An API
server that binds at once stands at the end: a decided pod is delivered bound with its annotations. The policies learn
the mix as pods arrive.
"""

from __future__ import annotations

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.scheduler import wire
from gpuplane.scheduler.configuration import kube_configuration
from gpuplane.scheduler.pods.decide import choose_node
from gpuplane.scheduler.pods.objects import transform_scheduled_pod
from gpuplane.scheduler.pods.ranking import NodeRanking
from gpuplane.scheduler.policies import Chosen, Policies
from gpuplane.scheduler.simulation.objects import Manifest, bound, gpunode_of, node_of, pod_of
from gpuplane.scheduler.simulation.offline import OfflineCluster
from gpuplane.sharing import Assignment, Request, to_annotations
from gpuplane.sharing.packing import LESSON_EVERY, Job, PackingMachine
from gpuplane.sharing.placement import Placement
from kubekit.api.core import Pod
from kubekit.api.raw import RawPod
from kubekit.scheduling import decide, scores
from kubekit.scheduling.podinfo import DEFAULT_SCHEDULER, compile_pod

NO_GPUS: Final = Assignment({})


class ClusterPlacer(ABC):
    """A cluster's nodes and pods with a scheduler that has no client. Equal nodes are in the order of `machines`."""

    scheduler_name = DEFAULT_SCHEDULER

    def __init__(self, machines: Iterable[PackingMachine], policy: str) -> None:
        self._offline = OfflineCluster(self.scheduler_name, Policies(Chosen(policy)))
        self._pods = self._offline.pods
        self.cluster, self.cache = self._offline.cluster, self._offline.cache
        self.ledger, self.filtering = self.cluster.ledger, self._offline.filtering
        self._policies, self._reservations = self._offline.policies, self._offline.reservations
        self._requests: dict[Job, Request] = {}
        self._since_lesson = 0
        for machine in machines:
            self._offline.add_node(node_of(machine), msgspec.convert(gpunode_of(machine), GPUNode))
        self._learn()

    def request(self, job: Job) -> Request:
        kind = msgspec.structs.replace(job, name="")
        found = self._requests.get(kind)
        if found is None:
            pod = pod_of("any", job)
            cached = transform_scheduled_pod(DEFAULT_SCHEDULER)(msgspec.convert(pod, RawPod))
            assert cached is not None
            found = self._requests[kind] = cached.request
        return found

    def arrive(self, job: Job) -> None:
        request = self.request(job)
        if self.counts(request):
            self._policies.seen(request)
        self._since_lesson += 1
        if self._policies.behind or self._since_lesson >= LESSON_EVERY:
            self._learn()

    def place(self, key: str, job: Job) -> Assignment | None:
        pod = pod_of(key, job, self.scheduler_name)
        node = self.choose(pod)
        if not node:
            return None
        request = self.request(job)
        assignment, annotations = NO_GPUS, dict[str, str]()
        if request:
            self._reservations.retry(key)  # as `bind` does: what filter preferred is decided again
            placed = self.filtering.answers(request).place(node)
            assert isinstance(placed, Placement)  # else the node was not chosen
            assignment = placed.assignment
            annotations = to_annotations(assignment, request, node, 0, bound=True)
        self._offline.add_pod(bound(pod, node, annotations))
        return msgspec.structs.replace(assignment, node=node)

    def remove(self, key: str) -> None:
        self._offline.remove_pod(f"default/{key}")

    def counts(self, request: Request) -> bool:
        """Return whether policies learn from such a pod."""
        return True

    @abstractmethod
    def choose(self, pod: Manifest) -> str:
        """Return the node for a pod that waits; empty where it fits none."""

    def _learn(self) -> None:
        self._since_lesson = 0
        asyncio.run(self._policies.learn([state.gpus for state in self.ledger.nodes()]))


class SchedulerPlacer(ClusterPlacer):
    """Places as `schedulerName: gpuplane` does."""

    scheduler_name = names.SCHEDULER_NAME

    def __init__(self, machines: Iterable[PackingMachine], policy: str, seed: int = 0) -> None:
        super().__init__(machines, policy)
        self._chance = random.Random(seed)
        self._ranking = NodeRanking(self.cache, self.cluster, self.filtering)
        self._transform = transform_scheduled_pod(self.scheduler_name)

    def choose(self, pod: Manifest) -> str:
        read = self._transform(msgspec.convert(pod, RawPod))
        assert read is not None
        found = self._ranking.best(read)
        return found or choose_node(read, self.cache, self.filtering, self._chance.randrange(1 << 30)).node


class ExtenderPlacer(ClusterPlacer):
    """Places as kube-scheduler does with the extender, configured as `--print-config kube` prints it."""

    def __init__(self, machines: Iterable[PackingMachine], policy: str, seed: int = 0) -> None:
        super().__init__(machines, policy)
        self._chance = random.Random(seed)
        configuration = kube_configuration("http://extender")
        self._percent: int = configuration["percentageOfNodesToScore"]
        self._weight: int = configuration["extenders"][0]["weight"]
        self._start = 0

    def counts(self, request: Request) -> bool:
        """Return whether the extender is asked about such a pod: not without GPUs."""
        return bool(request)

    def choose(self, pod: Manifest) -> str:
        info = compile_pod(pod)
        found = decide.find(info, self.cache, start=self._start, percent=self._percent)
        self._start = found.next_start
        asks = "annotations" in pod["metadata"] or bool(pod["spec"]["containers"][0]["resources"]["limits"])
        feasible = found.feasible
        read = msgspec.convert(pod, Pod)
        if asks and feasible:
            args = wire.FilterArgs(read, [node.name for node in feasible])
            kept = set(json.loads(self.filtering.filter(args))["NodeNames"] or ())
            feasible = [node for node in feasible if node.name in kept]
        if not feasible:
            return ""
        if len(feasible) == 1:
            return feasible[0].name
        sums = scores.totals(info, self.cache, feasible)
        if asks:
            args = wire.FilterArgs(read, [node.name for node in feasible])
            given = {one["Host"]: one["Score"] for one in json.loads(self.filtering.prioritize(args))}
            scale = scores.BEST // wire.MAX_SCORE * self._weight
            sums = [have + given[node.name] * scale for have, node in zip(sums, feasible, strict=True)]
        return decide.best(feasible, sums, self._chance.randrange(1 << 30)).name
