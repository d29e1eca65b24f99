"""A cluster's nodes and pods as the scheduler sees them, without an API server: its caller delivers the objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gpuplane.api.gpunode import GPUNode
from gpuplane.scheduler.cluster import Cluster
from gpuplane.scheduler.filtering import Filtering, Quotas
from gpuplane.scheduler.pods.objects import ScheduledPod, transform_scheduled_node, transform_scheduled_pod
from gpuplane.scheduler.policies import Policies
from gpuplane.scheduler.reservation import Reservation, ReservationEvent
from gpuplane.scheduler.reservations import Reservations
from gpuplane.scheduler.simulation.informer import FedInformer
from gpuplane.scheduler.simulation.objects import Manifest
from gpuplane.scheduler.transforms import CachedPod, transform_gpunode
from gpuplane.sharing import Request
from kubekit.api.raw import RawNode, RawPod
from kubekit.kube import SystemClock
from kubekit.scheduling.cache import SchedulerCache

UNLIMITED: Final[Quotas] = lambda namespace: None  # noqa: E731 - a table of no quotas


class OfflineCluster:
    """The ledger, the cache and the filters of the scheduler with this name."""

    def __init__(self, scheduler_name: str, policies: Policies, quotas: Quotas = UNLIMITED) -> None:
        clock = SystemClock()
        self.pods: FedInformer[Any] = FedInformer(RawPod, transform_scheduled_pod(scheduler_name), clock)
        self._nodes: FedInformer[Any] = FedInformer(RawNode, transform_scheduled_node, clock)
        self._gpunodes: FedInformer[GPUNode] = FedInformer(GPUNode, transform_gpunode, clock)
        client = self._nodes.client
        self.cluster = Cluster(client, clock=clock, pods=self.pods, nodes=self._nodes, gpunodes=self._gpunodes)
        self.cache = SchedulerCache()
        self.policies = policies
        policies.of(Request())
        self.reservations = Reservations(self.cluster, clock, _unread)
        self.filtering = Filtering(
            self.cluster, self.reservations, policies=policies, quotas=quotas, waiting=_NobodyWaits()
        )

    def add_node(self, node: Manifest, gpunode: GPUNode | None) -> None:
        """Add a node with its GPUs. Raises ValidationError for one that cannot be read."""
        raw = msgspec.convert(node, RawNode)
        if gpunode is not None:
            self._gpunodes.deliver(gpunode)
        self._nodes.deliver(raw)
        facts = transform_scheduled_node(raw).facts
        if facts is not None:
            self.cache.set_node(facts)

    def add_pod(self, pod: Manifest) -> None:
        """Add a pod, or replace the one with its name. Raises ValidationError for one that cannot be read."""
        self.pods.deliver(msgspec.convert(pod, RawPod))
        known = self.pods.get(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        if isinstance(known, ScheduledPod) and known.info is not None and known.info.node_name:
            self.cache.place(known.info)

    def set_namespaces(self, labels: Mapping[str, dict[str, str]]) -> None:
        """Set the labels of the namespaces, which affinities select by."""
        for name, found in labels.items():
            self.cache.set_namespace(name, found)

    def remove_pod(self, key: str) -> None:
        """Remove a pod by its namespace and name."""
        pod = self.pods.withdraw(key)
        if isinstance(pod, ScheduledPod) and pod.info is not None:
            self.cache.remove(pod.info.key)

    def known_pods(self) -> Iterable[ScheduledPod]:
        """Return the pods that have not ended, without those of other schedulers that wait and request no GPUs."""
        return [pod for pod in self.pods.items() if isinstance(pod, ScheduledPod)]


class _NobodyWaits:
    """Waiting pods are tried again by the caller."""

    def refused(self, pod: CachedPod) -> None:
        pass

    def placed(self, uid: str) -> None:
        pass


async def _unread(reservation: Reservation) -> ReservationEvent | None:
    raise AssertionError("a Binding has its answer at once")
