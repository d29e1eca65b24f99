"""The compute mode of GPUs: whether any process may use one, or one at a time. NVML has to be open."""

from __future__ import annotations

from typing import Final

import pynvml

from gpuplane.hardware.binding import ask, need

DEFAULT: Final = pynvml.NVML_COMPUTEMODE_DEFAULT
EXCLUSIVE_PROCESS: Final = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


def compute_mode(uuid: str) -> int | None:
    """One of NVML_COMPUTEMODE_*; None where the GPU knows none."""
    mode: int | None = ask(pynvml.nvmlDeviceGetComputeMode, need(pynvml.nvmlDeviceGetHandleByUUID, uuid))
    return mode


def set_compute_mode(uuid: str, mode: int) -> bool:
    """Set it; False where the GPU offers no such mode, or this process may not."""
    handle = need(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    ask(pynvml.nvmlDeviceSetComputeMode, handle, mode)
    return compute_mode(uuid) == mode
