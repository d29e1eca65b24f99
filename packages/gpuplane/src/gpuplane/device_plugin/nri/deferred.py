"""Defers a response of Allocate to NRI: the kubelet stores it in an annotation of the container. Pure.

NRI fails open: without its plugin a container is created as the kubelet asked for it. So the kubelet gets no usable
device: `NVIDIA_VISIBLE_DEVICES=void`, a variable that says why there is no GPU, and an annotation of the container with
the devices to add. The kubelet stores this response with the container that holds the ids, so the owner is certain; and
the author of a pod cannot write annotations of its containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gpuplane import names
from gpuplane.device_plugin.kubelet_api import Allocation
from kubekit.documents import LONGEST_VALUE, DocumentError, decode_json
from kubekit.errors import Terminal

NO_DEVICES: Final = "void"
"""NVIDIA_VISIBLE_DEVICES of a container without GPUs, for runtimes that go by it; unset, an image's own would count."""
WHY_NOTHING: Final = "the device plugin was away when this container was created"


class DeferredAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a container for its ids of one resource.

    `share` names its limits, "" without any; then `core` is what it holds, UUID -> percent.
    """

    allocation: Allocation
    share: str = ""
    core: dict[str, int] = {}


def deferred(resource: str, given: DeferredAllocation) -> Allocation:
    """Return the response for the kubelet in place of the real one."""
    key = names.NRI_GIVEN_PREFIX + resource.replace("/", "_")
    return Allocation(
        envs={names.VISIBLE_DEVICES_ENV: NO_DEVICES, names.NO_GPU_ENV: WHY_NOTHING},
        annotations={key: msgspec.json.encode(given).decode()},
    )


def deferred_of(container: Mapping[str, str], pod: Mapping[str, str]) -> list[DeferredAllocation]:
    """Return the deferred responses in a container's annotations, one for each resource.

    Args:
        pod: its pod's annotations, which its author writes. Runtimes can be configured to pass them on to containers.

    Raises Terminal for an annotation that is not ours.
    """
    found = []
    for key, value in sorted(container.items()):
        if not key.startswith(names.NRI_GIVEN_PREFIX):
            continue
        if key in pod:
            raise Terminal(f"the pod has the annotation {key}, which is for the device plugin only", cure="remove it")
        try:
            found.append(decode_json(value, DeferredAllocation, limit=LONGEST_VALUE))
        except DocumentError as error:
            raise Terminal(f"the annotation {key} is broken: {error}", cure="delete the pod") from error
    return found
