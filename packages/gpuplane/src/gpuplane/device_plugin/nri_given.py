"""Defers a response of Allocate to NRI: stored in an annotation, found again when the container is created. Pure.

NRI fails open: without its plugin a container is created as the kubelet asked for it. So the kubelet gets no usable
device: `NVIDIA_VISIBLE_DEVICES=void`, a variable that says why there is no GPU, and an annotation of the container with
the devices to add. The kubelet stores this response with the container that holds the ids, so the owner is certain; and
the author of a pod cannot write annotations of its containers.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.device_plugin.facts import Allocation, Mount
from kubekit.errors import Terminal
from kubekit.protocol import nri_pb2 as pb

NOTHING: Final = "void"
"""NVIDIA_VISIBLE_DEVICES of a container without GPUs, for runtimes that go by it; unset, an image's own would count."""
WHY_NOTHING: Final = "the device plugin was away when this container was created"
_CDI_ANNOTATION: Final = "cdi.k8s.io/"

Devices = Mapping[str, tuple[int, int, int]]
"""Path on the host -> mode, major and minor number of what is there."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a container for its ids of one resource.

    `share` names its limits, "" without any; then `core` is what it holds, UUID -> percent.
    """

    allocation: Allocation
    share: str = ""
    core: dict[str, int] = {}


def held_back(resource: str, given: Given) -> Allocation:
    """Return the response for the kubelet in place of the real one."""
    key = names.NRI_GIVEN_PREFIX + resource.replace("/", "_")
    return Allocation(
        envs={names.VISIBLE_DEVICES_ENV: NOTHING, names.NO_GPU_ENV: WHY_NOTHING},
        annotations={key: msgspec.json.encode(given).decode()},
    )


def given_to(container: Mapping[str, str], pod: Mapping[str, str]) -> list[Given]:
    """Return the deferred responses in a container's annotations, one for each resource.

    Args:
        pod: its pod's annotations, which its author writes. Runtimes can be told to pass them on to containers.

    Raises Terminal for an annotation that is not ours.
    """
    found = []
    for key, value in sorted(container.items()):
        if not key.startswith(names.NRI_GIVEN_PREFIX):
            continue
        if key in pod:
            raise Terminal(f"the pod has the annotation {key}, which is for the device plugin only", cure="remove it")
        try:
            found.append(msgspec.json.decode(value, type=Given))
        except msgspec.DecodeError as error:
            raise Terminal(f"the annotation {key} is broken: {error}", cure="delete the pod") from error
    return found


def adjustment(given: Iterable[Given], devices: Devices) -> pb.ContainerAdjustment:
    """The answer to the runtime.

    Args:
        devices: of all device nodes that are given.

    Raises Terminal when one is not there.
    """
    adjusted = pb.ContainerAdjustment()
    envs: dict[str, str] = {}
    cdi: dict[str, None] = {}
    mounts: dict[str, Mount] = {}
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


def is_empty_handed(container: pb.Container) -> bool:
    """Return whether a container was created without what it is to get: its plugin was away."""
    waited = any(key.startswith(names.NRI_GIVEN_PREFIX) for key in container.annotations)
    return waited and f"{names.NO_GPU_ENV}={WHY_NOTHING}" in container.env
