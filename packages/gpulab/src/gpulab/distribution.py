"""gpuplane as the program that embedded clusters belong to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from gpuplane import names
from tinykube.distribution import Distribution


def _check_machine(name: str) -> None:
    from simgpu.machines import machine  # not needed by the processes of a cluster, which all import this module

    machine(name)


def _scheduler_config() -> str:
    """Return the configuration that points the scheduler at gpuplane's extender, for when it is installed."""
    from gpuplane.scheduler.configuration import printed

    return printed("kube")


def _release(cluster: Path) -> None:
    """Free the interfaces and cgroups of machines with containerd."""
    if (cluster / "kubernetes").is_dir():
        from gpulab.kubernetes.machine import release  # other clusters need none of its modules

        release(cluster)


GPUPLANE: Final = Distribution(
    name="gpuplane",
    command=(sys.executable, "-m", "gpuplane", "run"),
    home_variable="GPUPLANE_HOME",
    check_machine=_check_machine,
    scheduler_config=_scheduler_config,
    release=_release,
    scheduler_mounts={names.EXTENDER_CLIENT_DIRECTORY: (names.OPERATOR_NAMESPACE, names.EXTENDER_CLIENT_SECRET)},
)
