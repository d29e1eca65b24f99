"""A burst of share pods of mixed sizes: how many a second are bound, and the checker's verdict.

They are placed by the cluster's scheduler with the extender, then by gpuplane's own scheduler, on the same cluster.

    python benchmarks/burst.py [embedded] [real] [--pods 1000] [--nodes 60]

`embedded` is the cluster of `gpuplane up`; `real` is etcd, kube-apiserver, kube-controller-manager and kube-scheduler,
built by `make test-kubernetes` (skipped where they are not). Beside ours stands what the same API server allows without
us: its Bindings posted by twenty callers and no scheduler, and its own scheduler with pods that ask for no GPU. Nodes
have 8 GPUs and no kubelet. Everything shares this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from figures import show  # noqa: E402
from gpulab.clusters import down, up  # noqa: E402
from gpulab.kubernetes.binaries import SETS, directory  # noqa: E402
from gpulab.kubernetes.control_plane import ControlPlane  # noqa: E402
from gpulab.kubernetes.unavailable import Unavailable  # noqa: E402
from gpuplane import names  # noqa: E402
from gpuplane.scheduler.configuration import kube_configuration  # noqa: E402
from kubekit.api.core import Pod  # noqa: E402
from kubekit.kube import Client  # noqa: E402
from tests.support.share_burst import (  # noqa: E402
    Times,
    add_nodes,
    alive,
    burst,
    extending,
    following,
    free_port,
    mixed_shares,
    together,
    verdict,
)
from tinykube.cluster import ClusterSpec  # noqa: E402

GPUS = 8
PATIENCE_SECONDS = 600
NAME = "burst"


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


async def measure(client: Client, kubeconfig: Path, port: int, count: int, nodes: int) -> bool:
    """Whether the checker found nothing."""
    async with asyncio.timeout(PATIENCE_SECONDS), extending(client, kubeconfig, port, pod_scheduler=True) as pid:
        made = await add_nodes(client, nodes, GPUS)
        async with alive(client, made):
            posted = count / await bindings_alone(client, count, made)
            alone = rate(await burst(client, plain_pods(count, "plain-")))
            before = cpu_seconds(pid)
            ours = await burst(client, mixed_shares(count))
            spent = cpu_seconds(pid) - before
            wrong = await verdict(client)
            await remove_pods(client)
            before = cpu_seconds(pid)
            alone_ours = await burst(client, given_to_ours(mixed_shares(count, prefix="own-")))
            spent_ours = cpu_seconds(pid) - before
        show("Bindings and nothing else", posted, "/s")
        show("pods without GPUs, scheduler alone", alone, "/s")
        show("share pods, with the extender", rate(ours), "/s", peer=f"{100 * rate(ours) / alone:.0f}% of without us")
        show("  the extender's CPU for a pod", 1000 * spent / count, "ms")
        show("  all of them stored after", ours.created, "s")
        show("  all of them bound after", ours.bound[-1], "s")
        times = f"{rate(alone_ours) / rate(ours):.1f} times the extender's"
        show("share pods, own scheduler", rate(alone_ours), "/s", peer=times)
        show("  its CPU for a pod", 1000 * spent_ours / count, "ms")
        show("  all of them stored after", alone_ours.created, "s")
        show("  all of them bound after", alone_ours.bound[-1], "s")
        wrong += await verdict(client)
    print(f"checker: {'; '.join(wrong) or f'{count} pods hold their share, no GPU is over its core or memory'}")
    return not wrong


def given_to_ours(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for pod in pods:
        pod["spec"]["schedulerName"] = names.SCHEDULER_NAME
    return pods


async def remove_pods(client: Client) -> None:
    """All pods of the cluster, so that its GPUs are free again."""
    pods = await client.list(Pod)
    await together(
        len(pods),
        lambda at: client.delete(Pod, pods[at].metadata.name, pods[at].metadata.namespace, grace_seconds=0),
    )
    async with following(client, Pod) as left:
        await left.until(lambda: not left.items())


def scheduler_config(directory: Path, port: int) -> Path:
    """As printed for users, but for kube-scheduler's own limit of 50 calls a second: that would be what is measured."""
    config = kube_configuration(f"http://127.0.0.1:{port}")
    config["clientConnection"] = {"qps": 5000, "burst": 5000}
    file = directory / "scheduler.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@contextlib.asynccontextmanager
async def embedded(scratch: Path, port: int) -> AsyncIterator[Path]:
    os.environ["GPUPLANE_HOME"] = str(scratch)
    handle = await up(ClusterSpec(name=NAME, scheduler_config=str(scheduler_config(scratch, port))), timeout=60)
    try:
        yield handle.kubeconfig
    finally:
        await down(NAME)


@contextlib.asynccontextmanager
async def real(scratch: Path, port: int) -> AsyncIterator[Path]:
    missing = [name for name in ("etcd", "kubernetes") if not directory(name).is_dir()]
    if missing:
        raise Unavailable(f"{', '.join(SETS[name].version_of for name in missing)} is not built: make test-kubernetes")
    plane = ControlPlane(scratch / "plane", scheduler_config=scheduler_config(scratch, port))
    plane.start()
    try:
        yield plane.kubeconfig
    finally:
        plane.stop()


CLUSTERS = {"embedded": embedded, "real": real}


async def run(kind: str, pods: int, nodes: int) -> bool:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="gpuplane-") as scratch:
        async with (
            CLUSTERS[kind](Path(scratch), port) as kubeconfig,
            Client.connect(kubeconfig, user_agent="benchmark") as client,
        ):
            print(f"\n{kind}: {pods} pods, {nodes} nodes with {GPUS} GPUs", flush=True)
            return await measure(client, kubeconfig, port, pods, nodes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="embedded|real", help="by default both")
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=60)
    options = parser.parse_args()
    well = True
    for kind in options.kinds or CLUSTERS:
        try:
            well &= asyncio.run(run(kind, options.pods, options.nodes))
        except Unavailable as why:
            print(f"\n{kind}: skipped: {why}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
