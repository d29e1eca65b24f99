"""The kubelet of simulated nodes: pods as real processes, the device plugin protocol, logs and exec.

    from tinykube.kubelet import run_node, stop_containers

See docs/components/kubelet.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tinykube.kubelet.platform import Platform
    from tinykube.kubelet.server import CallerCertificate
    from tinykube.kubelet.settings import KubeletSettings

__all__ = ["run_node", "stop_containers"]


async def run_node(
    *,
    node_name: str,
    directory: Path,
    platform: Platform,
    kubeconfig: Path,
    token: str = "",
    port: int = 0,
    settings: KubeletSettings | None = None,
    caller: CallerCertificate | None = None,
    private: Iterable[Path] = (),
) -> None:
    """One node, until cancelled; see `tinykube.kubelet.kubelet.run`."""
    from tinykube.kubelet.kubelet import run as run_kubelet

    await run_kubelet(
        node_name=node_name,
        directory=directory,
        platform=platform,
        kubeconfig=kubeconfig,
        token=token,
        port=port,
        settings=settings,
        caller=caller,
        private=private,
    )


def stop_containers(directory: Path) -> int:
    """Kills what still runs of a node whose kubelet is gone; how many containers."""
    from tinykube.kubelet.kubelet import stop_containers as stop

    return stop(directory)
