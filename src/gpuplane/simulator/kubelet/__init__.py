"""The kubelet of simulated nodes: pods as real processes, the device plugin protocol, logs and exec.

    from gpuplane.simulator.kubelet import run, stop_containers

See docs/components/kubelet.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["run", "stop_containers"]


async def run(*, node_name: str, directory: Path, kubeconfig: Path, token: str = "", port: int = 0) -> None:
    """One node, until cancelled; see `gpuplane.simulator.kubelet.kubelet.run`."""
    from gpuplane.simulator.kubelet.kubelet import run as run_kubelet

    await run_kubelet(node_name=node_name, directory=directory, kubeconfig=kubeconfig, token=token, port=port)


def stop_containers(directory: Path) -> int:
    """Kills what still runs of a node whose kubelet is gone; how many containers."""
    from gpuplane.simulator.kubelet.kubelet import stop_containers as stop

    return stop(directory)
