"""The power of a GPU by its model, idle and busy: a model for the policy `power` and for simulations, no measurement.

A GPU takes its busy watts while a pod holds any part of it, and its idle watts otherwise; CPUs do not count. Model and
figures of T4, A10, P100, V100 and A100: Lettich et al., "Power- and Fragmentation-aware Online Scheduling for GPU
Datacenters" (arXiv:2412.17484). Busy watts of the others are the thermal design power in NVIDIA's data sheets, idle
watts an eighth of it, as for the A100.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from gpuplane.sharing.request import matches


class GPUWatts(msgspec.Struct, frozen=True):
    idle: int
    busy: int

    @property
    def rise(self) -> int:
        """Return the watts that the first pod on the GPU adds."""
        return self.busy - self.idle


_UNKNOWN: Final = GPUWatts(25, 250)
_IDLE_PART: Final = 8

# By words of the model's name; the first that matches counts.
_WATTS: Final = {
    "T4": GPUWatts(10, 70),
    "A10": GPUWatts(30, 150),
    "P100": GPUWatts(25, 250),
    "V100": GPUWatts(30, 300),
    "A100": GPUWatts(50, 400),
    # Names of the openb trace. NB: what G2 and G3 are is not published; they count as A10 and A100.
    "V100M16": GPUWatts(30, 300),
    "V100M32": GPUWatts(30, 300),
    "G2": GPUWatts(30, 150),
    "G3": GPUWatts(50, 400),
    **{
        model: GPUWatts(busy // _IDLE_PART, busy)
        for model, busy in {
            "P4": 75,
            "P40": 250,
            "L4": 72,
            "A30": 165,
            "A40": 300,
            "A10G": 300,
            "L40": 300,
            "L40S": 350,
            "H100 PCIe": 350,
            "H100": 700,
            "H200": 700,
            "B200": 1000,
        }.items()
    },
}


@lru_cache(maxsize=4096)
def watts_of(model: str) -> GPUWatts:
    """Return the watts of a GPU with this name, as nvidia-smi prints it; 25 and 250 for an unknown model."""
    return next((watts for words, watts in _WATTS.items() if matches(model, words)), _UNKNOWN)
