"""Measures what NRI adds to the creation of a container: the whole way over the socket, to a simulated runtime.

    python benchmarks/nri.py

Both ends are in this process, so the runtime's part counts too. A share has its pod looked up, proved, and its limits
written; a container without GPUs is answered with nothing.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from figures import show
from gpuplane import names
from gpuplane.api.pluginconfig import PluginConfig
from gpuplane.device_plugin.container_lookup import AdmittedContainer, KubeletContainer
from gpuplane.device_plugin.kubelet_api import Allocation
from gpuplane.device_plugin.nri.connection import NriConnection
from gpuplane.device_plugin.nri.device_injector import DeviceInjector
from gpuplane.device_plugin.shares import ShareLimits, SharePlugin, Steering
from gpuplane.hardware import GPUFacts
from gpuplane.host import Host
from gpuplane.limits import RealLibraries
from gpuplane.sharing import Assignment, Part, request_of, to_annotations
from kubekit.api.core import Container, Pod, PodSpec, Resources
from kubekit.api.meta import ObjectMeta
from kubekit.protocol import nri_pb2 as pb
from tinykube.kubelet.runtimes.nri import Nri

ROUNDS = 500
GPUS = (GPUFacts(index=0, minor=0, uuid="GPU-0", model="L4", memory_bytes=24 << 30, pci="", compute=(8, 9)),)
PEER = "pod-resources List, which it replaces: 2.3 ms"


class Shares:
    """The node's one pod, and its limits."""

    def __init__(self, root: Path) -> None:
        self.pods = self
        self.steering = Steering(self, GPUS)
        self.limits = ShareLimits(root, lambda: "2026-01-01T00:00:00Z")
        self.limits._real = RealLibraries(Path("/usr/lib/libcuda.so.1"), Path("/usr/lib/libnvidia-ml.so.1"))
        asked = {names.VCUDA_CORE: "30", names.VCUDA_MEMORY: "20"}
        spec = PodSpec(node_name="n", containers=(Container(name="main", resources=Resources(limits={**asked})),))
        bare = Pod(metadata=ObjectMeta(name="pod", namespace="ml", uid="u"), spec=spec)
        said = to_annotations(Assignment({"main": (Part("GPU-0", 0, 30, 5120),)}), request_of(bare), "n", 1)
        self.pod = msgspec.structs.replace(bare, metadata=msgspec.structs.replace(bare.metadata, annotations=said))

    async def shown(self) -> tuple[KubeletContainer, ...]:
        return ()

    async def find(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Pod]:
        return dict.fromkeys(keys, self.pod)

    async def now(self, namespace: str, name: str) -> Pod | None:
        return self.pod

    def prove(self, holder: AdmittedContainer, core: Mapping[str, int]) -> Part:
        return self.steering.prove(holder, core)

    def write(self, share: str, holder: AdmittedContainer, part: Part) -> None:
        self.limits.write(share, holder, part)


async def measure(root: Path) -> None:
    shares, host = Shares(root), Host(root)
    runtime = Nri(root / names.NRI_SOCKET, "containerd", "2.4.2")
    runtime.open()
    link = NriConnection(host, DeviceInjector(host, shares, lambda pod, container: None), asyncio.sleep)
    assert await link.open()
    plugin = SharePlugin(names.VCUDA_CORE, GPUS, PluginConfig(), shares.steering, shares.limits, link=link)
    meta = shares.pod.metadata
    sandbox = pb.PodSandbox(id="s", uid=meta.uid, namespace="ml", name=meta.name, annotations=meta.annotations)
    for what, first in (("without GPUs", 0), ("with a share", 1), ("started again", -1)):
        taken = []
        for number in range(ROUNDS):
            at = number % 70 if first > 0 else 0
            ids = tuple(f"GPU-0::{at + n}" for n in range(30))
            told = plugin.allocate(ids) if first else Allocation()
            env = [f"{key}={value}" for key, value in told.envs.items()]
            asked = pb.Container(id="c", pod_sandbox_id="s", name="main", env=env, annotations=told.annotations)
            start = time.perf_counter()
            await runtime.create(sandbox, asked)
            taken.append(1000 * (time.perf_counter() - start))
        show(f"a container {what}, median", statistics.median(taken), "ms", peer=PEER if first else "")
        show("  p99", statistics.quantiles(taken, n=100)[98], "ms")
    await link.aclose()
    runtime.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))
