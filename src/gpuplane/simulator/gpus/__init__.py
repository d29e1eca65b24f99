"""Simulated GPUs: hardware profiles, the state that the simulated driver's libraries share, faults, and GPUs without
any library for light nodes."""

from __future__ import annotations

from gpuplane.simulator.gpus.catalogue import PROFILES, profile
from gpuplane.simulator.gpus.faults import Faults, in_use
from gpuplane.simulator.gpus.profile import GPUModel, MigProfileSpec, Place, Profile
from gpuplane.simulator.gpus.simulated import SimulatedGPUs
from gpuplane.simulator.gpus.state import create_state, cuda_version

__all__ = [
    "PROFILES",
    "Faults",
    "GPUModel",
    "MigProfileSpec",
    "Place",
    "Profile",
    "SimulatedGPUs",
    "create_state",
    "cuda_version",
    "in_use",
    "profile",
]
