"""Two hundred fake nodes get ready on the real API server, with no more writes than on the embedded one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from gpulab.kubernetes.control_plane import ControlPlane
from gpulab.watching import node_is_ready
from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.cli.install_objects import apply
from gpuplane.operator.installation import installation
from kubekit.api.core import Node
from kubekit.kube import Client
from tests.support.realkube.audit import WRITES, requests
from tests.support.realkube.watching import gpu_node_is_ready, until_objects
from tinykube.cluster import ClusterHandle

COUNT: Final = 200
MACHINE: Final = "t4-ubuntu22"
OURS: Final = f"system:serviceaccount:{names.OPERATOR_NAMESPACE}:"
RESOURCES: Final = ("nodes", "gpunodes")
PATIENCE_S: Final = 400.0  # alone it takes a tenth of that
LIGHT_NODES: Final = """
import asyncio, sys
from pathlib import Path
from gpulab.light import run_light_nodes
asyncio.run(run_light_nodes(count={count}, directory=Path({directory!r}), kubeconfig=Path({kubeconfig!r}),
                            machine={machine!r}))
"""

Writes = Counter[tuple[str, str]]
"""Successful writes by (account, resource)."""


async def converge(kubeconfig: Path, count_writes: Callable[[], Awaitable[Writes]]) -> Writes:
    """Installs gpuplane and returns what was written until every node was ready."""
    async with Client.connect(kubeconfig) as client:
        await until_objects(client, Node, lambda nodes: sum(map(node_is_ready, nodes)) == COUNT, seconds=PATIENCE_S)
        for manifest in installation(admission="", scheduler=False):
            await apply(client, manifest)
        await until_objects(
            client, GPUNode, lambda nodes: sum(map(gpu_node_is_ready, nodes)) == COUNT, seconds=PATIENCE_S
        )
    return await count_writes()


def counted(control_plane: ControlPlane) -> Writes:
    found: Writes = Counter()
    for request in requests(control_plane.audit_log):
        user, resource = request.user.username, request.object_ref.resource
        if resource in RESOURCES and request.verb in WRITES and user.startswith(OURS):
            found[user.removeprefix(OURS), resource] += request.response_status.code < 300
    return found


async def counted_embedded(handle: ClusterHandle) -> Writes:
    async with Client.connect(handle.kubeconfig) as client:
        text = (await client.request("GET", "/metrics")).decode()
    found: Writes = Counter()
    pattern = r'verb="(\w+)",resource="(nodes|gpunodes)",subresource="[^"]*",user="([^"]*)"\} (\d+)'
    for verb, resource, user, number in re.findall(pattern, text):
        if verb in WRITES and user.startswith(OURS):
            found[user.removeprefix(OURS), resource] += int(number)
    return found


async def test_no_more_writes_than_on_the_embedded_cluster(
    own_control_plane: ControlPlane, embedded_cluster: Any, tmp_path: Path
) -> None:
    handle = await embedded_cluster(light_nodes=COUNT, light_machine=MACHINE)
    embedded = await converge(handle.kubeconfig, lambda: counted_embedded(handle))

    async def count() -> Writes:
        return counted(own_control_plane)

    script = LIGHT_NODES.format(
        count=COUNT, directory=str(tmp_path / "light"), kubeconfig=str(own_control_plane.kubeconfig), machine=MACHINE
    )
    nodes = await asyncio.create_subprocess_exec(sys.executable, "-c", script, start_new_session=True)
    try:
        real = await converge(own_control_plane.kubeconfig, count)
    finally:
        os.killpg(nodes.pid, signal.SIGTERM)
        await nodes.wait()
    print(f"writes a node: embedded {sum(embedded.values()) / COUNT:.2f}, real {sum(real.values()) / COUNT:.2f}")
    by_account = {key: (embedded[key], real[key]) for key in embedded | real}
    print(by_account)
    # A busy machine moves a report or two from one write into the next; more than that is a difference.
    assert sum(real.values()) <= sum(embedded.values()) * 1.02, by_account
