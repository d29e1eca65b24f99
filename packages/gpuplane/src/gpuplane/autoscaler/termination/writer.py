"""Carries out the steps that end a node: patches, evictions, deletions, and the questions that a step needs.

Every patch names the version that it was decided on, so a step that another writer overtook is decided again. The
refusal of an eviction is remembered, with a back-off of 100 ms to 10 s.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api import nodeclaim
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.autoscaler.termination.facts import DrainPod, ForcedDeletion
from gpuplane.autoscaler.termination.observe import (
    EXCLUDE_LABEL,
    ClaimingPod,
    EvictionRecord,
    VolumeAttachment,
    VolumeClaim,
)
from kubekit.api.core import Node, Pod
from kubekit.api.meta import to_dict
from kubekit.kube import Client, Clock, Conflict, NotFound
from kubekit.kube.errors import BadRequest, Forbidden, Invalid, Rejected, ServerError, TooManyRequests

log = logging.getLogger("gpuplane.autoscaler")
MANAGER: Final = names.FIELD_MANAGER_PREFIX + "autoscaler"
BACKOFF_FIRST_SECONDS: Final = 0.1
BACKOFF_MOST_SECONDS: Final = 10.0
REFUSALS: Final = (TooManyRequests, ServerError, BadRequest, Forbidden, Invalid, Rejected)
"""The answers that hold one pod: 429 for its budget, 500 for a second budget, the others of admission plugins."""
EXCLUDE_VALUE: Final = "karpenter"


class EndWriter:
    """The writer of nodes that end. `counts` are evictions by HTTP status, for metrics."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self.evictions: dict[str, EvictionRecord] = {}  # by the pod's uid, in monotonic seconds
        self.counts: dict[int, int] = {}
        self._client = client
        self._clock = clock

    def held(self, now: float) -> dict[str, EvictionRecord]:
        """Return the refusals with their times as seconds since 1970, by a clock that says `now`."""
        ahead = now - self._clock.now()
        return {
            uid: msgspec.structs.replace(record, after=record.after + ahead) for uid, record in self.evictions.items()
        }

    async def mark(self, node: Node) -> None:
        """Put the taint and the label of nodes that end on a node."""
        await self._client.patch(Node, node.metadata.name, marking_patch(node), manager=MANAGER)
        log.info("tainted node=%s taint=%s", node.metadata.name, nodeclaim.DISRUPTED_TAINT)

    async def delete_node(self, node: Node) -> None:
        """Delete the Node object; its finalizer holds it until the instance is gone."""
        await self._delete(Node, node.metadata.name, node.metadata.uid)

    async def delete_claim(self, claim: NodeClaim) -> None:
        """Delete a claim: the end of its node begins."""
        await self._delete(NodeClaim, claim.metadata.name, claim.metadata.uid)

    async def _delete(self, kind: type[Node] | type[NodeClaim], name: str, uid: str) -> None:
        try:
            await self._client.delete(kind, name, uid=uid)
        except (NotFound, Conflict) as error:  # gone, or another one of this name
            log.debug("already deleted kind=%s name=%s: %s", kind.RESOURCE.kind, name, error)

    async def evict(self, pod: DrainPod) -> bool:
        """Ask for an eviction; returns whether the pod goes. The reason of a refusal is remembered."""
        namespace, _, name = pod.name.partition("/")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._client.request("POST", f"{Pod.RESOURCE.path(namespace, name)}/eviction", None, body)
        except (NotFound, Conflict) as error:
            self._count(error.status)
            self.evictions.pop(pod.uid, None)
        except REFUSALS as error:
            self._count(error.status)
            tries = self.evictions[pod.uid].tries + 1 if pod.uid in self.evictions else 0
            wait = min(BACKOFF_MOST_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** min(tries, 16))
            self.evictions[pod.uid] = EvictionRecord(self._clock.now() + wait, tries, error.what)
        else:
            self._count(201)
            self.evictions.pop(pod.uid, None)
            log.info("evicted pod=%s", pod.name)
            return True
        return False

    async def delete_pod(self, deletion: ForcedDeletion) -> None:
        """Delete a pod with the grace that is left until the deadline of its node."""
        pod = deletion.pod
        namespace, _, name = pod.name.partition("/")
        try:
            await self._client.delete(Pod, name, namespace, uid=pod.uid, grace_seconds=deletion.grace_seconds)
            log.info("deleted pod=%s grace=%ds, for the deadline of its node is near", pod.name, deletion.grace_seconds)
        except (NotFound, Conflict) as error:
            log.debug("pod already deleted pod=%s: %s", pod.name, error)

    async def attached(self, node: str, staying: Iterable[Pod]) -> tuple[str, ...]:
        """Return the volumes that are attached to a node, without those of the pods that stay on it."""
        found = {
            one.metadata.name: one.spec.source.persistent_volume_name
            for one in await self._client.list(VolumeAttachment)
            if one.spec.node_name == node
        }
        if not found:
            return ()
        kept = {volume for pod in staying for volume in await self._volumes(pod)}
        return tuple(sorted(volume or name for name, volume in found.items() if volume not in kept))

    async def _volumes(self, pod: Pod) -> list[str]:
        name, namespace = pod.metadata.name, pod.metadata.namespace
        found = []
        with contextlib.suppress(NotFound):
            seen = await self._client.get(ClaimingPod, name, namespace)
            for claim in filter(None, (volume.claim_of(name) for volume in seen.spec.volumes)):
                with contextlib.suppress(NotFound):
                    found.append((await self._client.get(VolumeClaim, claim, namespace)).spec.volume_name)
        return found

    async def finish(self, claim: NodeClaim, node: Node | None) -> None:
        """Take the finalizers off node and claim, the claim's last: it is the record that the node must go."""
        if node is not None:
            left = [name for name in node.metadata.finalizers if name != nodeclaim.FINALIZER]
            if len(left) != len(node.metadata.finalizers):
                await self._patch_finalizers(Node, node.metadata.name, node.metadata.resource_version, left)
            if not node.metadata.deletion_timestamp:
                await self.delete_node(node)
        left = [name for name in claim.metadata.finalizers if name != nodeclaim.FINALIZER]
        if len(left) != len(claim.metadata.finalizers):
            await self._patch_finalizers(NodeClaim, claim.metadata.name, claim.metadata.resource_version, left)
        log.info("removed nodeclaim=%s node=%s", claim.metadata.name, claim.status.node_name)

    async def _patch_finalizers(
        self, kind: type[Node] | type[NodeClaim], name: str, version: str, finalizers: list[str]
    ) -> None:
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        try:
            await self._client.patch(kind, name, patch, manager=MANAGER)
        except NotFound:
            log.debug("already gone kind=%s name=%s", kind.RESOURCE.kind, name)

    def forget(self, uids: set[str]) -> None:
        """Forget the refusals of pods that are gone; `uids` are those that are there."""
        self.evictions = {uid: record for uid, record in self.evictions.items() if uid in uids}

    def _count(self, status: int) -> None:
        self.counts[status] = self.counts.get(status, 0) + 1


def marking_patch(node: Node) -> dict[str, Any]:
    """Return the merge patch that puts taint and label of nodes that end on a node, conditional on its version."""
    taints = [to_dict(one) for one in node.spec.taints if one.key != nodeclaim.DISRUPTED_TAINT]
    return {
        "metadata": {
            "resourceVersion": node.metadata.resource_version,
            "labels": {EXCLUDE_LABEL: EXCLUDE_VALUE},
        },
        "spec": {"taints": [*taints, {"key": nodeclaim.DISRUPTED_TAINT, "effect": "NoSchedule"}]},
    }
