"""Decides a pod's node: kube-scheduler's filters, then GPUs and quotas, then the best of what is left.

Without I/O: it reads the scheduler's cache and the extender's ledger, and changes neither.

Of nodes that the pod and its neighbours prefer equally (taints, affinity, spreading), the placement policy chooses. For
a pod without GPUs it chooses the nodes whose free GPUs lose the least by the pod's CPU, and among these the scores for
room and images count. They do not count for pods with GPUs: they would spread pods over nodes that the policy keeps
whole.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

import msgspec

from gpuplane.scheduler.feasibility import FITS
from gpuplane.scheduler.filtering import Filtering
from gpuplane.scheduler.pods.objects import ScheduledPod
from gpuplane.scheduler.quota import REASON as QUOTA_REASON
from kubekit.errors import Retryable
from kubekit.scheduling import decide, scores
from kubekit.scheduling.cache import ClusterNode, SchedulerCache
from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.filters import Failure
from kubekit.scheduling.queue import ERROR, GANG, GPU_QUOTA, GPUS, QUEUE_LIMIT, UNSUPPORTED

EVERY_NODE: Final = 100
"""Percent of the nodes to search, always from the first: equal nodes are filled one after the other."""


class Decision(msgspec.Struct, frozen=True):
    """The node for a pod, or why there is none: the message, and the causes that have to change.

    `found` is what the filters said, None where they were not asked.
    """

    node: str = ""
    message: str = ""
    causes: frozenset[str] = frozenset()
    found: decide.Found | None = None


OUTSIDE: Final = Failure(GANG, ("node(s) are outside the gang's topology domain",))
DIGITS: Final = 3
"""Of a node's value: what differs by less is equal, since the rest is noise of floating point."""


def choose_node(
    pod: ScheduledPod,
    cache: SchedulerCache,
    filtering: Filtering,
    tie: int = 0,
    within: Container[str] | None = None,
    refusal: str = "",
) -> Decision:
    """Return the decision for a pod that waits.

    Args:
        tie: any number; picks among nodes that are equal for a pod without GPUs.
        within: the only nodes that will do, None for all.
        refusal: why the pod's queue may not hold more, so that no node will do; empty if it may.
    """
    if pod.trouble or pod.info is None:
        return Decision(message=pod.trouble, causes=frozenset({UNSUPPORTED}))
    if not cache.node_count:
        return Decision(message=decide.NO_NODES, causes=frozenset({"NodeName"}))
    found = decide.find(pod.info, cache, percent=EVERY_NODE, within=within)
    if pod.request and found.feasible:
        try:
            _keep_with_gpus(pod, found, filtering)
        except Retryable as error:
            return Decision(message=str(error), causes=frozenset({ERROR}), found=found)
    if refusal:
        found.failures |= {node.name: Failure(QUEUE_LIMIT, (refusal,), True) for node in found.feasible}
        found.feasible = []
    if not found.feasible:
        if within is not None:
            found.failures |= {node.name: OUTSIDE for node in cache.candidates() if node.name not in within}
        return Decision(message=decide.fit_error(found), causes=found.plugins(), found=found)
    return Decision(_best(pod, found.feasible, cache, filtering, tie).name, found=found)


def fits_now(pod: ScheduledPod, node: str, cache: SchedulerCache, filtering: Filtering) -> bool:
    """Return whether the pod may go to the node now, by its filters, its quota and what is free of the node's GPUs.

    GPUs that are reserved for nominated pods count as free. Raises Retryable while quotas are unknown.
    """
    state = cache.nodes.get(node)
    if state is None or state.facts is None or pod.info is None or FilterCheck(pod.info, cache)(state) is not None:
        return False
    if not pod.request:
        return True
    return not filtering.check(pod)(node).reason and filtering.answers(pod.request).lacking(node) is FITS


def _keep_with_gpus(pod: ScheduledPod, found: decide.Found, filtering: Filtering) -> None:
    """Leave the nodes that have GPUs for the pod, within its quota. Raises Retryable while quotas are unknown."""
    by_gpus = filtering.sort(pod, [node.name for node in found.feasible])
    for resolvable, failed in ((True, by_gpus.failed), (False, by_gpus.unresolvable)):
        for name, reason in failed.items():
            cause = GPU_QUOTA if reason.startswith(QUOTA_REASON) else GPUS
            found.failures[name] = Failure(cause, (reason,), resolvable)
    kept = set(by_gpus.kept)
    found.feasible = [node for node in found.feasible if node.name in kept]


def _best(
    pod: ScheduledPod, nodes: list[ClusterNode], cache: SchedulerCache, filtering: Filtering, tie: int
) -> ClusterNode:
    assert pod.info is not None
    if len(nodes) == 1:
        return nodes[0]
    answers = filtering.answers(pod.request)
    if counted := answers.better_counted([node.name for node in nodes]):
        nodes = [node for node in nodes if node.name in counted]
    nodes = _highest(nodes, scores.preferences(pod.info, cache, nodes))
    values = [round(answers.value(node.name), DIGITS) for node in nodes]
    if pod.request and answers.ranks(best := max(values)):
        return nodes[values.index(best)]
    nodes = _highest(nodes, values)
    return decide.best(nodes, scores.totals(pod.info, cache, nodes), tie)


def _highest(nodes: list[ClusterNode], values: Sequence[float]) -> list[ClusterNode]:
    most = max(values)
    return [node for node, value in zip(nodes, values, strict=True) if value == most]
