"""The processes of an embedded cluster, as `gpuplane run COMPONENT` starts them.

Every function runs until it is cancelled, and imports only what its process needs.
"""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

from gpulab.distribution import GPUPLANE
from kubekit.errors import UsageError

if TYPE_CHECKING:
    from tinykube.cluster.directory import ClusterDirectory
    from tinykube.kubelet.server import CallerCertificate


def _directory(options: Namespace, component: str) -> ClusterDirectory:
    from tinykube.cluster.directory import ClusterDirectory

    if options.config is None:
        raise UsageError("which cluster?", where=f"gpuplane run {component}", cure="--config DIRECTORY/cluster.json")
    return ClusterDirectory.of_config(GPUPLANE, options.config)


def _caller(directory: ClusterDirectory, name: str) -> CallerCertificate:
    from gpulab.kubernetes.pki import kubelet_caller

    return kubelet_caller(directory.pki, name)


async def run_cluster(options: Namespace) -> None:
    """Run the control plane of the cluster of `options.config`, its `cluster.json`.

    Raises UsageError without it, Terminal when the port is taken or the data cannot be read.
    """
    directory = _directory(options, "cluster")
    if directory.spec().kubernetes:
        from gpulab.kubernetes.process import run_control_plane

        await run_control_plane(directory)
        return
    from tinykube.controlplane import EmbeddedControlPlane

    await EmbeddedControlPlane(directory).run()


async def run_supervisor(options: Namespace) -> None:
    """Run the supervisor of the cluster of `options.config`; its end stops the cluster. Raises UsageError."""
    from tinykube.cluster.supervisor import supervise

    await supervise(_directory(options, "cluster-supervisor"))


async def run_kubelet(options: Namespace) -> None:
    """Run the kubelet of node `options.node_name`.

    The cluster's specification has the machine of the node. The machine is made at the first start. Raises UsageError.
    """
    from gpulab.images import IMAGES
    from gpulab.machines import find_machine
    from gpulab.platform import simulated_platform
    from simgpu.machines import build_node, restart_node
    from tinykube.cluster.membership import end_processes, note_restarted, restart_due
    from tinykube.cluster.supervisor import kubelet_process
    from tinykube.kubelet import run_node

    if not (options.node_name and options.kubeconfig and options.config):
        raise UsageError(
            "a simulated node belongs to a cluster",
            where="gpuplane run kubelet",
            cure="--node-name, --kubeconfig and --config",
        )
    cluster = _directory(options, "kubelet")
    spec = cluster.spec()
    if spec.containerd:
        from gpulab.kubernetes.machine import run_machine

        await run_machine(cluster, options.node_name)
        return
    node = next((node for node in spec.nodes if node.name == options.node_name), None)
    if node is None:
        raise UsageError(f"the cluster has no node {options.node_name}", where=str(options.config))
    # Containers of every user read a machine's files and a pod's volumes, whatever this user's umask is.
    os.umask(0o022)
    IMAGES.map(spec.images)
    directory = cluster.nodes / node.name
    build_node(directory, node.name, find_machine(node.machine))
    if restart_due(directory):
        end_processes(directory)
        restart_node(directory)
        note_restarted(directory)
    await run_node(
        node_name=node.name,
        directory=directory,
        platform=simulated_platform(directory),
        kubeconfig=options.kubeconfig,
        token="" if spec.kubernetes else cluster.kubelet_token(kubelet_process(node.name)),
        settings=node.kubelet,
        caller=_caller(cluster, node.name) if spec.kubernetes else None,
        private=(cluster.base,),
    )


async def run_cloud(options: Namespace) -> None:
    """Run the simulated cloud of the cluster of `options.config`. Raises UsageError; Terminal without moto."""
    if not (options.kubeconfig and options.config):
        raise UsageError("a cloud belongs to a cluster", where="gpuplane run cloud", cure="--kubeconfig and --config")
    from gpulab.cloud.process import run

    await run(_directory(options, "cloud"), options.kubeconfig)


async def run_light_nodes(options: Namespace) -> None:
    """Run the light nodes of the cluster of `options.config`. Raises UsageError."""
    from gpulab.images import IMAGES
    from gpulab.light import run_light_nodes as run

    if not (options.kubeconfig and options.config):
        raise UsageError(
            "light nodes belong to a cluster", where="gpuplane run light-nodes", cure="--kubeconfig and --config"
        )
    cluster = _directory(options, "light-nodes")
    spec = cluster.spec()
    IMAGES.map(spec.images)
    await run(
        count=spec.light_nodes,
        directory=cluster.path / "light-nodes",
        kubeconfig=options.kubeconfig,
        machine=spec.light_machine,
        secret="" if spec.kubernetes else cluster.kubelet_secret(),
        renew_seconds=spec.renew_seconds,
        caller=_caller(cluster, "light-nodes") if spec.kubernetes else None,
    )
