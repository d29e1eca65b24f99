"""Reads whether a bound pod may be moved, by what it says itself, and the order to move it. Pure; reads the pod alone.

A pod that says nothing stays. So does a pod that an annotation, its owner or a field keeps on its node: `gpuplane
defrag` counts the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.nodeclaim import DO_NOT_DISRUPT, DO_NOT_EVICT
from gpuplane.api.upgrade import unix_time
from gpuplane.scheduler.gangs.gang import is_of_gang
from gpuplane.sharing.unsupported import unsupported
from kubekit.api.core import Pod
from kubekit.scheduling.volumes.facts import compile_volumes

OF_ITS_NODE: Final = "belongs to its node"
NOT_ALLOWED: Final = f"no {names.MOVABLE_ANNOTATION}"
NO_CONTROLLER: Final = "no controller that creates another pod"
NOT_DISRUPTED: Final = DO_NOT_DISRUPT
OTHER_SCHEDULER: Final = f"schedulerName is not {names.SCHEDULER_NAME}"
OF_GANG: Final = "pod of a gang"
VOLUMES: Final = "volumes that bind it to its node"
CLAIMS: Final = "resource claims that bind it to its node"
FIELDS: Final = "fields that the scheduler does not support"
NOT_RUNNING: Final = "not running"
_MIRROR: Final = "kubernetes.io/config.mirror"  # annotation of a static pod, which its kubelet made


class MoveOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The annotation of a pod that is to be moved: to these GPUs of a node.

    `until` is the end of the move (RFC 3339, UTC): by then the replacement is bound, or its place is free for others.
    `room_for` is the pod that waits for the room, as namespace/name, and `room_on` the node where it gets it.
    """

    node: str
    until: str
    gpus: tuple[str, ...] = ()
    room_for: str = ""
    room_on: str = ""


_LONGEST: Final = 16_384  # characters of an order; the largest node has 64 GPUs
_decoder: Final = msgspec.json.Decoder(MoveOrder)


def order_text(order: MoveOrder) -> str:
    """Return the annotation's text."""
    return msgspec.json.encode(order).decode()


def order_of(annotations: Mapping[str, str]) -> MoveOrder | None:
    """Return the order in a pod's annotations; None without one, or for one that cannot be read."""
    text = annotations.get(names.MOVE_ANNOTATION, "")
    if not text or len(text) > _LONGEST:
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):  # NB: a tenant can write any text, such as 16,000 brackets
        return None


def move_times(text: str) -> list[float]:
    """Return the times of the annotation of a replacement, in Unix seconds and in their order."""
    return [time for one in text[:_LONGEST].split(",") if one and (time := unix_time(one)) is not None]


def stays(pod: Pod, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Return why a bound pod may not be moved; empty where it may.

    Args:
        metadata, spec: the pod's, with all fields.
    """
    said, owners = pod.metadata.annotations, pod.metadata.owner_references
    if _MIRROR in said or any(owner.kind in ("DaemonSet", "Node") for owner in owners):
        return OF_ITS_NODE
    if said.get(names.MOVABLE_ANNOTATION) != "true":
        return NOT_ALLOWED
    if DO_NOT_DISRUPT in said or said.get(DO_NOT_EVICT) == "true":
        return NOT_DISRUPTED  # NB: also with a duration, since no field says from when it counts for a move
    if not controller_of(pod):
        return NO_CONTROLLER
    if spec.get("schedulerName") != names.SCHEDULER_NAME:
        return OTHER_SCHEDULER
    if is_of_gang(metadata, spec):
        return OF_GANG
    if spec.get("volumes") and compile_volumes(pod.metadata.name, dict(spec)):
        return VOLUMES
    if spec.get("resourceClaims"):
        return CLAIMS
    if unsupported(metadata, spec):
        return FIELDS
    return "" if pod.status.phase == "Running" else NOT_RUNNING


def controller_of(pod: Pod) -> str:
    """Return the uid of the controller that creates such pods; empty for none."""
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")
