"""The openb trace through a cluster: how much of its GPUs is held when as much has arrived as there is.

    python benchmarks/trace.py [embedded] [real] --data DIR [--through extender|scheduler] [--nodes 202] [--seed 42]

DIR has the openb traces, as for `packing.py`. A part of the trace's nodes, drawn by the seed, is made without kubelets,
and the pods of the trace arrive one after the other, with their CPU and memory, until they request 100% of the GPUs.
The cluster's scheduler places them with the extender, and gpuplane's own scheduler in a second cluster. `policy alone`
is `simulate packing` with the same nodes and pods, learning the mix as they arrive: what a scheduler can reach that
sees all nodes and loses no time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from clusters import cluster_parser, run_on
from figures import show
from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.simulate_files import read_jobs, read_machines
from gpuplane.sharing import of_pod
from gpuplane.sharing.packing import MILLI, Experiment, Job, PackingMachine, PolicyPlacer, arrivals, shuffled
from kubekit.api.core import Node, Pod
from kubekit.kube import AlreadyExists, Client, Informer
from tests.support.share_burst import alive, extending, following, together, verdict

MEMORY_MIB = 16384
PATIENCE_SECONDS, QUIET_SECONDS = 580, 8.0
ALL = 1213
EXTENDER, SCHEDULER = THROUGH = ("extender", "scheduler")
GOAL = 96.0  # percent held through the pod scheduler
PEER = "95.2 FGD's policy alone, published"


def manifest(number: int, job: Job, through: str) -> dict[str, Any]:
    """A pod of the trace; its number is in its name, since the trace's pods arrive more than once."""
    host = {"cpu": f"{job.cpu_milli}m", "memory": f"{job.memory_mib}Mi"}
    core = -(-job.load * 100 // MILLI)
    gpus = {names.VCUDA_CORE: str(core)} if core else {}
    container = {"name": "c", "image": "app", "resources": {"requests": host | gpus, "limits": gpus}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p{number}", "namespace": "default"},
        "spec": {"containers": [container]} | ({"schedulerName": names.SCHEDULER_NAME} if through == SCHEDULER else {}),
    }


async def add_machines(client: Client, machines: list[PackingMachine]) -> list[str]:
    async def add(at: int) -> None:
        machine = machines[at]
        amounts = {
            "cpu": f"{machine.cpu_milli}m",
            "memory": f"{machine.memory_mib}Mi",
            "pods": "500",
            names.VCUDA_CORE: str(100 * machine.gpus),
            names.VCUDA_MEMORY: str(MEMORY_MIB * machine.gpus // 256),
        }
        await client.create({"metadata": {"name": machine.name}}, resource=Node.RESOURCE)
        now = "2026-01-01T00:00:00Z"
        ready = {"type": "Ready", "status": "True", "reason": "Test", "lastTransitionTime": now}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        await client.patch(Node, machine.name, {"status": status}, subresource="status")
        gpus = [
            {"index": index, "uuid": f"GPU-{machine.name}-{index}", "model": machine.model, "memoryMib": MEMORY_MIB}
            for index in range(machine.gpus)
        ]
        body = {"metadata": {"name": machine.name}, "status": {"gpus": gpus}}
        await client.apply(body, "test", resource=GPUNode.RESOURCE)

    await together(len(machines), add)
    async with following(client, Node) as nodes:
        await nodes.until(lambda: not any(node.spec.taints for node in nodes.items()))
    account = {"metadata": {"name": "default"}}
    with contextlib.suppress(AlreadyExists):
        await client.request("POST", "/api/v1/namespaces/default/serviceaccounts", None, account)
    return [machine.name for machine in machines]


def decided(pod: Pod) -> bool:
    return bool(pod.spec.node_name) or any(
        condition.type == "PodScheduled" and condition.status == "False" for condition in pod.status.conditions
    )


async def arrive(client: Client, pods: list[dict[str, Any]]) -> tuple[list[Pod], float]:
    """The pods once each of them is bound or refused, and for a while no more was bound; seconds to the last one."""
    informer = Informer(client, Pod)
    changed, last = asyncio.Event(), [0.0]
    waiting = {pod["metadata"]["name"] for pod in pods}
    bound: set[str] = set()

    def seen(_: Pod | None, pod: Pod | None) -> None:
        if pod is not None and decided(pod):
            waiting.discard(pod.metadata.name)
            if pod.spec.node_name and pod.metadata.name not in bound:
                bound.add(pod.metadata.name)
                last[0] = time.monotonic()
            changed.set()

    informer.add_handler(seen)
    informer.start()
    await informer.synced()
    began = time.monotonic()
    await together(len(pods), lambda at: client.create(pods[at], resource=Pod.RESOURCE))
    while waiting or time.monotonic() - last[0] < QUIET_SECONDS:
        changed.clear()
        try:
            async with asyncio.timeout(1.0):
                await changed.wait()
        except TimeoutError:
            continue
    found = informer.items()
    await informer.stop()
    return found, last[0] - began


def held(pods: list[Pod]) -> int:
    """Percent of a GPU that bound pods hold."""
    return sum(
        core
        for pod in pods
        if pod.spec.node_name and (assignment := of_pod(pod)) is not None
        for core, _ in assignment.held().values()
    )


async def measure(
    kind: str,
    client: Client,
    kubeconfig: Path,
    port: int,
    through: str,
    machines: list[PackingMachine],
    arriving: list[Job],
) -> bool:
    """Print the percent of all GPUs that are held in the end; return whether the checker found nothing."""
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        extending(client, kubeconfig, port, pod_scheduler=through == SCHEDULER),
    ):
        made = await add_machines(client, machines)
        async with alive(client, made):
            pods, seconds = await arrive(client, [manifest(at, job, through) for at, job in enumerate(arriving)])
        total = sum(machine.gpus for machine in machines)
        placed = sum(bool(pod.spec.node_name) for pod in pods)
        print(f"  {placed} of {len(arriving)} pods bound in {seconds:.1f} s, {placed / seconds:.0f}/s", flush=True)
        least = GOAL if through == SCHEDULER else None
        show(f"held at 100% arrived, {kind}, {through}", held(pods) / total, "%", least=least, peer=PEER)
        wrong = await verdict(client)
    print(f"checker: {'; '.join(wrong) or 'no GPU is over its core or memory'}")
    return not wrong


def alone(machines: list[PackingMachine], jobs: list[Job], arriving: list[Job]) -> float:
    placer = PolicyPlacer(machines, jobs, "opportunity", known=False)
    for _ in Experiment(machines, jobs, arriving, placer).steps():
        pass
    return sum(sum(gpu for gpu, _ in assignment.held().values()) for _, _, assignment, _ in placer.ledger.pods()) / (
        MILLI / 100 * sum(machine.gpus for machine in machines)
    )


def main() -> int:
    parser = cluster_parser(__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("GPUPLANE_OPENB"), help="the openb traces")
    parser.add_argument("--nodes", type=int, default=ALL // 6, help="of the trace's 1,213 (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--through", choices=THROUGH, help="by default one after the other")
    options = parser.parse_args()
    if options.data is None:
        print("skipped: --data DIR or GPUPLANE_OPENB names the directory of the openb traces")
        return 0
    machines = shuffled(read_machines(options.data / "openb_node_list_gpu_node.csv"), options.seed)[: options.nodes]
    jobs = read_jobs(options.data / "openb_pod_list_default.csv")
    arriving = some_of(jobs, machines, options.seed)
    gpus = sum(machine.gpus for machine in machines)
    print(f"{len(machines)} nodes, {gpus} GPUs, {len(arriving)} pods, seed {options.seed}", flush=True)
    show("held at 100% arrived, policy alone", alone(machines, jobs, arriving), "%")
    status = 0
    for through in [options.through] if options.through else THROUGH:

        def one(kind: str, client: Client, kubeconfig: Path, port: int, through: str = through) -> Any:
            return measure(kind, client, kubeconfig, port, through, machines, arriving)

        status |= run_on(options.kinds, one)
    return status


def some_of(jobs: list[Job], machines: list[PackingMachine], seed: int) -> list[Job]:
    """The first pods of the trace's random order that together request no more than the machines' GPUs."""
    wanted, load, found = MILLI * sum(machine.gpus for machine in machines), 0, []
    for job in arrivals(jobs, machines, seed, 1.0):
        load += job.load
        if load > wanted:
            break
        found.append(job)
    return found


if __name__ == "__main__":
    sys.exit(main())
