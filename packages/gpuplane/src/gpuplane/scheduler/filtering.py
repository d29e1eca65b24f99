"""`filter` and `prioritize`: the nodes that a pod fits, and how good each of them is. Nothing is written here.

Invariants:

- Both are decided on the ledger without waiting, so an answer holds for one moment.
- Every node of a request is either kept or refused with a reason. Reasons do not name the node, so that kube-scheduler
  can count them: `0/5 nodes are available: 3 no GPU has 40% core, ...`.
- A pod whose binding is not settled yet fits only the node of that binding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from gpuplane.scheduler import wire
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.feasibility import FITS, Answers, FeasibilityCache
from gpuplane.scheduler.nominations import GPUNominations
from gpuplane.scheduler.policies import Policies
from gpuplane.scheduler.quota import NamespaceQuota, QuotaCheck
from gpuplane.scheduler.reservation import ReservationState
from gpuplane.scheduler.reservations import Reservations
from gpuplane.scheduler.transforms import CachedPod, transform_pod
from gpuplane.sharing import Request, request_of
from gpuplane.sharing.placement import Placement
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput, Retryable

_REMEMBERED: Final = 4096
Quotas = Callable[[str], NamespaceQuota | None]
"""Return the quota of a namespace, None without one. Raises Retryable while it is unknown."""


class WaitingPods(Protocol):
    """The receiver of pods that fit no node, and of pods that fit one."""

    def refused(self, pod: CachedPod) -> None: ...

    def placed(self, uid: str) -> None: ...


class Sorted(msgspec.Struct):
    """The result for the requested nodes. Preempting pods does not help a node that is `unresolvable`."""

    kept: list[str]
    failed: dict[str, str]
    unresolvable: dict[str, str]


class Filtering:
    def __init__(
        self,
        cluster: Cluster,
        reservations: Reservations,
        *,
        policies: Policies,
        quotas: Quotas,
        waiting: WaitingPods,
    ) -> None:
        self.feasibility = FeasibilityCache(cluster.ledger, policies)
        self._cluster = cluster
        self._reservations = reservations
        self._policies = policies
        self._quotas = quotas
        self._waiting = waiting
        self.nominations = GPUNominations(policies)
        self._asked: OrderedDict[str, CachedPod] = OrderedDict()

    @property
    def policies_version(self) -> int:
        """Return a number that grows whenever values of nodes are others than before."""
        return self._policies.version

    def asked(self, uid: str) -> CachedPod | None:
        """Return a pod of a recent filter, also a pod that no watch has delivered yet."""
        return self._asked.get(uid)

    def answers(self, request: Request) -> Answers:
        return self.feasibility.of(request)

    def check(self, pod: CachedPod) -> QuotaCheck:
        """Return the quota of the pod's namespace. Raises Retryable while it is unknown."""
        meta = pod.metadata
        quota = self._quotas(meta.namespace)
        request = pod.request
        return QuotaCheck(quota, self._cluster.usage, meta.namespace, meta.uid, request.core, by_count=request.by_count)

    # -- filter ------------------------------------------------------------------------------------------------------

    def filter(self, args: wire.FilterArgs) -> bytes:
        """Answer with ExtenderFilterResult. Raises Retryable while quotas are unknown, or when the pod has ended."""
        pod = self._asked_before(args.pod)
        if pod is None:
            try:
                wanted = bool(request_of(args.pod))
            except InvalidInput as error:
                text = "; ".join(error.findings) or error.what
                return wire.filter_result(args, [], {}, dict.fromkeys(args.names, text))
            if not wanted:
                return wire.filter_result(args, args.names, {}, {})
            pod = self.pod_of(args.pod)
        found = self.sort(pod, args.names)
        if len(found.kept) == 1:
            self._prefer(pod, found.kept[0])
        self.told(pod, placed=bool(found.kept))
        return wire.filter_result(args, found.kept, found.failed, found.unresolvable)

    def told(self, pod: CachedPod, *, placed: bool) -> None:
        """Record the answer to the pod's scheduler: nodes that fit, or none, so that the pod waits."""
        if placed:
            self._waiting.placed(pod.metadata.uid)
        else:
            self._waiting.refused(pod)

    def pod_of(self, pod: Pod) -> CachedPod:
        """Return the stored part of a pod that requests GPUs; remembered for its bind."""
        kept = transform_pod(pod)
        if kept is None:
            raise Retryable("has ended", where=f"{pod.metadata.namespace}/{pod.metadata.name}")
        if pod.metadata.uid not in self._asked:
            self._policies.seen(kept.request)
        self._asked[pod.metadata.uid] = kept
        if len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        return kept

    def _asked_before(self, pod: Pod) -> CachedPod | None:
        """Return the pod of an earlier request with the same version: kube-scheduler filters, prioritizes, retries."""
        known = self._asked.get(pod.metadata.uid)
        version = pod.metadata.resource_version
        return known if known is not None and version and known.metadata.resource_version == version else None

    def sort(self, pod: CachedPod, names: Sequence[str]) -> Sorted:
        """Sort the nodes; where the pod fits no node, tentative reservations do not count."""
        uid = pod.metadata.uid
        self._reservations.expire()
        self._reservations.retry(uid)
        node = self._reservations.node_of_unsettled(uid)
        if node is not None:
            return _only(node, names)
        found = self._sort(pod, names)
        if not found.kept and self._reservations.count(ReservationState.TENTATIVE):
            tentative = [name for name in self._reservations.tentative_nodes() if name in found.failed]
            with self._reservations.tentative_aside():
                again = self._sort(pod, tentative)
            found.kept = again.kept
            for name in again.kept:
                del found.failed[name]
        return found

    def _sort(self, pod: CachedPod, names: Sequence[str]) -> Sorted:
        found = Sorted([], {}, {})
        check, answers, not_ready = self.check(pod), self.answers(pod.request), self._cluster.not_ready
        answers.prepare(names)
        known, kept = answers.known, found.kept
        nominated = bool(self.nominations)
        for name in names:
            # NB: thousands of turns in every filter, most of them for a node that fits. A lookup in a set of all nodes
            # misses the processor's cache, so this asks a small set. A node that fits is in the ledger, so it is known.
            lacking = known.get(name) or answers.lacking(name)
            if lacking is FITS and name not in not_ready and (check.unlimited or not check(name).reason):
                if nominated and (why := self.refused_by_nominated(pod, name)):
                    found.failed[name] = why
                else:
                    kept.append(name)
            elif why := self._cluster.unusable(name):
                found.unresolvable[name] = why
            elif (verdict := check(name)).reason:
                (found.failed if verdict.passes else found.unresolvable)[name] = verdict.reason
            else:
                (found.unresolvable if lacking.hopeless else found.failed)[name] = lacking.reason
        return found

    def refused_by_nominated(self, pod: CachedPod, node: str) -> str:
        """Return why the pod gets no GPUs of a node that has nominated pods; empty where it does."""
        state = self.feasibility.hosting(node, pod.request)
        return self.nominations.refuses(pod, state) if state is not None and node in self.nominations else ""

    def allows(self, pod: CachedPod, node: str) -> bool:
        """Return whether the pod gets GPUs of the node now, next to nominated pods. Raises Retryable as `check`."""
        if self._cluster.unusable(node) or self.check(pod)(node).reason:
            return False
        if self.answers(pod.request).lacking(node) is not FITS:
            return False
        state = self.feasibility.hosting(node, pod.request)
        return state is not None and self.nominations.fits(pod, state)

    def _prefer(self, pod: CachedPod, node: str) -> None:
        placed = self.answers(pod.request).place(node)
        if isinstance(placed, Placement):
            self._reservations.prefer(pod, node, placed.assignment)

    # -- prioritize --------------------------------------------------------------------------------------------------

    def prioritize(self, args: wire.FilterArgs) -> bytes:
        """Answer with HostPriorityList: only the best node has MAX_SCORE, so kube-scheduler mostly chooses it."""
        pod = self._asked_before(args.pod)
        if pod is None:
            try:
                wanted = bool(request_of(args.pod))
            except InvalidInput:
                wanted = False
            if not wanted:
                return wire.priorities(dict.fromkeys(args.names, 0))
            pod = self.pod_of(args.pod)
        answers = self.answers(pod.request)
        if counted := answers.better_counted(args.names):
            # NB: kube-scheduler would choose a whole GPU, which the policy ranks, over a replica, which it does not.
            return wire.priorities({name: wire.MAX_SCORE * (name in counted) for name in args.names})
        known = answers.values
        values = {name: known[name] if name in known else answers.value(name) for name in args.names}
        # Nodes with the same free GPUs have the same value, so a cluster has few different values.
        score_of = {value: answers.score(value) * (wire.MAX_SCORE - 1) // 100 for value in set(values.values())}
        scores = {name: score_of[value] for name, value in values.items()}
        # NB: kube-scheduler lists nodes in another order each time. Of equal nodes the same is filled first.
        most = max(values.values(), default=0.0)
        best = min((name for name, value in values.items() if value == most), default="")
        if best and answers.ranks(values[best]) and answers.lacking(best) is FITS:
            scores[best] = wire.MAX_SCORE
            self._prefer(pod, best)
        return wire.priorities(scores)


def _only(node: str, names: Iterable[str]) -> Sorted:
    """Return the result for a pod whose binding to `node` may still be carried out."""
    found = Sorted([], {}, {})
    for name in names:
        if name == node:
            found.kept.append(name)
        else:
            found.failed[name] = "its binding to another node is not settled yet"
    return found
