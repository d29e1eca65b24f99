"""A burst of share pods of mixed sizes: how many a second are bound, and the checker's verdict.

They are placed by the cluster's scheduler with the extender, then by gpuplane's own scheduler, on the same cluster: as
they are created, and as a backlog that is stored before the scheduler starts.

    python benchmarks/burst.py [embedded] [real] [--pods 1000] [--nodes 60]

Our figures stand next to the limits of the same API server without
us: its Bindings posted by twenty callers and no scheduler, and its own scheduler with pods that ask for no GPU. Nodes
have 8 GPUs and no kubelet. Everything shares this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

from clusters import EMBEDDED, GPUS, REAL, cluster_parser, given_to_ours, run_on
from figures import section, show
from kubekit.api.core import Pod
from kubekit.kube import Client, Informer
from tests.support.share_burst import (
    Times,
    add_nodes,
    alive,
    burst,
    extending,
    following,
    mixed_shares,
    together,
    verdict,
)

PATIENCE_SECONDS = 600
GOALS = {EMBEDDED: 1000.0, REAL: 600.0}  # bound a second


def plain_pods(count: int, prefix: str, **spec: Any) -> list[dict[str, Any]]:
    """As large as ours, without GPUs."""
    pods = mixed_shares(count, prefix=prefix)
    for pod in pods:
        for container in pod["spec"]["containers"]:
            container["resources"] = {"requests": {"cpu": "10m"}}
        pod["spec"] |= spec
    return pods


async def bindings_alone(client: Client, count: int, nodes: list[str]) -> float:
    """Seconds for `count` Bindings that carry as much as ours."""
    pods = plain_pods(count, "alone-", schedulerName="nobody")
    uids: dict[str, str] = {}

    async def create(index: int) -> None:
        made = await client.create(pods[index], resource=Pod.RESOURCE)
        uids[made["metadata"]["name"]] = made["metadata"]["uid"]

    async def bind(index: int) -> None:
        name = pods[index]["metadata"]["name"]
        meta = {"name": name, "uid": uids[name], "annotations": {"benchmark/assignment": "x" * 320}}
        target = {"apiVersion": "v1", "kind": "Node", "name": nodes[index % len(nodes)]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        await client.request("POST", Pod.RESOURCE.path("default", name, "binding"), None, body)

    await together(count, create)
    began = time.monotonic()
    await together(count, bind)
    return time.monotonic() - began


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rate(times: Times) -> float:
    return len(times.bound) / times.bound[-1]


async def measure(kind: str, client: Client, kubeconfig: Path, port: int, count: int, nodes: int) -> bool:
    """Measure one cluster; return whether the checker found nothing."""
    section(f"{kind}: {count} pods, {nodes} nodes with {GPUS} GPUs")
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with extending(client, kubeconfig, port, pod_scheduler=True) as pid:
            made = await add_nodes(client, nodes, GPUS)
            async with alive(client, made):
                posted = count / await bindings_alone(client, count, made)
                alone = rate(await burst(client, plain_pods(count, "plain-")))
                ours, spent = await with_cpu(pid, burst(client, mixed_shares(count)))
                wrong = await verdict(client)
                await remove_pods(client)
                own, spent_own = await with_cpu(pid, burst(client, given_to_ours(mixed_shares(count, prefix="own-"))))
                wrong += await verdict(client)
                await remove_pods(client)
        async with alive(client, made):
            waiting = given_to_ours(mixed_shares(count, prefix="waits-"))
            await together(count, lambda at: client.create(waiting[at], resource=Pod.RESOURCE))
            async with counting(client, "waits-") as times, extending(client, kubeconfig, port, pod_scheduler=True):
                await times.until(count)
            wrong += await verdict(client)
    show("Bindings and nothing else", posted, "/s")
    show("pods without GPUs, scheduler alone", alone, "/s")
    show("share pods, with the extender", rate(ours), "/s", peer=f"{100 * rate(ours) / alone:.0f}% of without us")
    show("  the extender's CPU for a pod", 1000 * spent / count, "ms")
    show("  all of them stored after", ours.created, "s")
    show("  all of them bound after", ours.bound[-1], "s")
    show("share pods, own scheduler", rate(own), "/s", peer=f"{rate(own) / rate(ours):.1f} times the extender's")
    show("  its CPU for a pod", 1000 * spent_own / count, "ms")
    show("  all of them stored after", own.created, "s")
    show("  all of them bound after", own.bound[-1], "s")
    peer = (
        f"{100 * times.rate / posted:.0f}% of Bindings and nothing else; kube-scheduler {alone:.0f} pods without GPUs"
    )
    show("backlog of share pods, own scheduler", times.rate, "/s", least=GOALS[kind], peer=peer)
    print(f"checker: {'; '.join(wrong) or f'{count} pods hold their share, no GPU is over its core or memory'}")
    return not wrong


async def with_cpu(pid: int, work: Awaitable[Times]) -> tuple[Times, float]:
    """Return what the work returns, and the seconds of CPU that the process took meanwhile."""
    before = cpu_seconds(pid)
    times = await work
    return times, cpu_seconds(pid) - before


class BoundTimes:
    """When the pods with a prefix were bound, from the first to the last."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._bound: dict[str, float] = {}
        self._changed = asyncio.Event()

    def seen(self, _: Pod | None, pod: Pod | None) -> None:
        if pod is not None and pod.spec.node_name and pod.metadata.name.startswith(self._prefix):
            self._bound.setdefault(pod.metadata.name, time.monotonic())
            self._changed.set()

    async def until(self, count: int) -> None:
        while len(self._bound) < count:
            self._changed.clear()
            await self._changed.wait()

    @property
    def rate(self) -> float:
        """Return the pods bound a second after the first one."""
        return (len(self._bound) - 1) / (max(self._bound.values()) - min(self._bound.values()))


@contextlib.asynccontextmanager
async def counting(client: Client, prefix: str) -> AsyncIterator[BoundTimes]:
    times, informer = BoundTimes(prefix), Informer(client, Pod)
    informer.add_handler(times.seen)
    informer.start()
    try:
        await informer.synced()
        yield times
    finally:
        await informer.stop()


async def remove_pods(client: Client) -> None:
    """All pods of the cluster, so that its GPUs are free again."""
    pods = await client.list(Pod)
    await together(
        len(pods),
        lambda at: client.delete(Pod, pods[at].metadata.name, pods[at].metadata.namespace, grace_seconds=0),
    )
    async with following(client, Pod) as left:
        await left.until(lambda: not left.items())


def main() -> int:
    parser = cluster_parser(__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=60)
    options = parser.parse_args()
    return run_on(
        options.kinds,
        lambda kind, client, kubeconfig, port: measure(kind, client, kubeconfig, port, options.pods, options.nodes),
    )


if __name__ == "__main__":
    sys.exit(main())
