"""The facts of one node that ends, and the steps that end it. Times are seconds since 1970."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

DEFAULT_GRACE_SECONDS: Final = 30.0  # of a pod that names none


class InstanceState(enum.Enum):
    """The state of the claim's instance, as the cloud reports it. UNKNOWN: the cloud has not been asked."""

    UNKNOWN = enum.auto()
    RUNNING = enum.auto()
    ENDING = enum.auto()
    GONE = enum.auto()


class DrainPod(msgspec.Struct, frozen=True):
    """A pod on a node that ends.

    `tolerates`: it tolerates the taint of nodes that end, so it stays until the node does. `held_until`: until then its
    annotation forbids an eviction, 0 for no annotation. `deleted` is when its grace ends, None if it is not being
    deleted. `evict_after` is when the next eviction may be tried. `refusal` is why the last one was refused.
    """

    name: str  # namespace/name
    uid: str
    daemon: bool = False
    critical: bool = False
    mirror: bool = False
    ended: bool = False
    tolerates: bool = False
    held_until: float = 0.0
    deleted: float | None = None
    grace: float = DEFAULT_GRACE_SECONDS
    evict_after: float = 0.0
    refusal: str = ""


class EndingNode(msgspec.Struct, frozen=True):
    """A claim that is being deleted, with its node.

    `began` is when the deletion was asked for. `deadline` is when pods and volumes are no longer waited for, None for
    never. `node` is empty where the claim has no node. `marked`: the node has the taint and the label of nodes that
    end. `finalized`: the node has the finalizer, so it stays after its deletion. `attached` are the volumes that are
    waited for, None before they have been read. `launched`: the claim knows its instance. `asked_cloud`: the cloud has
    been asked to end the instance.
    """

    claim: str
    began: float
    deadline: float | None = None
    node: str = ""
    node_ready: bool = False
    node_deleted: bool = False
    marked: bool = False
    finalized: bool = False
    pods: tuple[DrainPod, ...] = ()
    attached: tuple[str, ...] | None = None
    launched: bool = False
    instance: InstanceState = InstanceState.UNKNOWN
    asked_cloud: bool = False


class ForcedDeletion(msgspec.Struct, frozen=True):
    """A pod to delete without asking budgets, for the deadline is near. `grace_seconds` is at least 1."""

    pod: DrainPod
    grace_seconds: int


class EndStep(msgspec.Struct, frozen=True):
    """The next things to do for a node that ends, in this order.

    Args:
        mark: put taint and label on the node.
        delete_node: delete the Node object; its finalizer holds it.
        read_volumes, ask_cloud: a fact is missing; read it, then decide again.
        conditions: those of the claim that hold or do not: type -> (holds, reason).
        terminate: end the instance.
        finish: take the finalizers off node and claim.
        again: seconds after which to look without a change; None for none.
        waits: what is waited for, for people; empty for nothing.
        trouble: the wait is one that a user should know of.
    """

    mark: bool = False
    delete_node: bool = False
    evict: tuple[DrainPod, ...] = ()
    delete: tuple[ForcedDeletion, ...] = ()
    read_volumes: bool = False
    ask_cloud: bool = False
    conditions: dict[str, tuple[bool, str]] = {}
    terminate: bool = False
    finish: bool = False
    again: float | None = None
    waits: str = ""
    trouble: bool = False
