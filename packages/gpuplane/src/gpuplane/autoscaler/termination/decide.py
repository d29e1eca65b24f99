"""Ends a node, decided: a pure function from the facts of a claim that is being deleted to its next step.

Invariants (hypothesis holds them in packages/gpuplane/tests/autoscaler/termination/test_decide.py):

- No instance is ended while a pod that must leave first is on the node, unless the deadline has passed or the node has
  lost its instance.
- A pod leaves only after every pod of an earlier tier: workloads, their daemons, critical pods, critical daemons.
- A pod with a grace is deleted no later than its grace before the deadline. Until then only evictions are asked for, so
  the API server holds every PodDisruptionBudget.
- The finalizers stay until the cloud says that the instance is gone.

Source of tiers, times and conditions: the behaviour of Karpenter 1.14.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpuplane.api import nodeclaim
from gpuplane.autoscaler.termination.facts import DrainPod, EndingNode, EndStep, ForcedDeletion, InstanceState

LEAST_DRAIN_SECONDS: Final = 5.0  # a pod that was bound at the moment of the taint is still seen
STUCK_SECONDS: Final = 60.0  # after the end of its grace a pod that is still there is not waited for
POLL_SECONDS: Final = 5.0  # between two questions about volumes and instances


def decide_end(node: EndingNode, now: float) -> EndStep:
    """Return the next step for a claim that is being deleted."""
    if node.asked_cloud or not node.node:
        return _end_instance(node, {})
    if not node.node_ready:
        # A node that does not answer may have lost its instance: then its pods run no more, whatever they say.
        if node.instance is InstanceState.UNKNOWN:
            return EndStep(ask_cloud=True)
        if node.instance is InstanceState.GONE:
            return EndStep(finish=True)
    mark, delete_node = not node.marked, node.finalized and not node.node_deleted
    late = node.deadline is not None and now >= node.deadline
    waiting = drained_pods(node.pods, now)
    if waiting and not late:
        step = _drain(node, waiting, now)
        return msgspec.structs.replace(step, mark=mark, delete_node=delete_node)
    if mark or delete_node:
        return EndStep(mark=mark, delete_node=delete_node)
    # A clock that jumped back, or is behind the API server's, must not hold the instance.
    if abs(now - node.began) < LEAST_DRAIN_SECONDS and not late:
        return EndStep(again=node.began + LEAST_DRAIN_SECONDS - now, waits="pods that were bound at the last moment")
    conditions = {nodeclaim.DRAINED: (not waiting, "Drained" if not waiting else "TerminationGracePeriodElapsed")}
    if node.attached is None:
        return EndStep(read_volumes=True, conditions=conditions)
    if node.attached and not late:
        waits = f"volumes to be detached: {_some(node.attached)}"
        conditions[nodeclaim.VOLUMES_DETACHED] = (False, "AwaitingVolumeDetachment")
        again = POLL_SECONDS if node.deadline is None else min(POLL_SECONDS, node.deadline - now)
        return EndStep(conditions=conditions, again=again, waits=waits)
    reason = "VolumesDetached" if not node.attached else "TerminationGracePeriodElapsed"
    conditions[nodeclaim.VOLUMES_DETACHED] = (not node.attached, reason)
    return _end_instance(node, conditions)


def drained_pods(pods: Iterable[DrainPod], now: float) -> list[DrainPod]:
    """Return the pods that must leave before the instance ends."""
    return [
        pod
        for pod in pods
        if not (pod.ended or pod.mirror or pod.tolerates)
        and not (pod.deleted is not None and now >= pod.deleted + STUCK_SECONDS)
    ]


def tier_of(pod: DrainPod) -> int:
    """Return the pod's place in the order of leaving, 0 the first."""
    return 2 * pod.critical + pod.daemon


def _drain(node: EndingNode, waiting: Sequence[DrainPod], now: float) -> EndStep:
    delete = tuple(_forced(node.deadline, waiting, now)) if node.deadline is not None else ()
    forced = {deletion.pod.uid for deletion in delete}
    first = min(tier_of(pod) for pod in waiting)
    tier = [pod for pod in waiting if tier_of(pod) == first]
    leaving = [pod for pod in tier if pod.deleted is None and pod.uid not in forced]
    evict = tuple(pod for pod in leaving if max(pod.evict_after, pod.held_until) <= now)
    times = [max(pod.evict_after, pod.held_until) for pod in leaving]
    times = [time for time in times if now < time < math.inf]
    times += [pod.deleted + STUCK_SECONDS for pod in waiting if pod.deleted is not None]
    if node.deadline is not None:
        times += [node.deadline]
        times += [node.deadline - pod.grace for pod in waiting if node.deadline - pod.grace > now]
    refused = [f"{pod.name} ({pod.refusal})" for pod in leaving if pod.refusal and pod.held_until <= now]
    refused += [f"{pod.name} ({nodeclaim.DO_NOT_DISRUPT})" for pod in leaving if pod.held_until > now]
    waits = f"{len(waiting)} pods to leave" + (f"; held back: {_some(refused)}" if refused else "")
    again = min(times) - now if times else None
    return EndStep(
        evict=evict,
        delete=delete,
        conditions={nodeclaim.DRAINED: (False, "Draining")},
        again=again,
        waits=waits,
        trouble=bool(refused),
    )


def _forced(deadline: float, waiting: Iterable[DrainPod], now: float) -> Iterable[ForcedDeletion]:
    """Yield the pods whose own grace would end after the deadline."""
    left = max(1, int(deadline - now))
    for pod in waiting:
        # The API server keeps whole seconds of a deletion, so one second more is no reason to ask again.
        late = pod.deleted > deadline + 1 if pod.deleted is not None else deadline - pod.grace <= now
        if late:
            yield ForcedDeletion(pod, left)


def _end_instance(node: EndingNode, conditions: dict[str, tuple[bool, str]]) -> EndStep:
    if node.launched and not node.asked_cloud:
        # NB: without a question before: an instance that the cloud does not list may be one that it does not list yet.
        return _terminate(conditions)
    if node.instance is InstanceState.UNKNOWN:
        return EndStep(ask_cloud=True, conditions=conditions)
    if node.instance is InstanceState.GONE:
        return EndStep(finish=True, conditions=conditions)
    if node.instance is InstanceState.RUNNING:
        return _terminate(conditions)
    return EndStep(conditions=conditions, again=POLL_SECONDS, waits="the instance to end")


def _terminate(conditions: dict[str, tuple[bool, str]]) -> EndStep:
    ending = {**conditions, nodeclaim.INSTANCE_TERMINATING: (True, "InstanceTerminating")}
    return EndStep(terminate=True, conditions=ending, again=POLL_SECONDS, waits="the instance to end")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
