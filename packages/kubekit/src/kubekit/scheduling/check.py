"""All filters for one pod, prepared once and then asked node by node."""

from __future__ import annotations

from kubekit.scheduling import filters
from kubekit.scheduling.cache import ClusterNode, SchedulerCache
from kubekit.scheduling.devices.check import DeviceCheck
from kubekit.scheduling.filters import Failure
from kubekit.scheduling.podinfo import PodInfo, Requests
from kubekit.scheduling.topology import PodAffinity, TopologySpread
from kubekit.scheduling.volumes.check import VolumeCheck


class FilterCheck:
    """`check(node)` is None when the pod may go there. `refused` is why it may go nowhere, whatever nodes there are.

    Prepared from the cache as it is now; make a new one when pods came or went (preemption does).
    """

    def __init__(self, pod: PodInfo, cache: SchedulerCache, ignored: frozenset[str] = frozenset()) -> None:
        self._pod = pod
        self._ignored = ignored
        self._selects = bool(pod.affinity.node_selector) or pod.affinity.node_required is not None
        # NB: DaemonSet pods have neither, and must not pay for those who have.
        needs_affinity = bool(pod.affinity.pod_required or pod.affinity.anti_required or cache.anti_terms)
        self._affinity = PodAffinity(pod, cache) if needs_affinity else None
        self._spread = TopologySpread(pod, cache) if any(c.hard for c in pod.spread) else None
        self.volumes = VolumeCheck(pod, cache.volumes) if pod.volumes else None
        self.devices = DeviceCheck(pod, cache.devices) if pod.claims else None
        self.refused = self.volumes.refused if self.volumes is not None else None
        if self.refused is None and self.devices is not None:
            self.refused = self.devices.refused

    def __call__(self, node: ClusterNode) -> Failure | None:
        pod, facts = self._pod, node.facts
        if self.refused is not None:
            return self.refused
        if facts is None:
            return Failure("NodeName", ("node(s) didn't match the requested node name",))
        failure = filters.check_unschedulable(pod, facts) if facts.unschedulable else None
        if failure is None and facts.taints:
            failure = filters.check_taints(pod, facts)
        if failure is None and self._selects:
            failure = filters.check_affinity(pod, facts)
        if failure is not None:
            return failure
        requested, count, ports = node.requested, len(node.pods), node.ports
        if node.nominated:
            requested, count, ports = self._with_nominated(node)
        failure = filters.check_ports(pod.ports, ports) if pod.ports else None
        if failure is None:
            failure = filters.check_resources(pod, facts.allocatable, requested, count, self._ignored)
        if failure is None and self.volumes is not None:
            failure = self.volumes(facts, [*node.pods.values(), *self._nominated(node)])
        if failure is None and self._spread is not None:
            failure = self._spread.check(facts)
        if failure is None and self._affinity is not None:
            failure = self._affinity.check(facts)
        if failure is None and self.devices is not None:
            failure = self.devices(facts)
        return failure

    def _with_nominated(self, node: ClusterNode) -> tuple[Requests, int, dict[tuple[str, str, int], int]]:
        """Return the used part of a node: nominated pods there come before less important ones."""
        requested, ports = dict(node.requested), dict(node.ports)
        count = len(node.pods)
        for other in self._nominated(node):
            count += 1
            for name, amount in other.requests.items():
                requested[name] = requested.get(name, 0) + amount
            ports.update(dict.fromkeys(other.ports, 1))
        return requested, count, ports

    def _nominated(self, node: ClusterNode) -> list[PodInfo]:
        """Return the pods that the node keeps room for before this one."""
        pod = self._pod
        return [
            other
            for key, other in node.nominated.items()
            if key != pod.key and other.priority >= pod.priority and key not in node.pods
        ]
