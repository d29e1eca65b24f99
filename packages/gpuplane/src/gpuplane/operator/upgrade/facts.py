"""The inputs of upgrades as plain data: the nodes, their pods, and the policy's limits."""

from __future__ import annotations

import math

import msgspec

from gpuplane.api.components import Drain, PodDeletion, UpgradePolicy
from gpuplane.api.upgrade import UpgradeRecord, UpgradeState


class UpgradeRules(msgspec.Struct, frozen=True):
    """The upgrade policy, counted out for the nodes that there are.

    `parallel` is 0 for no limit; `unavailable` a number of nodes; `jobs` a label selector, empty for none. Time-outs
    are in seconds, 0 for none.
    """

    enabled: bool = False
    parallel: int = 1
    unavailable: int = 1
    jobs: str = ""
    jobs_seconds: int = 0
    deletion: PodDeletion = PodDeletion()
    drain: Drain = Drain()


def rules_for(policy: UpgradePolicy | None, nodes: int) -> UpgradeRules:
    """Return the limits of `policy` for `nodes` nodes; percentages are rounded up, as the GPU operator does. Without a
    policy its defaults hold.
    """
    policy = policy or UpgradePolicy()
    wait = policy.wait_for_completion
    return UpgradeRules(
        enabled=policy.auto_upgrade,
        parallel=policy.max_parallel_upgrades,
        unavailable=scaled(policy.max_unavailable, nodes),
        jobs=wait.pod_selector if wait is not None else "",
        jobs_seconds=wait.timeout_seconds if wait is not None else 0,
        deletion=policy.pod_deletion or PodDeletion(),
        drain=policy.drain or Drain(),
    )


def scaled(limit: int | str, total: int) -> int:
    """A number, or a percentage of `total` rounded up. An invalid text counts as 0: no node may be unavailable."""
    text = str(limit).strip()
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit()):
        return 0
    return math.ceil(int(number) * total / 100) if text.endswith("%") else int(number)


class PodFact(msgspec.Struct, frozen=True):
    """A pod that may stand in the way.

    `daemon`: a DaemonSet would make it again on the same node; `managed`: some controller would make it again
    elsewhere; `scratch`: it has an emptyDir, whose data would be lost. `drains`: the drain's selector means it too.
    `refused` is why its eviction was refused last time.
    """

    name: str  # namespace/name
    uid: str
    gpu: bool = False
    daemon: bool = False
    managed: bool = True
    scratch: bool = False
    ending: bool = False
    drains: bool = True
    refused: str = ""


class DriverPod(msgspec.Struct, frozen=True):
    """The driver's pod on a node. `in_place`: another pod of the same driver may take over under running GPU pods."""

    name: str
    uid: str
    digest: str
    template: str = ""
    ending: bool = False
    ready: bool = True
    in_place: bool = False


class UpgradeFacts(msgspec.Struct, frozen=True):
    """One node.

    managed: it has GPUs, has not opted out, and a policy is in force
    initial: it was unschedulable before its upgrade; `cordoned`: it is now
    wanted, wanted_template: digests of the DaemonSet in force; empty while there is none
    pin: digest of the driver that it went back to
    kept: whether there is a DaemonSet to go back to for `record.before`
    followers: operand pods on the node that stand on the driver
    expected: the DaemonSet shall have a pod here
    present: the host has a driver of its own
    loaded: the driver's stage holds
    settled: no stage from the driver on is reported, so what is reported later is about the next driver
    validated: the stages of driver and validator hold
    trouble: why a stage does not hold, and `troubled`: for how many seconds that has been so
    """

    name: str
    managed: bool = True
    ready: bool = True
    cordoned: bool = False
    state: UpgradeState = UpgradeState.UNKNOWN
    record: UpgradeRecord = UpgradeRecord()
    since: float | None = None
    initial: bool = False
    skip: bool = False
    requested: bool = False
    pin: str = ""
    wanted: str = ""
    wanted_template: str = ""
    driver: DriverPod | None = None
    kept: bool = False
    followers: tuple[str, ...] = ()
    expected: bool = False
    present: bool = False
    loaded: bool = False
    settled: bool = False
    validated: bool = False
    trouble: str = ""
    troubled: float = 0.0
    jobs: tuple[str, ...] = ()
    pods: tuple[PodFact, ...] = ()

    @property
    def outdated(self) -> bool:
        """Return whether the node runs another driver than it shall."""
        return self.driver is not None and bool(self.wanted) and self.driver.digest != self.wanted

    @property
    def stale(self) -> bool:
        """Return whether the pod that the upgrade replaces is still there."""
        driver = self.driver
        return driver is not None and (driver.digest != self.record.target or driver.uid == self.record.pod)

    @property
    def marked(self) -> bool:
        """Return whether the node carries anything that upgrades have put there."""
        return bool(self.state or self.pin or self.initial) or self.record != UpgradeRecord()


class UpgradeStep(msgspec.Struct, frozen=True):
    """The actions on one node: at most one patch of it, pods to evict, the driver's pod to replace.

    `state` and `record` are None where they stay; `cordon` and `initial` say what to set; `pin` is None where it
    stays and empty to go. `clear` removes everything that upgrades have put there. `event` is for people, a warning
    when `bad`. `again`: seconds after which to look once more, even if nothing happens.
    """

    node: str
    state: UpgradeState | None = None
    record: UpgradeRecord | None = None
    cordon: bool | None = None
    initial: bool | None = None
    requested: bool | None = None
    pin: str | None = None
    clear: bool = False
    evict: tuple[PodFact, ...] = ()
    restart: DriverPod | None = None
    event: str = ""
    bad: bool = False
    again: float | None = None

    @property
    def patches(self) -> bool:
        """Return whether the node itself has to be written."""
        changes = (self.state, self.record, self.cordon, self.initial, self.requested, self.pin)
        return self.clear or any(change is not None for change in changes)
