"""Gangs of 8 pods on 1,000 nodes: CPU to decide and reserve a pod, with and without topology. No API server.

    python benchmarks/gangs.py [--nodes 1000] [--pods 2000]

Nodes have 8 GPUs, and 16 nodes are a rack. Each gang is decided as a whole by the scheduler's own code, reserved, and
assumed bound; no Binding is sent. Peer: kube-scheduler 1.36 with its own gangs, 104-114 pods a second when it scores
all placements, which is with Bindings.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import msgspec

from figures import show
from gpuplane import names
from gpuplane.scheduler.gangs.gang import annotated_gang
from gpuplane.scheduler.leader import Leader
from gpuplane.scheduler.pods.objects import ScheduledPod, transform_scheduled_pod
from gpuplane.scheduler.policies import Chosen
from gpuplane.scheduler.reservation import ReservationEvent
from kubekit.api.raw import RawPod
from kubekit.kube import EventRecorder, SystemClock
from pod_decisions import add_nodes
from tests.support.extender_world import gpu_pod

SIZE, RACK, GOAL_MS = 8, 16, 1.0  # 1,000 pods a second
PEER = "kube-scheduler 104-114 pods/s, with Bindings"
RACK_LABEL = "example.com/rack"


def gang(number: int, level: str, core: int) -> list[ScheduledPod]:
    read = transform_scheduled_pod(names.SCHEDULER_NAME)
    found = []
    for at in range(SIZE):
        name = f"g{number}-{at}"
        pod: dict[str, Any] = gpu_pod(name, (core, 4 if core < 100 else 0), schedulerName=names.SCHEDULER_NAME)
        pod["metadata"]["uid"] = name
        pod["metadata"]["annotations"] = {
            names.GANG_ANNOTATION: f"g{number}",
            names.GANG_SIZE_ANNOTATION: str(SIZE),
            **({names.GANG_REQUIRED_TOPOLOGY_ANNOTATION: level} if level else {}),
        }
        pod["spec"]["containers"][0]["resources"]["requests"] |= {"cpu": "1", "memory": "2Gi"}
        kept = read(msgspec.convert(pod, RawPod))
        assert kept is not None and not kept.trouble
        found.append(kept)
    return found


async def measure(nodes: int, count: int, level: str, core: int) -> float:
    """Return the milliseconds of CPU for a pod."""
    nobody: Any = None
    leader = Leader(nobody, EventRecorder(nobody, "x"), Chosen(), SystemClock(), lambda: 0, names.SCHEDULER_NAME)
    assert leader.pods is not None
    add_nodes(leader, nodes, lambda at: {RACK_LABEL: f"r{at // RACK}"})
    gangs = [gang(number, level, core) for number in range(count // SIZE)]
    began = time.process_time()
    for members in gangs:
        assert members[0].gang is not None
        declared = annotated_gang(members[0].gang)
        decision = leader.pods.gangs.placer.place(declared, members)
        assert len(decision.places) == SIZE, decision.message
        for place in decision.places:
            assert place.pod.info is not None
            leader.binder.reserve(place.pod, place.node, leader.filtering, ReservationEvent.BIND)
            leader.pods.model.assume(msgspec.structs.replace(place.pod.info, node_name=place.node))
    return 1000 * (time.process_time() - began) / (len(gangs) * SIZE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000)
    options = parser.parse_args()
    print(f"{options.nodes} nodes with 8 GPUs, {options.pods} pods in gangs of {SIZE}; decisions and reservations only")
    for level in ("", "node", RACK_LABEL, "gpu"):
        for core in (10,) if level == "gpu" else (100, 40):
            took = asyncio.run(measure(options.nodes, options.pods, level, core))
            what = f"{core}% each, topology {level or 'none'}"
            show(what, took, "ms", goal=GOAL_MS, peer=f"{1000 / took:,.0f} pods/s of CPU; {PEER}")


if __name__ == "__main__":
    main()
