"""Upgrades of drivers, decided: a pure function from the facts of all nodes to one step for each node that needs one.

Invariants (hypothesis holds them in packages/gpuplane/tests/operator/test_upgrade_world.py):

- No node is begun while as many are under way as `parallel` allows, or so many away that it would be one too many.
  A driver that failed on a node keeps that node's place: a bad driver stops at `parallel` nodes.
- Every state but "required" ends: by its work, or by its time-out. A failure before the restart gives the node back as
  it was. A failure after it goes back to the previous driver, once.
- A node that was unschedulable before stays so, and no other stays so but one without any driver that works.
- Every step may be made twice, or be followed by the death of the operator: the next one is decided from what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from gpuplane.api.upgrade import ACTIVE, UpgradeRecord, UpgradeState
from gpuplane.operator.upgrade.budget import turns
from gpuplane.operator.upgrade.facts import DriverPod, PodFact, UpgradeFacts, UpgradeRules, UpgradeStep
from gpuplane.operator.upgrade.states import check_edge

RESTART_SECONDS: Final = 1800.0  # compiling takes up to twenty minutes; as long as the GPU operator waits for it
VALIDATION_SECONDS: Final = 600.0  # as the GPU operator
PATIENCE_SECONDS: Final = 60.0  # a stage that fails is tried again by its operand; this long it may
EVICT_SECONDS: Final = 5.0  # between two tries of an eviction that a disruption budget refuses, as kubectl

S = UpgradeState

_BEFORE_RESTART: Final = (S.REQUIRED, S.CORDON, S.JOBS, S.PODS, S.DRAIN)


class Now(msgspec.Struct, frozen=True):
    """The time as seconds since 1970 and as RFC 3339."""

    seconds: float
    text: str


def plan(nodes: Sequence[UpgradeFacts], rules: UpgradeRules, now: Now) -> list[UpgradeStep]:
    """The steps to make now, at most one for each node."""
    steps = {node.name: step for node in nodes if (step := _step(node, rules, now)) is not None}
    if rules.enabled:
        for node in turns(nodes, rules):
            if node.name not in steps or steps[node.name].state is None:
                steps[node.name] = _begin(node, now)
    return [steps[name] for name in sorted(steps)]


def _step(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    if not node.managed:
        # NB: with the label that it went back goes what keeps the other driver off; not under a driver that runs.
        pin = "" if node.pin and node.driver is None else None
        return _clear(node, pin) if _told(node) or pin is not None else None
    if not rules.enabled and (node.state in _BEFORE_RESTART or _at_rest(node)):
        return _clear(node) if _told(node) else None
    if node.state in ACTIVE and node.since is None:
        return UpgradeStep(node.name, record=_with(node.record, since=now.text))
    return _DECIDERS[node.state](node, rules, now)


def _told(node: UpgradeFacts) -> bool:
    """Return whether the node carries more of upgrades than the label that it went back."""
    return msgspec.structs.replace(node, pin="").marked


def _at_rest(node: UpgradeFacts) -> bool:
    return node.state in (S.UNKNOWN, S.DONE) or (node.state is S.FAILED and not node.record.cordoned)


# -- the states --------------------------------------------------------------------------------------------------------


def _resting(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    """Nothing under way: is another driver wanted, or asked for?"""
    if node.driver is None or not node.wanted or node.present:
        return None
    if node.outdated or node.requested:
        why = "another driver is wanted" if node.outdated else "requested by annotation"
        return _move(node, S.REQUIRED, now, record=UpgradeRecord(), event=why)
    return _move(node, S.DONE, now) if node.state is S.UNKNOWN and node.loaded else None


def _required(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    """It waits for its turn, which `turns` gives it."""
    if node.driver is not None and not node.outdated and not node.requested:
        why = "the wanted driver is the one that it has"
        if not node.record.cordoned:
            return _move(node, S.DONE, now, initial=_forgotten(node), event=why)
        record = UpgradeRecord(cordoned=True, failed=node.wanted, reason=node.trouble or f"{why}; it does not work")
        # It failed before, and is away until a driver works there.
        return _move(node, S.FAILED, now, record=record, event=why)
    if node.skip:
        return _wait(node, "skipped, as its label says")
    if not node.ready:
        return _wait(node, "the node does not answer")
    return _wait(node, "")


def _begin(node: UpgradeFacts, now: Now) -> UpgradeStep:
    driver = node.driver
    before, pod = (driver.digest, driver.uid) if driver is not None else ("", "")
    record = UpgradeRecord(before=before, pod=pod, cordoned=node.record.cordoned)
    return _move(node, S.CORDON, now, record=record, requested=False if node.requested else None, event="its turn")


def _cordon(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    was = node.cordoned and not node.record.cordoned
    record = _with(node.record, cordoned=not was)
    return _move(node, S.JOBS, now, record=record, cordon=True, initial=True if was else None, event="cordoned")


def _jobs(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    left = _left(node, rules.jobs_seconds, now)
    if not node.jobs or left <= 0:
        event = f"no longer waits for {_listed(node.jobs)}" if node.jobs else "no jobs to wait for"
        return _move(node, S.PODS, now, event=event)
    return _wait(node, f"waits for {_listed(node.jobs)} to end", left)


def _pods(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    pods = [pod for pod in node.pods if pod.gpu]
    if not pods:
        return _move(
            node, S.RESTART, now, record=_with(node.record, target=node.wanted), event="no GPU is held any more"
        )
    left = _left(node, rules.deletion.timeout_seconds, now)
    evict, why = removable(pods, "podDeletion", rules.deletion.force, rules.deletion.delete_empty_dir)
    if left > 0:
        return _wait(node, why, min(left, EVICT_SECONDS), evict)
    if rules.drain.enable:
        return _move(node, S.DRAIN, now, event=why)
    return _give_up(node, now, f"GPU pods did not go in {rules.deletion.timeout_seconds} s: {why}")


def _drain(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    if not rules.drain.enable:
        return _move(node, S.PODS, now, event="draining was switched off")
    pods = [pod for pod in node.pods if pod.gpu or (pod.drains and not pod.daemon)]
    if not pods:
        return _move(node, S.RESTART, now, record=_with(node.record, target=node.wanted), event="drained")
    evict, why = removable(pods, "drain", rules.drain.force, rules.drain.delete_empty_dir)
    left = _left(node, rules.drain.timeout_seconds, now)
    if left > 0:
        return _wait(node, why, min(left, EVICT_SECONDS), evict)
    return _give_up(node, now, f"not drained in {rules.drain.timeout_seconds} s: {why}")


def _restart(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    record, driver = node.record, node.driver
    if not record.failure and node.wanted and record.target != node.wanted:
        return UpgradeStep(node.name, record=_with(record, target=node.wanted, reason="the wanted driver was changed"))
    left = _left(node, RESTART_SECONDS, now)
    if left <= 0:
        return _wrong(node, now, node.trouble or record.reason or "the driver's pod was not replaced in time")
    pin = record.target if record.failure else ""
    if node.stale or node.pin != pin:
        if node.followers:
            return _wait(node, f"waits for {_listed(node.followers)} to stand aside", left)
        if not node.settled:
            return _wait(node, "waits for the stages to be taken back", left)
        if node.pin != pin:
            return UpgradeStep(node.name, pin=pin, again=left)
        assert driver is not None, "only a pod is stale"
        return _wait(node, "waits for the driver's pod to end", left, restart=None if driver.ending else driver)
    if driver is None:
        return _wait(node, "waits for the driver's next pod", left)
    if node.loaded:
        return _move(node, S.VALIDATION, now, event="the driver is loaded")
    if _worn_out(node):
        return _wrong(node, now, node.trouble)
    return _wait(node, node.trouble or "the driver is being installed", _sooner(node, left))


def _validation(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    record = node.record
    if not record.failure and node.wanted and record.target != node.wanted:
        uid = node.driver.uid if node.driver is not None else ""
        later = _with(record, target=node.wanted, pod=uid)
        return _move(node, S.RESTART, now, record=later, event="the wanted driver was changed")
    if node.stale or node.pin != (record.target if record.failure else ""):
        return _move(node, S.RESTART, now, event="the driver's pod is not the one that was validated")
    if node.validated:
        return _move(node, S.UNCORDON, now, event="validated")
    left = _left(node, VALIDATION_SECONDS, now)
    if left <= 0 or _worn_out(node):
        return _wrong(node, now, node.trouble or f"not validated in {VALIDATION_SECONDS:.0f} s")
    return _wait(node, node.trouble or "the driver is being validated", _sooner(node, left))


def _uncordon(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    record = node.record
    cordon = False if record.cordoned else None
    initial = _forgotten(node)
    if not record.failure:
        return _move(node, S.DONE, now, cordon=cordon, initial=initial, event="upgraded")
    reason = f"back on the driver before, for with the wanted one: {record.failure}"
    after = _with(record, cordoned=False, reason=reason)
    return _move(node, S.FAILED, now, record=after, cordon=cordon, initial=initial, event=reason, bad=True)


def _failed(node: UpgradeFacts, rules: UpgradeRules, now: Now) -> UpgradeStep | None:
    record = node.record
    if node.driver is None:
        return None
    if node.requested or (node.outdated and node.wanted != record.failed):
        return _move(node, S.REQUIRED, now, record=UpgradeRecord(cordoned=record.cordoned), event="another try")
    if not node.validated:
        return None
    if record.cordoned:
        mended = record if node.outdated else _with(record, failure="", failed="")
        return _move(node, S.UNCORDON, now, record=mended, event="it works again")
    if node.outdated:
        return None
    return _move(node, S.DONE, now, initial=_forgotten(node), event="it runs the wanted driver")


_DECIDERS: Final[dict[UpgradeState, Callable[[UpgradeFacts, UpgradeRules, Now], UpgradeStep | None]]] = {
    S.UNKNOWN: _resting,
    S.DONE: _resting,
    S.REQUIRED: _required,
    S.CORDON: _cordon,
    S.JOBS: _jobs,
    S.PODS: _pods,
    S.DRAIN: _drain,
    S.RESTART: _restart,
    S.VALIDATION: _validation,
    S.UNCORDON: _uncordon,
    S.FAILED: _failed,
}


# -- steps -------------------------------------------------------------------------------------------------------------


def removable(
    pods: Sequence[PodFact], field: str, force: bool, delete_empty_dir: bool
) -> tuple[tuple[PodFact, ...], str]:
    """Return the pods to evict, and the reason to wait.

    As with kubectl's drain: none is evicted while one cannot be, for without that one the others would go for nothing.
    """
    for pod in pods:
        if pod.ending:
            continue
        if pod.daemon:
            return (
                (),
                f"{pod.name} belongs to a DaemonSet, which would make it again; delete the DaemonSet, or keep it off",
            )
        if not pod.managed and not force:
            return (), f"{pod.name} has no controller that would make it again; {field}.force evicts it still"
        if pod.scratch and not delete_empty_dir:
            return (
                (),
                f"{pod.name} has an emptyDir, whose data would be lost; {field}.deleteEmptyDir evicts it still",
            )
    evict = tuple(pod for pod in pods if not pod.ending)
    refused = next((pod for pod in evict if pod.refused), None)
    if refused is not None:
        return evict, f"waits for {_listed([pod.name for pod in pods])} to go; {refused.name}: {refused.refused}"
    return evict, f"waits for {_listed([pod.name for pod in pods])} to go"


def _move(
    node: UpgradeFacts,
    state: UpgradeState,
    now: Now,
    *,
    record: UpgradeRecord | None = None,
    cordon: bool | None = None,
    initial: bool | None = None,
    requested: bool | None = None,
    event: str = "",
    bad: bool = False,
) -> UpgradeStep:
    """Into another state; `record` is what is remembered from there on, as it is when None.

    Raises ValueError for an edge that is not in the table.
    """
    check_edge(node.name, node.state, state)
    record = node.record if record is None else record
    if state is S.DONE:
        record = UpgradeRecord()
    else:
        record = _with(record, since=now.text, reason=record.reason if state is S.FAILED else "")
    return UpgradeStep(
        node.name,
        state=state,
        record=record,
        cordon=cordon,
        initial=initial,
        requested=requested,
        event=f"{state.value}: {event}" if event else state.value,
        bad=bad,
    )


def _wait(
    node: UpgradeFacts,
    reason: str,
    again: float | None = None,
    evict: tuple[PodFact, ...] = (),
    restart: DriverPod | None = None,
) -> UpgradeStep | None:
    """Stay, and write the reason; None when the record has it already and there is nothing to do."""
    record = _with(node.record, reason=reason) if reason != node.record.reason else None
    again = again if again is not None and again < FOREVER else None
    step = UpgradeStep(node.name, record=record, evict=evict, restart=restart, again=again)
    return step if step != UpgradeStep(node.name) else None


def _clear(node: UpgradeFacts, pin: str | None = None) -> UpgradeStep:
    """Take away what upgrades have put on the node, and uncordon it if they cordoned it."""
    return UpgradeStep(node.name, clear=True, cordon=False if node.record.cordoned else None, pin=pin)


def _give_up(node: UpgradeFacts, now: Now, reason: str) -> UpgradeStep:
    """The old driver still runs: the node goes back into service as it was."""
    cordon = False if node.record.cordoned else None
    record = UpgradeRecord(reason=reason, failed=node.wanted)
    return _move(node, S.FAILED, now, record=record, cordon=cordon, initial=_forgotten(node), event=reason, bad=True)


def _forgotten(node: UpgradeFacts) -> bool | None:
    """At the end of an upgrade: how the node was before it is not needed any more."""
    return False if node.initial else None


def _wrong(node: UpgradeFacts, now: Now, why: str) -> UpgradeStep:
    """The new driver does not work: back to the previous one, if its DaemonSet is there and this is not that one
    already."""
    record, driver = node.record, node.driver
    if not record.failure and node.kept and record.before and record.before != record.target:
        uid = driver.uid if driver is not None else record.pod
        back = _with(record, failure=why, failed=record.target, target=record.before, pod=uid)
        event = f"the driver does not work, the previous one is restored: {why}"
        return _move(node, S.RESTART, now, record=back, event=event, bad=True)
    reason = f"{record.failure}; the driver before does not work either: {why}" if record.failure else why
    failed = record.failed or record.target
    after = _with(record, reason=reason, failed=failed)
    return _move(node, S.FAILED, now, record=after, event=reason, bad=True)


FOREVER: Final = float("inf")


def _left(node: UpgradeFacts, seconds: float, now: Now) -> float:
    """Seconds until a time-out that counts from the beginning of the node's state; `seconds` 0 is never.

    A clock that was set back does not make it longer.
    """
    if not seconds:
        return FOREVER
    since = node.since if node.since is not None else now.seconds
    return min(seconds, since + seconds - now.seconds)


def _worn_out(node: UpgradeFacts) -> bool:
    """Return whether a stage has failed for longer than its operand's tries deserve patience."""
    return bool(node.trouble) and node.troubled >= PATIENCE_SECONDS


def _sooner(node: UpgradeFacts, left: float) -> float:
    """When to look again: at the time-out, or when the patience with a failing stage ends."""
    return min(left, max(0.1, PATIENCE_SECONDS - node.troubled)) if node.trouble else left


def _with(record: UpgradeRecord, **changes: object) -> UpgradeRecord:
    return msgspec.structs.replace(record, **changes)


def _listed(pods: Iterable[str]) -> str:
    """`a, b, c and 4 more`."""
    found = sorted(pods)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
