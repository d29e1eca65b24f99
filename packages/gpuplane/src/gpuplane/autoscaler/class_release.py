"""The end of EC2NodeClasses: one that is deleted stays until no NodeClaim uses it, for its nodes are ended by it.

Then the launch templates that were made of it are deleted, and its finalizer is taken off. Source: Karpenter 1.14.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from gpuplane import names
from gpuplane.api.karpenter import CLASS_FINALIZER, EC2NodeClass, declared_class
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.autoscaler.cloud import machines_of
from gpuplane.autoscaler.creation import ClaimWriter
from gpuplane.autoscaler.providers.provider import CloudProvider, MachineClass
from gpuplane.autoscaler.repeated_events import RepeatedEvents
from gpuplane.autoscaler.watch import ClusterWatch
from kubekit.errors import InvalidInput
from kubekit.kube import Client, Clock, Controller, EventRecorder, NotFound, Source

log = logging.getLogger("gpuplane.autoscaler")
WAITS_SECONDS: Final = 600.0  # until a class that is held is reported again
WAITS: Final = "WaitingOnNodeClaimTermination"
_UNSEEN_SECONDS: Final = 1.0
_NAMED: Final = 5  # claims in an event
_KIND: Final = EC2NodeClass.RESOURCE.kind
_MANAGER: Final = names.FIELD_MANAGER_PREFIX + "autoscaler"


class ClassReleaseController:
    """Sets the finalizer of EC2NodeClasses, and takes it off those that nothing uses any more; one key for each."""

    def __init__(
        self,
        client: Client,
        watch: ClusterWatch,
        writer: ClaimWriter,
        provider: CloudProvider,
        recorder: EventRecorder,
        clock: Clock,
    ) -> None:
        self._client = client
        self._watch = watch
        self._writer = writer
        self._provider = provider
        self._events = RepeatedEvents(recorder, clock, WAITS_SECONDS)
        self.controller = Controller(
            "class-release", [watch.node_classes, Source(watch.claims, _class_of)], self.reconcile, clock=clock
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def reconcile(self, name: str) -> float | None:
        """Hold a class, or let it go; returns the seconds until the next look at one that is held.

        Raises what the cloud raises where it could not be asked: the class stays.
        """
        found = self._watch.node_classes.get(name)
        if found is None:
            return None
        held = CLASS_FINALIZER in found.metadata.finalizers
        if not found.metadata.deletion_timestamp:
            if not held:
                await self._set(found, [*found.metadata.finalizers, CLASS_FINALIZER])
            return None
        if not held:
            return None
        if self._writer.unseen():
            return _UNSEEN_SECONDS
        users = sorted(claim.metadata.name for claim in self._watch.claims.items() if name in _class_of(claim))
        if users:
            self._events.report(found, "Normal", WAITS, f"waits for the NodeClaims that use it: {_listed(users)}")
            return WAITS_SECONDS
        await self._provider.release(_machines(found))
        await self._set(found, [one for one in found.metadata.finalizers if one != CLASS_FINALIZER])
        log.info("released class=%s", name)
        return None

    async def _set(self, found: EC2NodeClass, finalizers: Sequence[str]) -> None:
        """Write the finalizers. Raises Conflict for a class that has changed meanwhile."""
        meta = {"finalizers": finalizers, "resourceVersion": found.metadata.resource_version, "uid": found.metadata.uid}
        try:
            await self._client.patch(EC2NodeClass, found.metadata.name, {"metadata": meta}, manager=_MANAGER)
        except NotFound:
            log.debug("class is gone already class=%s", found.metadata.name)


def _machines(found: EC2NodeClass) -> MachineClass:
    """Return the machines of a class; of one that cannot be read nothing but its name is known."""
    try:
        return machines_of(declared_class(found))
    except InvalidInput:
        return MachineClass(_KIND, found.metadata.name)


def _class_of(claim: NodeClaim) -> Iterable[str]:
    reference = claim.spec.node_class_ref
    return (reference.name,) if reference is not None and reference.kind == _KIND else ()


def _listed(found: Sequence[str]) -> str:
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more
