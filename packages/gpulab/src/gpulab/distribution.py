"""gpuplane as the program that embedded clusters belong to."""

from __future__ import annotations

import sys
from typing import Final

from tinykube.distribution import Distribution


def _check_machine(name: str) -> None:
    from simgpu.machines import machine  # not needed by the processes of a cluster, which all import this module

    machine(name)


GPUPLANE: Final = Distribution(
    name="gpuplane",
    command=(sys.executable, "-m", "gpuplane", "run"),
    home_variable="GPUPLANE_HOME",
    check_machine=_check_machine,
)
