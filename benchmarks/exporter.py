"""Measures a scrape: 8 GPUs that 64 pods share, from the request to the last byte.

    python benchmarks/exporter.py

A machine with 8 simulated H100 in a temporary directory, the exporter as it runs on a node, and a kubelet's
pod-resources socket that answers with the 64 pods. All in one process, so the kubelet's part and the client's count
too.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from figures import show
from gpuplane.exporter import run
from gpuplane.exporter.settings import EACH_HOLDER
from gpuplane.hardware import open_gpus
from gpuplane.operand import OperandContext
from kubekit.protocol import podresources_pb2 as pb
from kubekit.protocol.sockets import KUBELET_DIR, POD_RESOURCES_SOCKET
from kubekit.rpc_server import serving
from simgpu import NATIVE, PROFILES, create_state

LIBRARIES = "usr/lib/x86_64-linux-gnu"
PROFILE = PROFILES["8x-h100"]
PORT, PODS, ROUNDS = 19400, 64, 200
LIST = "/v1.PodResourcesLister/List"


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
    """The kubelet's answer: each pod holds a replica, eight a GPU."""
    gpus = open_gpus(root)
    answer = pb.ListPodResourcesResponse()
    uuids = [gpu.uuid for gpu in gpus.inventory()]
    gpus.close()
    for number in range(PODS):
        pod = answer.pod_resources.add(name=f"inference-{number}", namespace="team-a")
        device = f"{uuids[number % len(uuids)]}::{number // len(uuids)}"
        pod.containers.add(name="server").devices.add(resource_name="nvidia.com/gpu", device_ids=[device])
    return answer.SerializeToString()


async def scrape() -> tuple[float, bytes]:
    """Seconds that one GET of /metrics takes, and what it brought; waits for the port to open."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    start = time.perf_counter()
    writer.write(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    return time.perf_counter() - start, answer


async def measure(root: Path) -> None:
    os.environ[EACH_HOLDER] = "true"  # a line for each pod, which is not the default and costs more
    answer = shared(root)

    async def pods(request: bytes) -> AsyncIterator[bytes]:
        yield answer

    kubelet = root / KUBELET_DIR
    context = OperandContext(
        node_name="bench",
        namespace="gpu-operator",
        client=None,  # type: ignore[arg-type]  # the exporter asks the cluster nothing
        now=lambda: "",
        host_root=root,
        kubelet_dir=kubelet,
        address="127.0.0.1",
        port=PORT,
        open_gpus=lambda: open_gpus(root),
        sleep=asyncio.sleep,
    )
    async with serving({LIST: pods}, kubelet / POD_RESOURCES_SOCKET):
        exporter = asyncio.create_task(run(context))
        _, text = await scrape()
        assert text.count(b'pod="inference-') >= PODS
        before = resource.getrusage(resource.RUSAGE_SELF)
        times = [(await scrape())[0] * 1000 for _ in range(ROUNDS)]
        after = resource.getrusage(resource.RUSAGE_SELF)
        exporter.cancel()
        await asyncio.gather(exporter, return_exceptions=True)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    show(f"scrape of 8 GPUs with {PODS} pods, median", statistics.median(times), "ms", goal=10)
    show("  fastest", min(times), "ms")  # what another busy process cannot change
    show("  95th percentile", statistics.quantiles(times, n=20)[-1], "ms")
    show("  CPU, kubelet's and client's part included", spent / ROUNDS * 1000, "ms")
    show("  bytes of the answer", len(text) / 1024, "KiB")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        machine(Path(directory))
        asyncio.run(measure(Path(directory)))


if __name__ == "__main__":
    main()
