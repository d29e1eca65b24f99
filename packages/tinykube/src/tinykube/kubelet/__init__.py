"""The kubelet of simulated nodes: pods as real processes, the device plugin protocol, logs and exec.

    from tinykube.kubelet import run, run_node, stop_containers

See docs/components/kubelet.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kubekit.errors import Usage

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

__all__ = ["run", "run_node", "stop_containers"]


async def run(options: Namespace) -> None:
    """`gpuplane run kubelet --node-name N --kubeconfig FILE --config CLUSTER.JSON`, until cancelled.

    The machine that N is stands in the cluster's specification; its directory is made at the first start. Raises Usage.
    """
    from simgpu.machines import build_node, machine
    from tinykube.cluster.directory import ClusterDirectory

    where = "gpuplane run kubelet"
    if not (options.node_name and options.kubeconfig and options.config):
        raise Usage("a simulated node belongs to a cluster", where=where, cure="--node-name, --kubeconfig and --config")
    cluster = ClusterDirectory.of_config(options.config)
    node = next((node for node in cluster.spec().nodes if node.name == options.node_name), None)
    if node is None:
        raise Usage(f"the cluster has no node {options.node_name}", where=str(options.config))
    # A machine's files and a pod's volumes are read by containers of every user, whatever this user's habit is.
    os.umask(0o022)
    build_node(cluster.nodes / node.name, node.name, machine(node.machine))
    await run_node(
        node_name=node.name,
        directory=cluster.nodes / node.name,
        kubeconfig=options.kubeconfig,
        token=cluster.kubelet_token.read_text().strip(),
    )


async def run_node(*, node_name: str, directory: Path, kubeconfig: Path, token: str = "", port: int = 0) -> None:
    """One node, until cancelled; see `tinykube.kubelet.kubelet.run`."""
    from tinykube.kubelet.kubelet import run as run_kubelet

    await run_kubelet(node_name=node_name, directory=directory, kubeconfig=kubeconfig, token=token, port=port)


def stop_containers(directory: Path) -> int:
    """Kills what still runs of a node whose kubelet is gone; how many containers."""
    from tinykube.kubelet.kubelet import stop_containers as stop

    return stop(directory)
