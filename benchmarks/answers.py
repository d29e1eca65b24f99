"""Measures the processor time of `gpuplane status` and `gpuplane explain` on a cluster of 200 nodes.

python benchmarks/answers.py [NODES]

The whole command is counted: its start, its imports, the lists, the page. A quiet machine answers in about that time.
The peer is a program with lightkube, a typed client for Python, that lists the nodes and pods and does nothing else.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from figures import show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tests.support

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, StageName
from kubekit.api.core import Node
from tests.support.extender_world import World, gpu_pod, world

GPUS, PODS_A_NODE, RUNS, AT_ONCE = 8, 8, 5, 16
PEER = """
import sys
from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import Node, Pod
client = Client(config=KubeConfig.from_file(sys.argv[1]))
assert list(client.list(Node)) and list(client.list(Pod, namespace="*"))
"""


async def fill(cluster: World, nodes: int) -> None:
    """Nodes with GPUs and whole pods on them; other pods as many again; and one pod that waits."""
    limit = asyncio.Semaphore(AT_ONCE)
    stages = {stage.value: {"state": "done", "since": "2026-01-01T00:00:00.000000Z"} for stage in StageName}

    async def one(number: int) -> None:
        name = f"gpu-{number:03}"
        async with limit:
            await cluster.node(name, GPUS, labels={names.GPU_PRESENT_LABEL: "true"})
            status = {"stages": stages, "summary": {"stage": "ready"}}
            await cluster.client.patch(GPUNode, name, {"status": status})
            for pod in range(PODS_A_NODE):
                await cluster.pod(gpu_pod(f"p-{number}-{pod}", whole=1, nodeName=name))
                plain = gpu_pod(f"q-{number}-{pod}", nodeName=name)
                plain["spec"]["containers"] = [{"name": "c", "image": "app"}]
                await cluster.pod(plain)

    await asyncio.gather(*(one(number) for number in range(nodes)))
    await cluster.pod(gpu_pod("late", whole=2))
    assert len(await cluster.client.list(Node)) == nodes


async def cpu_seconds(*words: str) -> float:
    """Processor time of one program of this Python."""
    program = [sys.executable, *words]
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.DEVNULL)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert await process.wait() == 0, words
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def main(nodes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuplane-") as directory:
        async with world(Path(directory)) as cluster:
            await fill(cluster, nodes)
            config = Path(directory, "config")
            config.write_text(cluster.kubeconfig())
            peer = "lightkube is not installed"
            if find_spec("lightkube") is not None:
                listing = [await cpu_seconds("-c", PEER, str(config)) for _ in range(RUNS)]
                peer = f"{statistics.median(listing):.2f} lightkube, only to list nodes and pods"
            for words, goal in ((("status",), 0.3), (("explain", "late"), 0.5)):
                command = ("-m", "gpuplane", *words, "--kubeconfig", str(config))
                took = statistics.median([await cpu_seconds(*command) for _ in range(RUNS)])
                show(f"gpuplane {words[0]}, {nodes} nodes, processor time", took, "s", goal=goal, peer=peer)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 200))
