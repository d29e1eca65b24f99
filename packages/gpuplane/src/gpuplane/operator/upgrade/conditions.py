"""The conditions of a ClusterPolicy for upgrades and for a pause, besides Ready and Error. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicyStatus
from gpuplane.operator.conditions import condition
from gpuplane.operator.upgrade.budget import Census
from gpuplane.operator.upgrade.facts import UpgradeRules
from kubekit.api.meta import Condition, to_dict

UPGRADING, PAUSED = "Upgrading", "Paused"


def upgrading(count: Census, rules: UpgradeRules, old: Sequence[Condition], now: str) -> list[dict[str, Any]]:
    """The condition Upgrading, none while upgrades are switched off."""
    if not rules.enabled:
        return []
    before = next((one for one in old if one.type == UPGRADING), None)
    return [to_dict(condition(UPGRADING, *verdict(count, rules), old=before, now=now))]


def paused_status(status: ClusterPolicyStatus, now: str) -> dict[str, Any]:
    """`status` of a policy that is paused: as it was, and the condition Paused."""
    before = next((one for one in status.conditions if one.type == PAUSED), None)
    message = f"{names.PAUSED_ANNOTATION} is set: nothing is changed until it is removed"
    others = [to_dict(one) for one in status.conditions if one.type != PAUSED]
    return {
        "state": status.state or "notReady",
        "namespace": names.OPERATOR_NAMESPACE,
        "conditions": [*others, to_dict(condition(PAUSED, True, "Annotated", message, old=before, now=now))],
    }


def verdict(count: Census, rules: UpgradeRules) -> tuple[bool, str, str]:
    """(whether nodes wait for another driver or are on their way, reason, message for people)."""
    message = f"{count.done} of {count.nodes} nodes run the wanted driver"
    if count.in_progress:
        message += f", {count.in_progress} on the way"
    if count.pending:
        message += f", {count.pending} waiting"
    if count.failed:
        message += f", {count.failed} failed"
    if not (count.pending or count.in_progress):
        return False, "UpgradeFailed" if count.failed else "UpToDate", message
    if count.pending and not count.available:
        if rules.parallel and count.stopped >= rules.parallel:
            more = f"the wanted driver failed on {count.stopped} nodes, which is what maxParallelUpgrades allows"
            return True, "DriverFails", f"{message}; {more}: set another version, or see why"
        if not count.in_progress and count.away >= rules.unavailable:
            more = (
                f"{count.away} nodes are unschedulable or do not answer, and maxUnavailable allows {rules.unavailable}"
            )
            return True, "TooManyUnavailable", f"{message}; {more}"
    return True, "InProgress", message
