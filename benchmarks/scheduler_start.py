"""The start of the pod scheduler on a large cluster: reading it, taking the lease, deciding; CPU and memory.

    python benchmarks/scheduler_start.py [--nodes 5000] [--pods 60000] [--decisions 2000]

The API server is played in this process, so its pages are part of the CPU, and nothing goes over HTTP. Nodes have 8
GPUs. The standby does the reading before it takes the lease; what then comes before its first decision is a take-over.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from extender import GPUS, PlayedClient  # noqa: E402
from figures import show  # noqa: E402
from gpuplane import names  # noqa: E402
from gpuplane.scheduler.leader import Leader  # noqa: E402
from gpuplane.scheduler.policies import Chosen  # noqa: E402
from gpuplane.scheduler.reservation import ReservationEvent  # noqa: E402
from kubekit.api.core import Node, Pod  # noqa: E402
from kubekit.api.raw import RawNode, RawPod  # noqa: E402
from kubekit.kube import EventRecorder, NotFound, SystemClock  # noqa: E402
from kubekit.kube.tasks import first_of  # noqa: E402
from pod_decisions import pods  # noqa: E402

GOAL_SECONDS, GOAL_MB, GOAL_DECISION_MS = 10.0, 400.0, 5.0


class LargeCluster(PlayedClient):
    """An API server with the nodes and pods, and no kinds but those of Kubernetes and gpuplane."""

    def __init__(self, nodes: int, count: int) -> None:
        super().__init__(nodes, count)
        self._makers |= {RawNode: self._makers[Node], RawPod: self._makers[Pod]}

    async def request(self, method: str, path: str, params: Any = None, body: Any = None) -> bytes:
        raise NotFound(path)

    async def get(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        raise NotFound(name)  # no leader has recorded moves

    async def list(self, kind: Any, *_: Any) -> Any:
        raise NotFound(kind.RESOURCE.plural)  # no resource claims

    async def create(self, obj: Any, **_: Any) -> Any:
        return obj


async def measure(nodes: int, count: int, decisions: int) -> None:
    client: Any = LargeCluster(nodes, count)
    clock = SystemClock()
    leader = Leader(client, EventRecorder(client, "x"), Chosen(), clock, time.time_ns, names.SCHEDULER_NAME)
    assert leader.pods is not None
    began = time.process_time()
    following = asyncio.create_task(leader.follow())
    await leader.cluster.synced()
    read = time.process_time()
    ready = asyncio.Event()
    leading = asyncio.create_task(leader.lead(ready.set))
    assert await first_of(ready.wait(), leading) == 0, "the leader ended"
    taken = time.process_time()
    times = []
    for pod in pods(decisions):
        start = time.process_time()
        decision = leader.pods.single.decide(pod)
        if decision.node and pod.info is not None:
            leader.binder.reserve(pod, decision.node, leader.filtering, ReservationEvent.BIND)
            leader.pods.model.assume(msgspec.structs.replace(pod.info, node_name=decision.node))
        times.append(1000 * (time.process_time() - start))
    show("reading the cluster, CPU", read - began, "s")
    show("from the lease until pods are decided, CPU", taken - read, "s")
    show("from the start to the first decision, CPU", taken - began + times[0] / 1000, "s", goal=GOAL_SECONDS)
    times.sort()
    show("decision for a pod, CPU, median", times[len(times) // 2], "ms")
    show("decision for a pod, CPU, 99 of 100", times[len(times) * 99 // 100], "ms", goal=GOAL_DECISION_MS)
    show("longest: the first of a kind", times[-1], "ms")
    show("memory at most", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB", goal=GOAL_MB)
    for task in (leading, following):
        task.cancel()
    await asyncio.gather(leading, following, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=60_000)
    parser.add_argument("--decisions", type=int, default=2000)
    options = parser.parse_args()
    print(f"{options.nodes} nodes with {GPUS} GPUs, {options.pods} bound pods")
    asyncio.run(measure(options.nodes, options.pods, options.decisions))


if __name__ == "__main__":
    main()
