"""The filter of device claims for one pod, DynamicResources, with the words of kube-scheduler 1.36.

Prepared once for a pod and then asked for each node. A claim that no node can help refuses the pod for all: `refused`.

Different from kube-scheduler: a selector that cannot be evaluated on a device of a node makes that node unusable, not
the pod; devices that a driver has to attach before the pod is bound are not allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from kubekit.errors import Retryable
from kubekit.scheduling.devices.allocation import ClaimDevices, DeviceSearch, SearchEnded
from kubekit.scheduling.devices.expressions import SelectorError
from kubekit.scheduling.devices.facts import DeviceClaim, PodClaim, allocated_devices
from kubekit.scheduling.devices.results import allocation_of
from kubekit.scheduling.devices.store import DeviceStore
from kubekit.scheduling.filters import Failure
from kubekit.scheduling.podinfo import NodeFacts, PodInfo
from kubekit.scheduling.selectors import compile_node_terms

PLUGIN: Final = "DynamicResources"
_ELSEWHERE: Final = Failure(PLUGIN, ("resourceclaim not available on the node",))
_NO_DEVICES: Final = Failure(PLUGIN, ("cannot allocate all claims",))


class DeviceCheck:
    """`check(node)` is None when the node has the devices; `refused` is a failure on every node.

    `claims` are those of the pod, `unallocated` those of them that have no devices yet. `elsewhere` are claims whose
    devices a node that was asked cannot reach.
    """

    def __init__(self, pod: PodInfo, store: DeviceStore) -> None:
        self._pod = pod
        self._store = store
        self.claims: list[DeviceClaim] = []
        self.elsewhere: dict[str, DeviceClaim] = {}
        self.refused = self._prepare()
        self.unallocated = [claim for claim in self.claims if claim.allocation is None]

    def _prepare(self) -> Failure | None:
        for one in self._pod.claims:
            if one.claim is None:
                continue
            claim = self._store.claim(f"{self._pod.namespace}/{one.claim}")
            if trouble := self._trouble(one, claim):
                return Failure(PLUGIN, (trouble,))
            if claim is not None and claim not in self.claims:
                self.claims.append(claim)
        for claim in self.claims:
            if self._store.is_pending(claim.key):
                return Failure(PLUGIN, (f"resource claim {claim.key} is in the process of being allocated",))
            if claim.allocation is None and (trouble := self._unknown_class(claim)):
                return Failure(PLUGIN, (trouble,))
        return None

    def _trouble(self, named: PodClaim, claim: DeviceClaim | None) -> str:
        pod = self._pod
        if not named.claim:
            return f'pod "{pod.key}": ResourceClaim not created yet'
        if claim is None:
            return f'resourceclaim.resource.k8s.io "{named.claim}" not found'
        if claim.deleting:
            return f'resourceclaim "{claim.name}" is being deleted'
        if named.made and claim.owner != pod.uid:
            return f"ResourceClaim {claim.key} was not created for Pod {pod.key} (Pod is not owner)"
        return ""

    def _unknown_class(self, claim: DeviceClaim) -> str:
        for options in claim.requests:
            for request in options:
                if request.device_class not in self._store.classes:
                    return f"request {request.path}: device class {request.device_class} does not exist"
        return ""

    def __call__(self, node: NodeFacts) -> Failure | None:
        """Return why the pod's claims keep it from the node, None if they do not."""
        if self.refused is not None:
            return self.refused
        away = [one for one in self.claims if one.allocation is not None and not _is_available(one, node)]
        self.elsewhere |= {claim.key: claim for claim in away}
        if self.unallocated:
            try:
                found = self.allocate(node)
            except (SelectorError, SearchEnded) as error:
                return Failure(PLUGIN, (error.what,))
            if found is None:
                return _NO_DEVICES
        return _ELSEWHERE if away else None

    def allocate(self, node: NodeFacts) -> tuple[ClaimDevices, ...] | None:
        """Return devices for each of the `unallocated` claims, None if there are none.

        Raises SelectorError and SearchEnded.
        """
        return DeviceSearch(node, self.unallocated, self._store).run()

    def allocated_on(self, node: NodeFacts, new_share: Callable[[], str] = lambda: "share") -> list[DeviceClaim]:
        """Return the `unallocated` claims as they are with devices of the node.

        Args:
            new_share: returns the id of a share that is like no other; one id for all suffices to try out.

        Raises SelectorError and SearchEnded, and Retryable where there are no devices.
        """
        found = self.allocate(node) if self.unallocated else ()
        if found is None:
            raise Retryable('running Reserve plugin "DynamicResources": claim allocation not found for node')
        made = []
        for claim, chosen in zip(self.unallocated, found, strict=True):
            allocation = allocation_of(claim, chosen, node.name, self._store.classes, new_share)
            made.append(
                msgspec.structs.replace(
                    claim,
                    allocation=allocation,
                    devices=allocated_devices(allocation),
                    nodes=compile_node_terms(allocation.get("nodeSelector")),
                )
            )
        return made


def _is_available(claim: DeviceClaim, node: NodeFacts) -> bool:
    return claim.nodes is None or any(term.matches(node.name, node.labels) for term in claim.nodes)
