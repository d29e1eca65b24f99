"""The pods that run, so that a decision finds those that its pods depend on without a look at each.

Pods of one workload have the same labels, so a term is compared with each kind of labels once. Read once for all
questions about one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import msgspec

from gpuplane.autoscaler.existing import ExistingNode
from kubekit.scheduling.podinfo import PodInfo, PodTerm


class PlacedPods:
    """The pods of nodes that exist, each with the name of its node. Built when it is first asked."""

    def __init__(self, nodes: Iterable[ExistingNode]) -> None:
        self._nodes = nodes

    @cached_property
    def _alike(self) -> dict[str, dict[int, list[PodInfo]]]:
        """Namespace -> kind of labels -> pods."""
        found: dict[str, dict[int, list[PodInfo]]] = {}
        for pod in self._all():
            # Equal labels are one object for pods that informers keep; if they are not, there are only more kinds.
            found.setdefault(pod.namespace, {}).setdefault(id(pod.labels), []).append(pod)
        return found

    @cached_property
    def demanding(self) -> tuple[PodInfo, ...]:
        """Return the pods that keep others away: by anti-affinity or a host port."""
        return tuple(pod for pod in self._all() if pod.affinity.anti_required or pod.ports)

    def selected(self, term: PodTerm) -> Iterator[PodInfo]:
        """Yield the pods that a term is about. Namespaces have no labels here."""
        everywhere = term.namespace_selector is not None
        for namespace in self._alike if everywhere else term.namespaces:
            for pods in self._alike.get(namespace, {}).values():
                if term.selects(namespace, pods[0].labels, {}):
                    yield from pods

    def _all(self) -> Iterator[PodInfo]:
        for node in self._nodes:
            for pod in node.pods:
                yield pod if pod.node_name == node.name else msgspec.structs.replace(pod, node_name=node.name)
