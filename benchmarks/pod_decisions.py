"""Decisions of the pod scheduler on a large cluster: milliseconds of CPU for a pod, without an API server.

    python benchmarks/pod_decisions.py [--nodes 5000] [--pods 5000]

Nodes have 8 GPUs; four of five pods are mixed shares, the others have no GPUs. Each pod is decided, reserved and
assumed bound. The first pod of a kind looks at all nodes, and so does the first one after the policies have learned.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from figures import show  # noqa: E402
from gpuplane import names  # noqa: E402
from gpuplane.scheduler.leader import Leader  # noqa: E402
from gpuplane.scheduler.pods.objects import (  # noqa: E402
    ScheduledPod,
    transform_scheduled_node,
    transform_scheduled_pod,
)
from gpuplane.scheduler.policies import Chosen  # noqa: E402
from gpuplane.scheduler.reservation import ReservationEvent  # noqa: E402
from gpuplane.sharing import LedgerGPU  # noqa: E402
from kubekit.api.raw import RawNode, RawPod  # noqa: E402
from kubekit.kube import EventRecorder, SystemClock  # noqa: E402
from tests.support.extender_world import gpu_pod  # noqa: E402
from tests.support.share_burst import SHARES  # noqa: E402

GPUS, MEMORY_MIB = 8, 15360
GOAL_MS, LEARN_EVERY = 5.0, 1000


def add_nodes(leader: Leader, count: int, labels: Callable[[int], dict[str, str]] = lambda at: {}) -> None:
    """Add nodes as watches would deliver them; `labels` are those of a node by its number."""
    amounts = {
        "cpu": "96",
        "memory": "512Gi",
        "pods": "110",
        names.VCUDA_CORE: str(100 * GPUS),
        names.VCUDA_MEMORY: str(MEMORY_MIB * GPUS // 256),
    }
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    for at in range(count):
        name = f"n{at:05}"
        meta = {"name": name, "uid": name, "resourceVersion": "1", "labels": labels(at)}
        raw = {"metadata": meta, "status": status}
        informer = leader.cluster.nodes
        informer._tell(informer._cache.upsert(transform_scheduled_node(msgspec.convert(raw, RawNode))))
        gpus = [LedgerGPU(index=gpu, uuid=f"{name}-{gpu}", model="T4", memory_mib=MEMORY_MIB) for gpu in range(GPUS)]
        leader.cluster.ledger.set_node(name, gpus, cpu_milli=96_000, host_memory_mib=512 << 10)


def pods(count: int) -> list[ScheduledPod]:
    dice, read = random.Random(1), transform_scheduled_pod(names.SCHEDULER_NAME)
    found = []
    for at in range(count):
        shares = [dice.choice(SHARES)] if at % 5 else []
        pod: dict[str, Any] = gpu_pod(f"p{at}", *shares, schedulerName=names.SCHEDULER_NAME)
        pod["metadata"]["uid"] = f"uid-{at}"
        if not shares:
            pod["spec"]["containers"] = [{"name": "c", "image": "app", "resources": {}}]
        pod["spec"]["containers"][0]["resources"].setdefault("requests", {}).update({"cpu": "1", "memory": "2Gi"})
        kept = read(msgspec.convert(pod, RawPod))
        assert kept is not None
        found.append(kept)
    return found


async def measure(nodes: int, count: int) -> None:
    nobody: Any = None
    clock = SystemClock()
    leader = Leader(nobody, EventRecorder(nobody, "x"), Chosen(), clock, lambda: 0, names.SCHEDULER_NAME)
    assert leader.pods is not None
    add_nodes(leader, nodes)
    times = []
    for at, pod in enumerate(pods(count)):
        leader.policies.seen(pod.request)
        if at % LEARN_EVERY == 16:
            await leader.policies.learn([state.gpus for state in leader.cluster.ledger.nodes()])
        began = time.process_time()
        decision = leader.pods.single.decide(pod)
        assert decision.node and pod.info is not None
        leader.binder.reserve(pod, decision.node, leader.filtering, ReservationEvent.BIND)
        leader.pods.model.assume(msgspec.structs.replace(pod.info, node_name=decision.node))
        times.append(1000 * (time.process_time() - began))
    times.sort()
    show("decision for a pod, CPU, median", times[len(times) // 2], "ms")
    show("decision for a pod, CPU, 99 of 100", times[len(times) * 99 // 100], "ms", goal=GOAL_MS)
    show("longest: the first of a kind", times[-1], "ms")
    show("memory at most", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=5000)
    options = parser.parse_args()
    print(f"{options.nodes} nodes with {GPUS} GPUs, {options.pods} pods")
    asyncio.run(measure(options.nodes, options.pods))


if __name__ == "__main__":
    main()
