"""The demo's third act: four pods on one GPU, each held to its part, as `gpuplane share top` measures it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from gpulab.watching import watching
from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.gpus_text import cells, letter_of
from gpuplane.cli.terminal import Console
from kubekit.api.core import Node, Pod
from kubekit.api.quantity import whole
from kubekit.errors import KubekitError
from kubekit.kube import Client
from simgpu import DEVICE_VARIABLE
from tinykube.cluster import ClusterSpec

UNITS_PER_GIB: Final = 4  # of vcuda-memory
SECONDS: Final = 2.5  # that are measured


class Tenant(msgspec.Struct, frozen=True):
    """A pod and its part of the GPU: percent of its time, GiB of its memory; `asks` GiB more than it may have."""

    name: str
    core: int
    memory: int
    asks: int = 0


TENANTS: Final = (Tenant("tune", 30, 5), Tenant("serve", 30, 4), Tenant("nb", 20, 3), Tenant("ci", 10, 2, asks=3))
LATE: Final = Tenant("late", 20, 3)  # finds no room


class PodWay(msgspec.Struct, frozen=True):
    """The start of tenants on a cluster: an image, the path of its Python, the scheduler (empty for the cluster's)."""

    image: str = "python:3.11"
    python: str = sys.executable
    scheduler: str = ""


def pod_way(spec: ClusterSpec) -> PodWay:
    """Return how the tenants start on such a cluster."""
    if not spec.kubernetes:
        return PodWay()
    # kube-scheduler asks no extender: the pod scheduler places shares there.
    if not spec.containerd:
        return PodWay(scheduler=names.SCHEDULER_NAME)
    return PodWay(names.IMAGE, "/usr/bin/python3.11", names.SCHEDULER_NAME)


class Shared(msgspec.Struct, frozen=True, rename="camel"):
    """The share that one tenant was promised, and the share that it got. `core_percent` is of the GPU's time."""

    name: str
    core_limit: int
    core_percent: float
    memory_limit_bytes: int
    memory_bytes: int
    refused: int


async def offer_parts(client: Client, node: str) -> None:
    """The node offers parts of its GPUs instead of whole ones. Returns when it does."""
    await client.patch(Node, node, {"metadata": {"labels": {names.SHARE_LABEL: "enable"}}})
    async with watching(client, Node, fields=f"metadata.name={node}") as nodes:
        await nodes.until(lambda: any(whole(n.status.allocatable.get(names.VCUDA_CORE, 0)) for n in nodes.items()))


async def start(client: Client, node: str, way: PodWay) -> None:
    """Creates the tenants. Returns when all run and the node's GPUNode tells what is left."""
    for tenant in TENANTS:
        await client.create(pod_of(tenant, node, way), namespace="default")
    wanted = {tenant.name for tenant in TENANTS}
    async with watching(client, Pod, "default") as pods:
        await pods.until(lambda: wanted <= {p.metadata.name for p in pods.items() if p.status.phase == "Running"})
    left = f"{1 - sum(tenant.core for tenant in TENANTS) / 100:.1f}"
    async with watching(client, GPUNode, fields=f"metadata.name={node}") as nodes:
        await nodes.until(lambda: any(n.status.summary.free == left for n in nodes.items()))


async def measure(root: Path, enter: Sequence[str] = ()) -> tuple[Shared, ...]:
    """Measure the share of each tenant, in the order of `TENANTS`, on the machine whose files lie below `root`.

    `enter` begins a command that runs in the machine's namespaces, where `root` is then looked for.
    """
    words = ("-m", "gpuplane", "share", "top", "--host-root", str(root), "--interval", str(SECONDS), "-o", "json")
    # The machine's driver has its devices next to it, not where the user's shell says.
    env = {name: value for name, value in os.environ.items() if name != DEVICE_VARIABLE}
    process = await asyncio.create_subprocess_exec(
        *enter, sys.executable, *words, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise KubekitError(errors.decode().strip(), where="gpuplane share top")
    rows = {row["pod"]: row for gpu in json.loads(output)["gpus"] for row in gpu["shares"]}
    return tuple(_shared(tenant, rows.get(tenant.name)) for tenant in TENANTS)


def _shared(tenant: Tenant, row: dict[str, Any] | None) -> Shared:
    """Return the tenant's share; zero if no process of the tenant was seen on the GPU."""
    if row is None:
        return Shared(tenant.name, tenant.core, 0.0, tenant.memory << 30, 0, 0)
    return Shared(
        name=tenant.name,
        core_limit=row["coreLimit"],
        core_percent=round(row["corePercent"], 1),
        memory_limit_bytes=row["memoryLimitBytes"],
        memory_bytes=row["memoryBytes"],
        refused=row["refused"],
    )


def pod_of(tenant: Tenant, node: str, way: PodWay) -> dict[str, Any]:
    """The tenant's pod, on that node and nowhere else."""
    program = resources.files(__package__).joinpath("work.py").read_text()
    words = [str(tenant.memory - 1), *([str(tenant.asks)] if tenant.asks else [])]
    asked = {names.VCUDA_CORE: tenant.core, names.VCUDA_MEMORY: tenant.memory * UNITS_PER_GIB}
    container = {
        "name": "main",
        "image": way.image,
        "command": [way.python, "-c", program, *words],
        "resources": {"limits": asked},
    }
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    } | ({"schedulerName": way.scheduler} if way.scheduler else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": tenant.name}, "spec": spec}


def picture(where: str, memory_gib: float, shared: Sequence[Shared], screen: Console) -> Iterator[str]:
    """One GPU's bars, with what each tenant got of what it was promised."""
    letters = {row.name: letter_of(at) for at, row in enumerate(shared)}
    core = cells([(letters[row.name], row.core_limit / 100) for row in shared], screen)
    memory = cells([(letters[r.name].lower(), r.memory_limit_bytes / 2**30 / memory_gib) for r in shared], screen)
    told = "   ".join(f"{letters[row.name]} {row.name} {row.core_percent:.1f} of {row.core_limit}%" for row in shared)
    yield f" {where:8} core    {core}   {told}"
    refused = (
        f"{letters[row.name]} asked for more than its {row.memory_limit_bytes >> 30} GiB: refused"
        for row in shared
        if row.refused
    )
    yield f" {'':8} memory  {memory}   {'; '.join(refused)}".rstrip()
