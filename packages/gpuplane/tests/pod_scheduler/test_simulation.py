"""`simulate packing --through scheduler` prints the result of a cluster with the same arrivals."""

from __future__ import annotations

import asyncio
import random

import pytest

from gpuplane.api.gpunode import GPUNode
from gpuplane.scheduler.simulation.objects import gpunode_of, node_of, pod_of
from gpuplane.scheduler.simulation.placers import ExtenderPlacer, SchedulerPlacer
from gpuplane.sharing import violations
from gpuplane.sharing.packing import Experiment, Job, PackingMachine, Placer
from kubekit.api.core import Node, Pod
from tests.support.extender_world import Running, World
from tests.support.node_taints import follow_conditions
from tests.support.scheduled_pods import reasons
from tests.support.until import until_objects

GPUS_OF = (2, 8, 4, 8, 1, 8, 2, 8)
MACHINES = [
    PackingMachine(f"n{at:02}", 12_000 * gpus, 49_152 * gpus, gpus, "T4" if at % 2 else "V100")
    for at, gpus in enumerate(GPUS_OF * 6)
]
TOTAL = 1000 * sum(machine.gpus for machine in MACHINES)
POINTS = 0.3


def arriving(seed: int) -> list[Job]:
    """Pods that request as many GPUs as there are, in sizes that leave fragments."""
    chance = random.Random(seed)
    found: list[Job] = []
    load = 0
    while True:
        gpus, milli = chance.choices(
            ((1, 1000), (1, 810), (1, 470), (1, 190), (1, 620), (2, 1000), (8, 1000), (0, 0)),
            weights=(30, 12, 14, 8, 8, 4, 1, 10),
        )[0]
        cpu = chance.choice((1000, 4000, 8000)) * max(1, gpus)
        models = ("V100",) if gpus == 1 and chance.random() < 0.05 else ()
        job = Job(f"p{len(found)}", cpu, 4096, gpus, milli, models)
        load += job.load
        if load > TOTAL:
            return found
        found.append(job)


def percent(jobs: list[Job]) -> float:
    return 100 * sum(job.load for job in jobs) / TOTAL


def simulate(placer: Placer, jobs: list[Job]) -> float:
    experiment = Experiment(MACHINES, jobs, jobs, placer)
    for _ in experiment.steps():
        pass
    assert violations(placer.ledger) == []
    return percent([job for job, placed in experiment.placements if placed is not None])


@pytest.mark.parametrize("seed", [42, 43])
async def test_a_cluster_holds_as_much_as_the_simulation_says(cluster: World, running: Running, seed: int) -> None:
    jobs = arriving(seed)
    simulated = await asyncio.to_thread(lambda: simulate(SchedulerPlacer(MACHINES, "opportunity"), jobs))
    for machine in MACHINES:
        node = node_of(machine)
        await cluster.client.create({"metadata": {"name": machine.name}}, resource=Node.RESOURCE)
        await cluster.client.patch(Node, machine.name, {"status": node["status"]}, subresource="status")
        await follow_conditions(cluster.server.registry, machine.name)
        status = gpunode_of(machine)["status"]
        await cluster.client.apply(
            {"metadata": {"name": machine.name}, "status": status}, "test", resource=GPUNode.RESOURCE
        )
    await running.until(lambda: running.leader.pods and running.leader.pods.model.cache.node_count == len(MACHINES))
    await running.until(lambda: sum(len(one.gpus) for one in running.leader.cluster.ledger.nodes()) == TOTAL // 1000)
    for job in jobs:
        pod = pod_of(job.name, job, "gpuplane")
        pod["metadata"] = {
            key: pod["metadata"][key] for key in ("name", "namespace", "annotations") if key in pod["metadata"]
        }
        await cluster.pod(pod)

    def decided(pods: list[Pod]) -> bool:
        return len(pods) == len(jobs) and all(pod.spec.node_name or reasons(pod) for pod in pods)

    await until_objects(cluster.client, Pod, decided)
    bound = {pod.metadata.name for pod in await cluster.client.list(Pod) if pod.spec.node_name}
    held = percent([job for job in jobs if job.name in bound])
    assert held > 85
    assert abs(held - simulated) <= POINTS


def test_the_scheduler_holds_more_than_kube_scheduler_with_the_extender() -> None:
    jobs = arriving(44)
    ours = simulate(SchedulerPlacer(MACHINES, "opportunity"), jobs)
    through_extender = simulate(ExtenderPlacer(MACHINES, "opportunity"), jobs)
    assert 80 < through_extender <= ours <= 100
