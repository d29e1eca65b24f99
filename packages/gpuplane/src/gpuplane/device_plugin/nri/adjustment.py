"""Makes the adjustment of a container from the responses of Allocate that were deferred to its creation. Pure."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from typing import Final

from gpuplane import names
from gpuplane.device_plugin.nri.deferred import WHY_NOTHING, DeferredAllocation
from gpuplane.host import HostMount
from kubekit.errors import Terminal
from kubekit.protocol import nri_pb2 as pb

_CDI_ANNOTATION: Final = "cdi.k8s.io/"

DeviceNumbers = Mapping[str, tuple[int, int, int]]
"""Path on the host -> mode, major and minor number of what is there."""


def adjustment(given: Iterable[DeferredAllocation], devices: DeviceNumbers) -> pb.ContainerAdjustment:
    """The answer to the runtime.

    Args:
        devices: of all device nodes that the container gets.

    Raises Terminal when one is not there.
    """
    adjusted = pb.ContainerAdjustment()
    envs: dict[str, str] = {}
    cdi: dict[str, None] = {}
    mounts: dict[str, HostMount] = {}
    for one in given:
        allocation = one.allocation
        envs |= allocation.envs
        mounts |= {mount.container_path: mount for mount in allocation.mounts}
        cdi |= dict.fromkeys(allocation.cdi_devices)
        for key, value in allocation.annotations.items():
            if key.startswith(_CDI_ANNOTATION):  # read by the runtime before plugins are asked
                cdi |= dict.fromkeys(value.split(","))
        for node in allocation.devices:
            if node.host_path not in devices:
                raise Terminal("the device node is not there", where=node.host_path)
            mode, major, minor = devices[node.host_path]
            file_mode = pb.OptionalFileMode(value=stat.S_IMODE(mode))
            adjusted.linux.devices.add(
                path=node.container_path, type="c", major=major, minor=minor, file_mode=file_mode
            )
    for key, value in envs.items():
        adjusted.env.add(key=key, value=value)
    adjusted.env.add(key=names.NO_GPU_ENV)  # NB: empty, for runtimes drop requests to take a variable away
    for mount in mounts.values():
        options = ["rbind", "rprivate", "ro" if mount.read_only else "rw"]
        adjusted.mounts.add(destination=mount.container_path, type="bind", source=mount.host_path, options=options)
    for name in cdi:
        adjusted.CDI_devices.add(name=name)
    return adjusted


def started_without_devices(container: pb.Container) -> bool:
    """Return whether a container was created without what it is to get: its plugin was away."""
    waited = any(key.startswith(names.NRI_GIVEN_PREFIX) for key in container.annotations)
    return waited and f"{names.NO_GPU_ENV}={WHY_NOTHING}" in container.env
