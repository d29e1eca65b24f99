"""Limits concurrent upgrades: how many nodes may begin now, and which; and the counts for the metrics. Pure.

`maxParallelUpgrades` bounds how many nodes are under way, `maxUnavailable` how many are away from their users for
whatever reason. A node that is cordoned already costs nothing more. A node on which the wanted driver failed keeps its
place among those under way, so that a bad driver does not go through the cluster node by node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gpuplane.api.upgrade import ACTIVE, UpgradeState
from gpuplane.operator.upgrade.facts import DriverPod, UpgradeFacts, UpgradeRules


class Census(msgspec.Struct, frozen=True):
    """The number of nodes in each part of the upgrade; `away` are unschedulable, not answering, or being upgraded."""

    nodes: int = 0
    pending: int = 0
    in_progress: int = 0
    done: int = 0
    failed: int = 0
    stopped: int = 0
    away: int = 0
    available: int = 0


def census(nodes: Iterable[UpgradeFacts], rules: UpgradeRules) -> Census:
    """The counts; `available` is how many nodes that wait may begin now."""
    managed = [node for node in nodes if node.managed]
    active = sum(1 for node in managed if node.state in ACTIVE)
    stopped = sum(1 for node in managed if _driver_failed(node))
    pending = [node for node in managed if node.state is UpgradeState.REQUIRED]
    return Census(
        nodes=len(managed),
        pending=len(pending),
        in_progress=active,
        done=sum(1 for node in managed if node.state is UpgradeState.DONE),
        failed=sum(1 for node in managed if node.state is UpgradeState.FAILED),
        stopped=stopped,
        away=sum(1 for node in managed if _away(node)),
        available=len(turns(managed, rules)) if rules.enabled else 0,
    )


def turns(nodes: Sequence[UpgradeFacts], rules: UpgradeRules) -> list[UpgradeFacts]:
    """The nodes that may begin now, those first that are cordoned already."""
    managed = [node for node in nodes if node.managed]
    under_way = sum(1 for node in managed if node.state in ACTIVE or _driver_failed(node))
    away = sum(1 for node in managed if _away(node))
    chosen = []
    for node in sorted(filter(_may_begin, managed), key=lambda node: (not _away(node), node.name)):
        if rules.parallel and under_way >= rules.parallel:
            break
        if not _away(node):
            if away >= rules.unavailable:
                break
            away += 1
        under_way += 1
        chosen.append(node)
    return chosen


def in_place(nodes: Sequence[UpgradeFacts], share: float) -> list[tuple[UpgradeFacts, DriverPod]]:
    """Driver pods to replace without an upgrade, with their nodes.

    Either nothing runs on the driver: its stage does not hold and no pod has a GPU. Or the next pod is of the very same
    driver; of those at most `share` of all nodes at once, one at least, none when `share` is 0.
    """
    chosen = []
    managed = [node for node in nodes if node.managed and node.state not in ACTIVE]
    down = sum(1 for node in managed if node.driver is not None and (node.driver.ending or not node.driver.ready))
    down += sum(1 for node in managed if node.expected and node.driver is None)
    room = max(1, int(len(managed) * share)) - down if share else 0
    for node in sorted(managed, key=lambda node: node.name):
        driver = node.driver
        if driver is None or driver.ending or not node.wanted or node.pin:
            continue
        if node.outdated:
            if not node.loaded and not node.present and not any(pod.gpu for pod in node.pods):
                chosen.append((node, driver))
        elif driver.template != node.wanted_template and driver.in_place and share:
            if driver.ready and room <= 0:
                continue
            room -= int(driver.ready)
            chosen.append((node, driver))
    return chosen


def _may_begin(node: UpgradeFacts) -> bool:
    waits = node.state is UpgradeState.REQUIRED and (node.outdated or node.requested)
    return waits and node.ready and not node.skip and node.driver is not None


def _away(node: UpgradeFacts) -> bool:
    return node.cordoned or not node.ready or node.state in ACTIVE


def _driver_failed(node: UpgradeFacts) -> bool:
    """Return whether the driver that is wanted was tried on the node and did not work there; without a target it was
    not.
    """
    record = node.record
    return node.state is UpgradeState.FAILED and bool(record.target) and record.failed == node.wanted
