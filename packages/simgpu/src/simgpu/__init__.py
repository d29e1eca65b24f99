"""Simulated GPUs: hardware profiles, the state that the simulated driver's libraries share, faults, and GPUs without
any library for light nodes."""

from __future__ import annotations

from gpulab.light.gpus import SimulatedGPUs
from simgpu.catalogue import PROFILES, profile
from simgpu.faults import Faults, in_use
from simgpu.profile import GPUModel, MigProfileSpec, Place, Profile
from simgpu.state import create_state, cuda_version

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
