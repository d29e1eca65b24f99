"""The writes of a scheduler to resource claims, as parts of strategic patches. Pure.

A claim is protected by its finalizer before it gets devices, so that none vanishes together with what it holds.
"""

from __future__ import annotations

from typing import Any, Final

from kubekit.scheduling.devices.facts import FINALIZER, DeviceClaim
from kubekit.scheduling.podinfo import PodInfo

PROTECTED: Final = {"finalizers": [FINALIZER]}
"""Metadata of a claim that is about to get devices."""
FREED: Final = {"allocation": None, "reservedFor": None, "devices": None}
"""Status of a claim that loses its devices."""


def user_of(pod: PodInfo) -> dict[str, str]:
    """Return the entry of a pod in `reservedFor`."""
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}


def no_user(uid: str) -> dict[str, str]:
    """Return what deletes the entry of a pod in `reservedFor`."""
    return {"$patch": "delete", "uid": uid}


def allocated_for(pod: PodInfo, claim: DeviceClaim) -> dict[str, Any]:
    """Return the status of a claim with its devices and its first user."""
    return {"reservedFor": [user_of(pod)], "allocation": claim.allocation}


def is_used_by_others(claim: DeviceClaim, uid: str) -> bool:
    """Return whether pods other than the one with `uid` use a claim, so that it keeps its devices."""
    return not set(claim.users) <= {uid}
