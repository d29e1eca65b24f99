"""Measures the meter of a node: the CPU of one reading every ten seconds, of 8 GPUs that 64 pods share.

    python benchmarks/meter.py

A machine with 8 simulated H100 in a temporary directory, a kubelet's socket that answers with the 64 pods, and the page
of each share. A reading is the exporter's own, without a scrape; the kubelet's part counts too. On a real driver NVML's
part is another: the simulated library answers from memory.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from figures import show
from gpuplane.exporter.operand import METER_SECONDS
from gpuplane.exporter.pods import GPUHolders
from gpuplane.exporter.render import entities
from gpuplane.exporter.usage import SharesInUse, node_reading
from gpuplane.hardware import open_gpus
from gpuplane.limits import GpuLimit, Limits, Owner, ShareStore
from gpuplane.metering import Meter
from gpuplane.names import LIMITS_DIR, VCUDA_CORE, VCUDA_MEMORY
from kubekit.protocol import podresources_pb2 as pb
from kubekit.protocol.sockets import KUBELET_DIR, POD_RESOURCES_SOCKET
from kubekit.rpc_server import serving
from simgpu import NATIVE, PROFILES, create_state

LIBRARIES = "usr/lib/x86_64-linux-gnu"
PROFILE = PROFILES["8x-h100"]
PODS, ROUNDS = 64, 100
LIST = "/v1.PodResourcesLister/List"
GOAL_PERCENT = 0.5


def machine(root: Path) -> None:
    """A node's root with the simulated driver loaded."""
    (root / "dev").mkdir()
    (root / LIBRARIES).mkdir(parents=True)
    shutil.copy(NATIVE / "libnvidia-ml.so.1", root / LIBRARIES)
    create_state(root / "dev/nvidiactl", PROFILE, "570.133.20", "bench")
    for index in range(PROFILE.count):
        (root / f"dev/nvidia{index}").touch()
    (root / KUBELET_DIR / POD_RESOURCES_SOCKET).parent.mkdir(parents=True)


def shared(root: Path) -> bytes:
    """Write 64 shares; return the kubelet's answer, with 12 ids of core and 40 of memory each."""
    gpus, store = open_gpus(root), ShareStore(root / LIMITS_DIR)
    uuids = [gpu.uuid for gpu in gpus.inventory()]
    gpus.close()
    answer = pb.ListPodResourcesResponse()
    for number in range(PODS):
        name, uuid, first = f"inference-{number}", uuids[number % len(uuids)], number // len(uuids)
        container = answer.pod_resources.add(name=name, namespace="ml").containers.add(name="server")
        for resource, size in ((VCUDA_CORE, 12), (VCUDA_MEMORY, 40)):
            ids = [f"{uuid}::{first * size + at}" for at in range(size)]
            container.devices.add(resource_name=resource, device_ids=ids)
        limits = Limits(gpus=(GpuLimit(uuid=uuid, core=12, memory_bytes=10 << 30),))
        store.write(name, limits, Owner(name=f"ml/{name}:server", namespace="ml", pod=name, container="server"))
    return answer.SerializeToString()


async def measure(root: Path) -> None:
    answer = shared(root)

    async def pods(request: bytes) -> AsyncIterator[bytes]:
        yield answer

    kubelet, gpus, meter, shares = root / KUBELET_DIR, open_gpus(root), Meter(), SharesInUse(root)
    holders = GPUHolders(kubelet)
    async with serving({LIST: pods}, kubelet / POD_RESOURCES_SOCKET):
        before = 0.0
        for number in range(ROUNDS + 1):
            if number == 1:  # the first reading opens what the others have open
                before = time.process_time()
            held = await holders.holders()
            inventory, samples = gpus.inventory(), gpus.samples()
            shown = entities(inventory, samples)
            meter.read(node_reading(time.monotonic_ns(), shown, samples, held, {}, shares.read()))
        spent = (time.process_time() - before) / ROUNDS
    gpus.close()
    assert sum(who is not None for _, who in meter.totals) == PODS
    show(f"CPU of a reading of 8 GPUs with {PODS} shares", spent * 1000, "ms")
    show("  of a core, with a reading every 10 s", 100 * spent / METER_SECONDS, "%", goal=GOAL_PERCENT)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        machine(Path(directory))
        asyncio.run(measure(Path(directory)))


if __name__ == "__main__":
    main()
