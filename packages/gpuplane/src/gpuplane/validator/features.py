"""Parts of a driver that not every node has: GPUDirect Storage, GDRCopy, peer memory.

A driver image lists in `.driver-ctr-ready` those that it is configured to load; the kernel lists the loaded modules.
For each that is loaded the status file is there that NVIDIA's validator writes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuplane import names
from gpuplane.host import Host
from gpuplane.validator.checks import ValidationProblem, parse_env


class Feature(msgspec.Struct, frozen=True):
    """`switch` is its name in `.driver-ctr-ready`, `module` the kernel's, `file` its status file."""

    switch: str
    module: str
    file: str


FEATURES: Final = (
    Feature("GDS_ENABLED", "nvidia_fs", "nvidia-fs-ready"),
    Feature("GDRCOPY_ENABLED", "gdrdrv", "gdrcopy-ready"),
    Feature("GPU_DIRECT_RDMA_ENABLED", "nvidia_peermem", "nvidia-peermem-ready"),
)


OTHERS: Final = (
    *(feature.file for feature in FEATURES),
    *(path.rpartition("/")[2] for path in (names.DRIVER_READY, names.TOOLKIT_READY, names.DRIVER_CONTAINER_READY)),
)
"""Names of the status files that are not those of steps."""


def enabled(text: str) -> frozenset[str]:
    """The switches that are on, of lines as `GDS_ENABLED: true` or `GDS_ENABLED=true`."""
    values = parse_env(text.replace(": ", "=").replace(":\t", "="))
    return frozenset(name for name, value in values.items() if value.strip().lower() == "true")


def mark(host: Host) -> ValidationProblem | None:
    """Write and remove the status files after what is loaded; the first feature that should be and is not. Raises
    HostError."""
    wanted = enabled(host.read_text(names.DRIVER_CONTAINER_READY) or "")
    missing = None
    for feature in FEATURES:
        path = f"{names.VALIDATIONS_DIR}/{feature.file}"
        if host.exists(f"sys/module/{feature.module}"):
            host.write_atomic(path, b"", durable=False)
            continue
        host.remove(path, durable=False)
        if feature.switch in wanted and missing is None:
            missing = ValidationProblem(
                "DriverFeatureMissing",
                f"the driver is configured with {feature.switch}, and the module {feature.module} is not loaded",
                "/" + names.DRIVER_CONTAINER_READY,
                f"modprobe {feature.module}; see the log of the driver's pod for why it is not",
            )
    return missing
