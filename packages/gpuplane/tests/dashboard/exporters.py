"""An exporter for the GPUs of all nodes of a scene: each scrape finds minutes more on its meter."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import NamedTuple

from gpuplane import names
from gpuplane.metering import GPUReading, Hold, Meter, MeterNames, NodeReading, PodContainer, families
from kubekit.api.core import Pod
from kubekit.errors import Retryable
from kubekit.http_server import HttpAnswer, serving
from kubekit.kube.exposition import Metric, MetricFamily, MetricType, exposition, series
from tests.support.extender_world import World

PORT = 9400
TRIES = 20
BETWEEN_SECONDS = 400  # on the meter, between two scrapes
GIB = 1 << 30
# Name, value of a GPU without work, and what full work adds.
GAUGES = (
    ("DCGM_FI_DEV_GPU_UTIL", 0, 100),
    ("DCGM_FI_DEV_FB_USED", 0, 6963),
    ("DCGM_FI_DEV_POWER_USAGE", 30, 40),
    ("DCGM_FI_DEV_GPU_TEMP", 34, 40),
)


class Holding(NamedTuple):
    """The part of a GPU that a pod holds, and the part of the GPU's time that it uses."""

    pod: str
    part: float
    used: float
    memory_gib: float


def owned(who: PodContainer) -> dict[str, str]:
    return {"owner_kind": "Job", "owner": who.pod.rpartition("-")[0]}


class FakeExporter:
    """GPUs by node and number, each with its holders. Answers are those of a real meter, and some fields of DCGM."""

    def __init__(self, gpus: Mapping[tuple[str, int], Iterable[Holding]]) -> None:
        self._gpus = {key: tuple(holders) for key, holders in gpus.items()}
        self._meter = Meter()
        self._life = secrets.token_hex(8)
        self._seconds = 0
        self._used: dict[str, float] = {}
        self._advance(100)

    def _advance(self, seconds: int) -> None:
        self._seconds += seconds
        gpus, holds = [], []
        for (node, index), holders in self._gpus.items():
            uuid = f"GPU-{node}-{index}"
            memory = sum(one.memory_gib for one in holders)
            gpus.append(GPUReading(uuid=uuid, active=sum(h.used for h in holders), memory_bytes=int(memory * GIB)))
            for one in holders:
                self._used[one.pod] = self._used.get(one.pod, 0.0) + seconds * one.used
                namespace, _, name = one.pod.partition("/")
                who, used = PodContainer(namespace, name, "c0"), int(self._used[one.pod] * 1e9)
                bytes_ = int(one.memory_gib * GIB)
                holds.append(Hold(who=who, uuid=uuid, part=one.part, used_ns=used, memory_bytes=bytes_))
        self._meter.read(NodeReading(at_ns=self._seconds * 10**9, gpus=tuple(gpus), holds=tuple(holds)))

    async def metrics(self) -> HttpAnswer:
        labels = {
            f"GPU-{node}-{index}": {"gpu": str(index), "UUID": f"GPU-{node}-{index}", "Hostname": node}
            for node, index in self._gpus
        }
        gauges = []
        for name, least, more in GAUGES:
            values = [
                (series(labels[f"GPU-{node}-{index}"]), round(least + more * sum(one.used for one in holders)))
                for (node, index), holders in self._gpus.items()
            ]
            gauges.append(MetricFamily(Metric(name, MetricType.GAUGE, "as DCGM has it"), values))
        labelled = MeterNames(labels, owned, "all", self._life, self._meter.seconds)
        text = exposition([*families(self._meter.totals, labelled), *gauges])
        self._advance(BETWEEN_SECONDS)
        return HttpAnswer(text)


@contextlib.asynccontextmanager
async def served(exporter: FakeExporter) -> AsyncIterator[str]:
    """Serve the exporter at an address of this machine that no other test has; yields the address.

    NB: pods of embedded clusters have addresses from 127.64.0.0 on, and their Services from 127.128.0.0 on.
    """
    chosen = random.SystemRandom()
    async with contextlib.AsyncExitStack() as stack:
        for left in reversed(range(TRIES)):
            address = f"127.{chosen.randint(2, 63)}.{chosen.randint(0, 255)}.{chosen.randint(2, 254)}"
            try:
                await stack.enter_async_context(serving({"/metrics": exporter.metrics}, address, PORT))
            except Retryable:
                if not left:
                    raise
            else:
                break
        yield address


@contextlib.asynccontextmanager
async def exporting(world: World, gpus: Mapping[tuple[str, int], Iterable[Holding]]) -> AsyncIterator[None]:
    """The exporter as a pod of the operator's namespace."""
    labels = {"app": "nvidia-dcgm-exporter"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "nvidia-dcgm-exporter-x", "namespace": names.OPERATOR_NAMESPACE, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    async with served(FakeExporter(gpus)) as address:
        await world.client.create(pod, resource=Pod.RESOURCE)
        status = {"status": {"phase": "Running", "podIP": address}}
        await world.client.patch(
            Pod, "nvidia-dcgm-exporter-x", status, names.OPERATOR_NAMESPACE, subresource="status", manager="test"
        )
        yield
