"""Simulated GPUs: hardware profiles, the state that the simulated driver's libraries share, and faults."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simgpu.catalogue import PROFILES, profile
from simgpu.faults import Faults, in_use
from simgpu.profile import GPUModel, GpuPlace, GpuProfile, MigProfileSpec
from simgpu.state import STATE_PATH, create_state, cuda_version

NATIVE: Final = Path(__file__).parent / "_native"
"""The simulated driver's libraries, and the programs of a simulated machine."""

PROGRAMS: Final = NATIVE / "programs"
"""Programs that stand for those of a container's image where the container has no root of its own."""

DEVICE_VARIABLE: Final = "SIMGPU_DEV"
"""The environment variable that names the directory of the GPUs' device nodes, where it is not /dev."""

__all__ = [
    "DEVICE_VARIABLE",
    "NATIVE",
    "PROFILES",
    "PROGRAMS",
    "STATE_PATH",
    "Faults",
    "GPUModel",
    "GpuPlace",
    "GpuProfile",
    "MigProfileSpec",
    "create_state",
    "cuda_version",
    "in_use",
    "profile",
]
