"""Repairs a node, decided: a pure function from the facts of one claim to its next step. Times are seconds since 1970.

A GPU that stays broken often works after a restart of its machine; a kubelet that stays silent gets another node. If
more than a fifth of a pool is broken, the cause is probably not the nodes, and none of them is touched.

Invariants (hypothesis holds them in packages/gpuplane/tests/autoscaler/repair/test_decide.py):

- Nothing is done to a node before its symptom has lasted for the patience with it.
- A node is restarted once. If it is broken after that, it is replaced.
- A node that works again gets its pods again, at every step.

Source of names, times and the fifth: Karpenter 1.15, and the API of node repair there.
"""

from __future__ import annotations

from typing import Final

import msgspec

GPU_PATIENCE_SECONDS: Final = 600.0
KUBELET_PATIENCE_SECONDS: Final = 1800.0
DRAIN_SECONDS: Final = 300.0  # until a restart does not wait for pods any more
REBOOT_SECONDS: Final = 900.0  # until a restarted node must work
LARGEST_SICK_SHARE: Final = 0.2
LOOK_SECONDS: Final = 30.0


class SickNode(msgspec.Struct, frozen=True):
    """A claim with its node, broken or in repair.

    `symptom` is what is broken, empty for a node that works; `since` is since when, `patience` how long that is waited
    for. `reboots`: a restart may cure it. `requested` is when a restart was decided, `issued` when the cloud was asked
    for it, None for not yet; `restarted`: the node has another boot id since then. `occupied`: pods run there that
    leave before the restart. `kept`: an annotation forbids a repair. `leaving`: the node ends already, or took no
    pods yet.
    """

    claim: str
    symptom: str = ""
    since: float = 0.0
    patience: float = 0.0
    reboots: bool = False
    requested: float | None = None
    issued: float | None = None
    restarted: bool = False
    occupied: bool = False
    kept: bool = False
    leaving: bool = False


class PoolHealth(msgspec.Struct, frozen=True):
    """The nodes of a pool, and those of them that are broken or in repair."""

    nodes: int
    sick: int

    @property
    def too_many(self) -> bool:
        """Return whether more nodes are broken than nodes alone explain; a fifth is rounded up."""
        return self.sick > -(-self.nodes * LARGEST_SICK_SHARE // 1)


class RepairStep(msgspec.Struct, frozen=True):
    """The next things to do.

    Args:
        begin: keep pods off the node, and record that a restart is wanted.
        drain: evict its pods.
        reboot: ask the cloud for the restart.
        recover: let pods onto the node again, and forget the repair.
        replace: end the node at once, without waiting for its pods.
        blocked: too many nodes of the pool are broken.
        again: seconds after which to look without a change; None for none.
    """

    begin: bool = False
    drain: bool = False
    reboot: bool = False
    recover: bool = False
    replace: bool = False
    blocked: bool = False
    again: float | None = None


def decide_repair(node: SickNode, pool: PoolHealth, now: float) -> RepairStep:
    """Return the next step for a claim."""
    if node.leaving:
        return RepairStep()
    if node.kept:
        return RepairStep(recover=node.requested is not None)
    if node.requested is None:
        if not node.symptom:
            return RepairStep()
        if now < node.since + node.patience:
            return RepairStep(again=node.since + node.patience - now)
        if pool.too_many:
            return RepairStep(blocked=True, again=LOOK_SECONDS)
        return RepairStep(begin=True) if node.reboots else RepairStep(replace=True)
    if node.issued is None:
        if not node.symptom:
            return RepairStep(recover=True)
        if node.occupied and now < node.requested + DRAIN_SECONDS:
            return RepairStep(drain=True, again=min(LOOK_SECONDS, node.requested + DRAIN_SECONDS - now))
        return RepairStep(reboot=True, again=LOOK_SECONDS)
    if node.restarted and not node.symptom:
        return RepairStep(recover=True)
    if now >= node.issued + REBOOT_SECONDS:
        return RepairStep(replace=True)
    return RepairStep(again=min(LOOK_SECONDS, node.issued + REBOOT_SECONDS - now))
