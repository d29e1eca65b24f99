"""A take-over of the scheduler: its leader is killed while pods wait; the time until the standby binds one of them.

    python benchmarks/take_over.py [embedded] [real] [--nodes 200] [--pods 5000]

Two replicas run as processes, with the account and the tokens of pods, on a cluster with bound shares. Measured by
watches: the kill, the lease in the standby's name, and the first Binding after it. Then the same once more with a
replica that reads the cluster when it takes the lease, as one does that is no pod. Nodes have 8 GPUs and no kubelet.
Everything shares this machine.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from clusters import GPUS, cluster_parser, given_to_ours, run_on
from figures import section, show
from gpuplane.scheduler.component import LEASE
from kubekit.api.core import LeaseObject, Pod
from kubekit.kube import Client
from tests.support.extender_world import gpu_pod
from tests.support.share_burst import add_nodes, alive, burst, extending, following, free_port, together, verdict

WAITING = 20


async def take_over(client: Client, kubeconfig: Path, standby: str) -> tuple[float, float]:
    """Seconds from the kill to the lease, and from there to the first Binding; `standby` is its pod, if it has one."""
    name = standby or "cold"
    leader = extending(client, kubeconfig, free_port(), pod_scheduler=True, pod=f"before-{name}")
    async with following(client, LeaseObject) as leases, leader as pid:

        def holder() -> str:
            return next((one.spec.holder_identity for one in leases.items() if one.metadata.name == LEASE), "")

        await leases.until(lambda: holder().startswith("before-"))
        first = holder()
        async with extending(client, kubeconfig, free_port(), pod_scheduler=True, pod=standby):
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            pods = given_to_ours([gpu_pod(f"{name}-{at}", (10, 4)) for at in range(WAITING)])
            await together(len(pods), lambda at: client.create(pods[at], resource=Pod.RESOURCE))
            async with following(client, Pod) as seen:
                await leases.until(lambda: holder() not in ("", first))
                taken = time.monotonic()
                waited = [pod["metadata"]["name"] for pod in pods]
                await seen.until(lambda: any(pod.spec.node_name for pod in seen.items() if pod.metadata.name in waited))
                return taken - killed, time.monotonic() - taken


async def measure(kind: str, client: Client, kubeconfig: Path, count: int, nodes: int) -> bool:
    """Measure one cluster; return whether the checker found nothing."""
    section(f"{kind}: {count} bound pods, {nodes} nodes with {GPUS} GPUs")
    made: list[str] = []
    async with extending(client, kubeconfig, free_port(), pod_scheduler=True):
        made = await add_nodes(client, nodes, GPUS)
        async with alive(client, made):
            await burst(client, given_to_ours([gpu_pod(f"p{at}", (10, 4)) for at in range(count)]))
    async with alive(client, made):
        for standby, text in (("warm", "a standby"), ("", "one that reads the cluster then")):
            lease, first = await take_over(client, kubeconfig, standby)
            show(f"{text}: from the kill to the lease", lease, "s")
            show("  from there to its first Binding", first, "s")
        wrong = await verdict(client)
    print(f"checker: {'; '.join(wrong) or 'no GPU is over its core or memory'}")
    return not wrong


def main() -> int:
    parser = cluster_parser(__doc__)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=200)
    options = parser.parse_args()
    return run_on(
        options.kinds,
        lambda kind, client, kubeconfig, _: measure(kind, client, kubeconfig, options.pods, options.nodes),
    )


if __name__ == "__main__":
    sys.exit(main())
