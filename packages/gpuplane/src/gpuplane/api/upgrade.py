"""The progress of a node's driver upgrade: the states in its label, and the record in its annotation.

The label `nvidia.com/gpu-driver-upgrade-state` and its values are those of the GPU operator (NVIDIA/k8s-operator-libs,
pkg/upgrade), so that scripts and dashboards go on working. The state that has to survive the operator (since when, from
which driver, who cordoned the node) is one JSON annotation, written in the same patch as the label.
"""

from __future__ import annotations

import datetime
from enum import StrEnum
from typing import Final

from gpuplane import names
from kubekit.api.core import Node
from kubekit.api.meta import Struct
from kubekit.documents import LONGEST_VALUE, DocumentError, decode_json


class UpgradeState(StrEnum):
    """The states in the order in which a node goes through them."""

    UNKNOWN = ""  # not looked at yet, or upgrades are switched off
    REQUIRED = "upgrade-required"  # another driver is wanted; the node waits for its turn
    CORDON = "cordon-required"  # its turn: no new pods from here on
    JOBS = "wait-for-jobs-required"  # pods that must end by themselves still run
    PODS = "pod-deletion-required"  # pods with GPUs are evicted
    DRAIN = "drain-required"  # that was not enough: all pods are evicted
    RESTART = "pod-restart-required"  # operands stand aside, the driver's pod is replaced
    VALIDATION = "validation-required"  # the new driver has to prove itself
    UNCORDON = "uncordon-required"  # proved: pods may come again
    DONE = "upgrade-done"  # the node runs the wanted driver
    FAILED = "upgrade-failed"  # it does not, and the record says why


ACTIVE: Final = (
    UpgradeState.CORDON,
    UpgradeState.JOBS,
    UpgradeState.PODS,
    UpgradeState.DRAIN,
    UpgradeState.RESTART,
    UpgradeState.VALIDATION,
    UpgradeState.UNCORDON,
)
"""States in which an upgrade is under way and the node counts as unavailable."""


class UpgradeRecord(Struct):
    """The stored state of a node's upgrade. Digests are those of `gpuplane.operator.upgrade.templates`.

    Fields:
    since: when the node came into its state
    reason: why it is still there, one line for people
    before: digest of the driver that ran when the upgrade began
    pod: uid of the driver's pod at that time
    target: digest of the driver that shall run after the restart
    failure: what was wrong with the wanted driver; set, the node goes back to the one before
    failed: digest of the driver that `failure` or `reason` is about
    cordoned: the operator made the node unschedulable
    """

    since: str = ""
    reason: str = ""
    before: str = ""
    pod: str = ""
    target: str = ""
    failure: str = ""
    failed: str = ""
    cordoned: bool = False


def upgrade_state(node: Node) -> UpgradeState:
    """Return the state in the node's label; an unknown value counts as a missing label."""
    value = node.metadata.labels.get(names.UPGRADE_STATE_LABEL, "")
    return UpgradeState(value) if value in tuple(UpgradeState) else UpgradeState.UNKNOWN


def upgrade_record(node: Node) -> UpgradeRecord:
    """The record in the node's annotation; one that cannot be read counts as empty."""
    text = node.metadata.annotations.get(names.UPGRADE_RECORD_ANNOTATION)
    if not text:
        return UpgradeRecord()
    try:
        return decode_json(text, UpgradeRecord, limit=LONGEST_VALUE)
    except DocumentError:
        return UpgradeRecord()


def unix_time(text: str) -> float | None:
    """Return the seconds since 1970 of an RFC 3339 time; None for an invalid one."""
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return (when if when.tzinfo is not None else when.replace(tzinfo=datetime.UTC)).timestamp()
