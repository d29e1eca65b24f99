"""Memory limits of control groups, which drivers have from r615 on. NVML has to be open.

The driver holds all processes of a group, and of those below it, to an amount of a GPU's memory, counted by the
kernel's dmem controller (Linux 6.14) or by itself. Setting them is root's; MIG devices have none.

Source: NVIDIA, NVML API reference, nvmlDeviceSetMemoryLimits_v1; "MPS v3 Memory Partitioning"; nvidia-ml-py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pynvml

from gpuplane.hardware.binding import ask, need, translate
from kubekit.errors import Terminal

FIRST_DRIVER: Final = 615
NO_LIMIT: Final = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
_ABSENT: Final = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED)
_CURE: Final = "a driver from r615 on, as root, on cgroup v2; or --backend interposed"


def set_memory_limit(uuid: str, group: Path, limit: int | None) -> None:
    """Hold a cgroup (a directory of version 2) to `limit` bytes of a GPU, which are then promised to it; None: to none.

    Raises Terminal where this driver has no memory limits, with what is known of it.
    """
    soft, hard = (0, NO_LIMIT) if limit is None else (limit, limit)
    wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=str(group).encode(), softLimit=soft, hardLimit=hard)
    handle = need(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    try:
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle, wanted)
    except pynvml.NVMLError as error:
        if error.value in _ABSENT:
            what = f"native: this driver has no memory limits: {ask(pynvml.nvmlSystemGetDriverVersion) or 'unknown'}"
            raise Terminal(what, where=uuid, cure=_CURE) from error
        raise translate(error, f"{group}: memory limits") from error


def memory_limit(uuid: str, group: Path) -> tuple[int | None, int] | None:
    """(limit, used) of a cgroup in bytes, limit None for none; None where this driver has no memory limits.

    NB: r615's own counting answers "not supported" for a group that never had a limit too.
    """
    found = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(group).encode())
    handle = need(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, found)
    except pynvml.NVMLError as error:
        if error.value in _ABSENT:
            return None
        raise translate(error, f"{group}: memory limits") from error
    return (None if found.hardLimit == NO_LIMIT else found.hardLimit), found.currentUsed
