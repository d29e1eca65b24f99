"""A thousand light nodes from bare to ready: time, writes for each node, writes once settled, memory of the operator.

    python benchmarks/scale.py [NODES [MACHINE]]

MACHINE is one of `gpuplane up --list-machines`; by default a T4 machine without a driver, so that every node installs
one. With t4-light it is there already, as on many cloud images.

Everything above the hardware is production code: API server, scheduler, controllers, kubelet protocol and operands on
one side, the operator in its own process on the other. Writes are counted by the API server, by user.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from figures import show
from gpulab.clusters import down, up
from gpulab.watching import node_is_ready, watching
from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.install_objects import apply
from gpuplane.operator.installation import installation
from kubekit.api.core import Node
from kubekit.kube import Client
from tinykube.cluster import ClusterHandle, ClusterSpec
from tinykube.cluster.kubeconfig import save

NAME = "scale"
SETTLED_SECONDS = 20.0
WRITES = ("create", "update", "patch", "delete")
KUBELETS = ("system:node:", "system:light-nodes", "kubernetes-admin")
OURS = f"system:serviceaccount:{names.OPERATOR_NAMESPACE}:"
GOAL_SECONDS, GOAL_WRITES, GOAL_OPERATOR_MIB = 60.0, 12.0, 150.0


async def writes(client: Client) -> Counter[tuple[str, str]]:
    """Writes of nodes and gpunodes so far, by (user without namespace, resource), without the kubelets'."""
    text = (await client.request("GET", "/metrics")).decode()
    found: Counter[tuple[str, str]] = Counter()
    for verb, resource, user, number in re.findall(
        r'verb="(\w+)",resource="(nodes|gpunodes)",subresource="[^"]*",user="([^"]*)"\} (\d+)', text
    ):
        if verb in WRITES and not user.startswith(KUBELETS):
            found[user.removeprefix(OURS), resource] += int(number)
    return found


def resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


async def measure(nodes: int, machine: str) -> None:
    began = time.monotonic()
    handle = await up(ClusterSpec(name=NAME, light_nodes=nodes, light_machine=machine), timeout=120)
    async with Client.connect(handle.kubeconfig, user_agent="benchmark") as client:
        async with watching(client, Node) as bare:
            await bare.until(lambda: sum(map(node_is_ready, bare.items())) == nodes)
        show("register nodes", time.monotonic() - began, "s")
        for manifest in installation(admission="", scheduler=False):
            if manifest["kind"] != "Deployment":
                await apply(client, manifest)
        token = await operator_token(client)
        kubeconfig = Path(os.environ["GPUPLANE_HOME"]) / "operator.kubeconfig"
        save(kubeconfig, context=NAME, server=handle.server, ca=ca(handle), user="gpu-operator", token=token)
        command = [sys.executable, "-m", "gpuplane", "run", "operator", "--kubeconfig", str(kubeconfig), "--port", "0"]
        with (kubeconfig.parent / "operator.log").open("wb") as log:
            operator = subprocess.Popen(command, stderr=log)  # noqa: ASYNC220 - once, before anything is measured
        try:
            await follow(client, operator, nodes)
        finally:
            operator.terminate()
            operator.wait()


def ca(handle: ClusterHandle) -> bytes:
    return (handle.directory / "pki" / "ca.crt").read_bytes()


async def operator_token(client: Client) -> str:
    path = f"/api/v1/namespaces/{names.OPERATOR_NAMESPACE}/serviceaccounts/gpu-operator/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
    answer = msgspec.json.decode(await client.request("POST", path, None, body))
    return str(answer["status"]["token"])


async def follow(client: Client, operator: subprocess.Popen[bytes], nodes: int) -> None:
    began = time.monotonic()
    async with watching(client, GPUNode) as found:

        def ready() -> bool:
            return sum(node.status.summary.stage == "ready" for node in found.items()) == nodes

        await found.until(ready)
    took = time.monotonic() - began
    made = await writes(client)
    show(f"{nodes} nodes from bare to ready", took, "s", goal=GOAL_SECONDS * max(1.0, nodes / 1000))
    show("writes for each node", sum(made.values()) / nodes, "", goal=GOAL_WRITES)
    for (user, resource), number in sorted(made.items()):
        show(f"  {user}, {resource}", number / nodes, "")
    show("operator, resident", resident_mib(operator.pid), "MiB", goal=GOAL_OPERATOR_MIB)
    await asyncio.sleep(SETTLED_SECONDS)
    before = await writes(client)
    await asyncio.sleep(SETTLED_SECONDS)
    show(f"writes in {SETTLED_SECONDS:.0f} s once settled", sum((await writes(client) - before).values()), "", goal=0)


async def main(nodes: int, machine: str) -> None:
    with tempfile.TemporaryDirectory(prefix="gpuplane-") as home:
        os.environ["GPUPLANE_HOME"] = home
        try:
            await measure(nodes, machine)
        finally:
            await down(NAME)


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    asyncio.run(main(int(given.get(1, 1000)), given.get(2, "t4-ubuntu22")))
