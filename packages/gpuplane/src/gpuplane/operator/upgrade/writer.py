"""Carries out the steps of upgrades: patches of nodes, evictions, deletions of driver pods.

Every patch names the version that it was decided on. A written object is remembered until the watch delivers it, so
that nothing is decided on a picture from before: two nodes begun from the same old picture would be one too many.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, ClassVar, Final

import msgspec

from gpuplane import names
from gpuplane.api.upgrade import UpgradeRecord
from gpuplane.operator.upgrade.facts import PodFact, UpgradeStep
from kubekit.api.core import Node, Pod
from kubekit.api.meta import ObjectMeta, Resource, Struct
from kubekit.kube import Client, Conflict, NotFound, TooManyRequests

log = logging.getLogger("gpuplane.operator")
MANAGER: Final = names.FIELD_MANAGER_PREFIX + "upgrade"


class _Volume(Struct):
    """A volume of a pod, as far as it matters: whether its data goes with the pod."""

    empty_dir: dict[str, Any] | None = None


class _Spec(Struct):
    volumes: tuple[_Volume, ...] = ()


class PodVolumes(Struct):
    """A pod with its volumes. Informers leave them out, for they would double the memory of each pod."""

    RESOURCE: ClassVar[Resource] = Pod.RESOURCE

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()


class UpgradeWriter:
    """The writer of upgrades. `writes` counts patches of nodes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._written: dict[str, int] = {}
        self._scratch: dict[str, bool] = {}
        self.refused: dict[str, str] = {}  # by the pod's uid
        self.writes = 0

    def behind(self, nodes: Iterable[Node]) -> bool:
        """Return whether one of the nodes is older than what was written; then the watch will bring the newer one."""
        late = False
        present = set()
        for node in nodes:
            name = node.metadata.name
            present.add(name)
            if int(node.metadata.resource_version or 0) < self._written.get(name, 0):
                late = True
            else:
                self._written.pop(name, None)
        for name in self._written.keys() - present:
            del self._written[name]
        return late

    async def make(self, step: UpgradeStep, node: Node) -> None:
        """Carry out one step. A node that changed or went meanwhile is left for the next look."""
        if step.patches:
            await self._patch(step, node)
        for pod in step.evict:
            await self._evict(pod)
        if step.restart is not None:
            try:
                await self._client.delete(Pod, step.restart.name, names.OPERATOR_NAMESPACE, uid=step.restart.uid)
                log.info("replacing driver pod node=%s pod=%s", step.node, step.restart.name)
            except (NotFound, Conflict):
                log.debug("driver pod already deleted node=%s pod=%s", step.node, step.restart.name)

    async def _patch(self, step: UpgradeStep, node: Node) -> None:
        self.writes += 1
        try:
            after = await self._client.patch(Node, step.node, patch_of(step, node), manager=MANAGER)
        except (NotFound, Conflict) as error:
            log.debug("step not applied node=%s: %s", step.node, error)
            return
        self._written[step.node] = int(after.metadata.resource_version or 0)
        if step.event:
            log.info("upgrade node=%s: %s", step.node, step.event)

    async def _evict(self, pod: PodFact) -> None:
        """Ask for an eviction; a disruption budget that refuses is remembered as the reason to wait."""
        namespace, _, name = pod.name.partition("/")
        path = f"{Pod.RESOURCE.path(namespace, name)}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._client.request("POST", path, None, body)
            self.refused.pop(pod.uid, None)
            log.info("evicted pod=%s", pod.name)
        except (NotFound, Conflict):
            self.refused.pop(pod.uid, None)
        except TooManyRequests as error:
            self.refused[pod.uid] = f"a PodDisruptionBudget allows no eviction now ({error.what})"

    async def scratch(self, pods: Iterable[Pod]) -> set[str]:
        """The uids of those pods that have an emptyDir; asked once for each pod."""
        pods = list(pods)
        for pod in pods:
            uid = pod.metadata.uid
            if uid not in self._scratch:
                try:
                    seen = await self._client.get(PodVolumes, pod.metadata.name, pod.metadata.namespace)
                except NotFound:
                    continue
                self._scratch[uid] = any(volume.empty_dir is not None for volume in seen.spec.volumes)
        return {pod.metadata.uid for pod in pods if self._scratch.get(pod.metadata.uid)}

    @property
    def remembers(self) -> bool:
        """Return whether anything is remembered of some pod."""
        return bool(self._scratch or self.refused)

    def forget(self, uids: set[str]) -> None:
        """Keep what is remembered of pods to those that are there."""
        self._scratch = {uid: had for uid, had in self._scratch.items() if uid in uids}
        self.refused = {uid: why for uid, why in self.refused.items() if uid in uids}


def patch_of(step: UpgradeStep, node: Node) -> dict[str, Any]:
    """The merge patch of a step, conditional on the node being as it was seen."""
    labels: dict[str, str | None] = {}
    annotations: dict[str, str | None] = {}
    if step.state is not None:
        labels[names.UPGRADE_STATE_LABEL] = step.state.value or None
    if step.pin is not None:
        labels[names.ROLLBACK_LABEL] = step.pin or None
    if step.record is not None:
        empty = step.record == UpgradeRecord()
        annotations[names.UPGRADE_RECORD_ANNOTATION] = None if empty else msgspec.json.encode(step.record).decode()
    if step.initial is not None:
        annotations[names.UPGRADE_INITIAL_ANNOTATION] = "true" if step.initial else None
    if step.requested is False:
        annotations[names.UPGRADE_REQUESTED_ANNOTATION] = None
    if step.clear:
        labels[names.UPGRADE_STATE_LABEL] = None
        annotations[names.UPGRADE_RECORD_ANNOTATION] = annotations[names.UPGRADE_INITIAL_ANNOTATION] = None
    patch: dict[str, Any] = {"metadata": {"resourceVersion": node.metadata.resource_version}}
    if labels:
        patch["metadata"]["labels"] = labels
    if annotations:
        patch["metadata"]["annotations"] = annotations
    if step.cordon is not None:
        # None takes the field away: a node that was never cordoned has none.
        patch["spec"] = {"unschedulable": True if step.cordon else None}
    return patch
