"""A machine with containerd and kubelet as a process of a cluster: `gpuplane run kubelet` for such a cluster.

The machine survives this process if it is killed; the next one finds it by its process 1.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from gpulab.kubernetes import images
from gpulab.kubernetes.control_plane import PlaneState, bridge_of, release_interfaces
from gpulab.kubernetes.node import KubernetesNode, cgroups_of, remove_cgroups
from gpulab.kubernetes.process import FOLDER, plane_of
from kubekit.errors import Terminal, UsageError
from tinykube.cluster import processes
from tinykube.cluster.directory import ClusterDirectory


def machine_of(directory: ClusterDirectory, name: str) -> KubernetesNode:
    """Return a node of such a cluster whose kubelet and containerd are real. Raises UsageError for an unknown one."""
    nodes = directory.spec().nodes
    number = next((number for number, node in enumerate(nodes) if node.name == name), None)
    if number is None:
        raise UsageError(f"the cluster has no node {name}", where=str(directory.spec_file))
    hardware, place = nodes[number].machine, directory.nodes / name
    return KubernetesNode(plane_of(directory), name, hardware, number=number, machines=len(nodes), directory=place)


async def run_machine(directory: ClusterDirectory, name: str) -> None:
    """Run a node's containerd and kubelet until cancelled. A machine that this process finds running goes on.

    Raises Unavailable where this machine can have none.
    """
    node = machine_of(directory, name)
    try:
        if not processes.alive(node.running()):
            node.stop()  # what a machine has left that was killed
            node.start()
        loading = asyncio.create_task(asyncio.to_thread(images.load, node, images_of(directory)))
        await processes.ended(node.running())
        await loading
        raise Terminal("the machine's process 1 has ended", where=str(node.directory / "init.log"))
    finally:
        node.stop()


def images_of(directory: ClusterDirectory) -> Path:
    """Return the folder with the archives of images for a cluster's machines."""
    return directory.path / FOLDER / "images"


def release(path: Path) -> None:
    """Free what the cluster in a directory holds elsewhere, once its processes have ended: interfaces and cgroups.

    It may be called again, and for any cluster.
    """
    file = path / FOLDER / "cluster.json"
    if os.geteuid() == 0 and file.exists():
        network = msgspec.json.decode(file.read_bytes(), type=PlaneState).network
        release_interfaces(bridge_of(network))
        for name in cgroups_of(network):
            remove_cgroups(name)
