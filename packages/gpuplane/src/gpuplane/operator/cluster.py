"""Keeps the cluster-wide objects as the ClusterPolicy wants them: RuntimeClasses, DaemonSets, and the policy's status.

Also the end: a policy that is being deleted first has every node taken back, then its DaemonSets removed, then the
labels of discovery released, and only then may go.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.clusterpolicy import ClusterPolicy, ClusterPolicySpec
from gpuplane.api.gpunode import GPUNode
from gpuplane.api.karpenter import DeclaredPool
from gpuplane.api.nvidiadriver import NVIDIADriver
from gpuplane.operator import exporter_objects, share_objects
from gpuplane.operator.decide import GPU_LABELLED
from gpuplane.operator.discovery import MASTER, DiscoveryRemains
from gpuplane.operator.driver_objects import read_keys, write_statuses
from gpuplane.operator.drivers import assign, choices, driver_groups
from gpuplane.operator.exporter_objects import BESIDE, MONITOR, wants_monitor
from gpuplane.operator.gates import REMOVING
from gpuplane.operator.manifest import Manifest
from gpuplane.operator.nodes import FEATURE_LABELLER, GPU_LABELLER, forget_freed, release_labels
from gpuplane.operator.operands import MANAGER, is_removal, manifests
from gpuplane.operator.policy import (
    FINALIZER,
    digest,
    ignored_status,
    is_feature,
    is_selected,
    policy_status,
    to_prune,
)
from gpuplane.operator.refusals import ObjectRefusal, is_refusal, refusal_of, summary
from gpuplane.operator.share_objects import any_shares
from gpuplane.operator.stages import OPERANDS
from gpuplane.operator.taints import seen_keys
from gpuplane.operator.upgrade.conditions import paused_status, upgrading
from gpuplane.operator.upgrade.controller import UpgradeReport, is_marked
from gpuplane.operator.upgrade.rollback import keep_before, without_needed
from kubekit.api.core import DaemonSet, Deployment, Node, RuntimeClass
from kubekit.errors import KubekitError, Terminal
from kubekit.kube import Client, Clock, NotFound

log = logging.getLogger("gpuplane.operator")


class ClusterView(msgspec.Struct, frozen=True):
    """The inputs of the cluster-wide decisions."""

    nodes: list[Node]
    gpunodes: list[GPUNode]
    daemonsets: list[DaemonSet]
    operand_pods: int
    needed: frozenset[str] = frozenset()  # digests of drivers that run somewhere, or that some node may go back to
    upgrades: UpgradeReport = UpgradeReport()
    discovery_pods: int = 0
    discovering: frozenset[str] = frozenset()  # names of the nodes that answer and have a pod of discovery's worker
    drivers: tuple[NVIDIADriver, ...] = ()
    pools: tuple[DeclaredPool, ...] = ()


_KINDS: Final = {
    **{kind.RESOURCE.kind: kind.RESOURCE for kind in (RuntimeClass, DaemonSet, Deployment)},
    **{resource.kind: resource for resource in BESIDE},
}
MONITOR_CHECK_SECONDS: Final = 60.0


class ClusterWriter:
    """Applies and prunes; remembers what it applied, so that nothing is sent twice."""

    def __init__(self, client: Client, image: str, clock: Clock) -> None:
        self._client = client
        self._image = image
        self._clock = clock
        self._applied: dict[str, bytes] = {}
        self._without: set[str] = set()  # Services and ServiceMonitors that are known not to exist
        self._monitors = (False, float("-inf"))  # whether ServiceMonitors are served, and when that was asked
        self._remains = DiscoveryRemains(client)

    async def keep(self, policy: ClusterPolicy, seen: ClusterView) -> None:
        """Make the cluster as a living policy wants it. The policy's status has the failures."""
        try:
            refused = await self._make(policy, seen)
        except Terminal as error:
            await self._report(policy, seen, str(error))
            raise
        await self._report(policy, seen, summary(refused))
        if refused:
            raise refused[0].error

    async def _make(self, policy: ClusterPolicy, seen: ClusterView) -> list[ObjectRefusal]:
        if FINALIZER not in policy.metadata.finalizers:
            finalizers = [*policy.metadata.finalizers, FINALIZER]
            version = policy.metadata.resource_version
            await self._patch(policy, {"metadata": {"finalizers": finalizers, "resourceVersion": version}})
        wanted = await self._wanted(policy, seen)
        refused = await self._apply_all(policy, seen, wanted)
        await self._remove_beside(wanted)
        prune = to_prune(seen.daemonsets, wanted, policy.metadata.uid)
        for name in without_needed(prune, seen.daemonsets, seen.needed):
            await self._delete_daemonset(name)
        if policy.spec.nfd.enabled:
            self._remains.started()
        else:
            await self._remains.stop()
            self._applied.pop(f"Deployment/{MASTER}", None)
            if not seen.discovery_pods:
                await self._remains.clear(seen.nodes)
        return refused

    async def end(self, policy: ClusterPolicy, seen: ClusterView) -> None:
        """One step towards a cluster without us; each watch event brings the next.

        NB: the operands are not maintained any more. A deletion with dependents first has deleted them already, and the
        removal does not need them.
        """
        wanted = await self._wanted(policy, seen)
        for refusal in await self._apply_all(policy, seen, list(filter(is_removal, wanted))):
            log.warning("removal refused object=%s: %s", refusal.name, refusal.why)
        gates = [names.DEPLOY_PREFIX + operand.gate for operand in OPERANDS]
        if seen.gpunodes or any(label in node.metadata.labels for node in seen.nodes for label in gates):
            return
        if any(map(is_marked, seen.nodes)):
            return  # upgrades take back what they have put there
        for name in to_prune(seen.daemonsets, (), policy.metadata.uid):
            await self._delete_daemonset(name)
        await self._remains.stop()
        if seen.operand_pods:
            return
        await self._remains.clear(seen.nodes)
        if self._remains.left(seen.nodes):
            return
        for node in seen.nodes:
            version = node.metadata.resource_version
            if names.SHARE_FREED_ANNOTATION in node.metadata.annotations:
                version = await forget_freed(self._client, node)  # the extender writes no more without the plugin
            if any(is_feature(label) or label == GPU_LABELLED for label in node.metadata.labels):
                await release_labels(self._client, node.metadata.name, version, FEATURE_LABELLER, GPU_LABELLER)
        for manifest in wanted:
            if manifest["kind"] == RuntimeClass.RESOURCE.kind:
                await self._delete_runtime_class(manifest["metadata"]["name"], policy)
        finalizers = [name for name in policy.metadata.finalizers if name != FINALIZER]
        version = policy.metadata.resource_version
        await self._patch(policy, {"metadata": {"finalizers": finalizers, "resourceVersion": version}})
        log.info("all nodes restored, releasing policy=%s", policy.metadata.name)

    async def pause(self, policy: ClusterPolicy) -> None:
        """Say in its status that nothing is done."""
        await self._status(policy, paused_status(policy.status, self._clock.wall()))

    async def ignore(self, policy: ClusterPolicy, used: str) -> None:
        """Say in its status that a second policy does not count."""
        await self._status(policy, ignored_status(used, self._clock.wall(), policy.status.conditions))

    async def _wanted(self, policy: ClusterPolicy, seen: ClusterView) -> list[Manifest]:
        owner = {
            "apiVersion": ClusterPolicy.RESOURCE.api_version,
            "kind": ClusterPolicy.RESOURCE.kind,
            "name": policy.metadata.name,
            "uid": policy.metadata.uid,
            "controller": True,
        }
        removing = {
            operand.gate
            for operand in OPERANDS
            for node in seen.nodes
            if node.metadata.labels.get(names.DEPLOY_PREFIX + operand.gate) == REMOVING
        }
        found = choices(policy.spec, seen.drivers)
        nodes = [node for node in seen.nodes if is_selected(node.metadata.labels, policy.spec)]
        groups = driver_groups(nodes, found, assign(nodes, found))
        keys = await read_keys(self._client, found)
        monitored = wants_monitor(policy.spec) and await self._serves_monitors()
        return manifests(
            policy.spec,
            groups,
            removing,
            image=self._image,
            owner=owner,
            keys=keys,
            monitored=monitored,
            shared=any_shares(node.metadata.labels for node in nodes),
            tainted=seen_keys(seen.nodes, seen.daemonsets, seen.pools),
            pools=seen.pools,
        )

    async def _serves_monitors(self) -> bool:
        """Return whether the Prometheus operator's CRD is there; asked again once a minute until it is."""
        served, asked = self._monitors
        if not served and self._clock.now() - asked >= MONITOR_CHECK_SECONDS:
            try:
                await self._client.request("GET", f"/apis/{MONITOR.api_version}")
                served = True
            except NotFound:
                log.info("ServiceMonitor skipped, not served api=%s", MONITOR.api_version)
            self._monitors = (served, self._clock.now())
        return served

    async def _remove_beside(self, wanted: list[Manifest]) -> None:
        """Delete the Services and the ServiceMonitors of exporter and shares where they are not wanted any more."""
        kept = {f"{manifest['kind']}/{manifest['metadata']['name']}" for manifest in wanted}
        for resource, name in itertools.product(BESIDE, (exporter_objects.NAME, share_objects.NAME)):
            which = f"{resource.kind}/{name}"
            if which in kept:
                self._without.discard(which)
            elif which not in self._without:
                with contextlib.suppress(NotFound):
                    await self._client.request("DELETE", resource.path(names.OPERATOR_NAMESPACE, name))
                self._without.add(which)
                self._applied.pop(which, None)

    async def _apply_all(self, policy: ClusterPolicy, seen: ClusterView, wanted: list[Manifest]) -> list[ObjectRefusal]:
        """Apply all that the API server accepts, and return the refusals of the rest."""
        refused = []
        for manifest in wanted:
            try:
                if manifest["kind"] == "DaemonSet":
                    await keep_before(self._client, manifest, seen.daemonsets, seen.needed)
                await self._apply(manifest)
            except KubekitError as error:
                if not is_refusal(error):
                    raise
                if is_removal(manifest) and await self._apply_plain(policy, seen, manifest["metadata"]["name"]):
                    continue
                refused.append(refusal_of(manifest, error, choices(policy.spec, seen.drivers)))
        return refused

    async def _apply_plain(self, policy: ClusterPolicy, seen: ClusterView, name: str) -> bool:
        """Apply a removal without the policy's values that are not needed to find the node's files.

        NB: a refused value would otherwise keep every node, and so the whole uninstallation, waiting for ever.
        """
        for spec in (ClusterPolicySpec(host_paths=policy.spec.host_paths), ClusterPolicySpec()):
            wanted = await self._wanted(msgspec.structs.replace(policy, spec=spec), seen)
            try:
                await self._apply(next(one for one in wanted if one["metadata"]["name"] == name))
            except KubekitError as error:
                if not is_refusal(error):
                    raise
            else:
                return True
        return False

    async def _apply(self, manifest: Manifest) -> None:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        mark = digest(manifest)
        if self._applied.get(name) == mark:
            return
        await self._client.apply(manifest, MANAGER, resource=_KINDS[manifest["kind"]])
        self._applied[name] = mark
        log.info("applied object=%s", name)

    async def _delete_daemonset(self, name: str) -> None:
        try:
            await self._client.delete(DaemonSet, name, names.OPERATOR_NAMESPACE)
            log.info("removed object=DaemonSet/%s", name)
        except NotFound:
            log.debug("already deleted object=DaemonSet/%s", name)
        self._applied.pop(f"DaemonSet/{name}", None)

    async def _delete_runtime_class(self, name: str, policy: ClusterPolicy) -> None:
        """NB: not left to garbage collection, which cannot follow an owner whose CRD an uninstallation takes away."""
        with contextlib.suppress(NotFound):
            found = await self._client.get(RuntimeClass, name)
            if any(owner.uid == policy.metadata.uid for owner in found.metadata.owner_references):
                await self._client.delete(RuntimeClass, name, uid=found.metadata.uid)
                log.info("removed object=RuntimeClass/%s", name)
        self._applied.pop(f"{RuntimeClass.RESOURCE.kind}/{name}", None)

    async def _report(self, policy: ClusterPolicy, seen: ClusterView, error: str) -> None:
        status = policy_status(policy, seen.nodes, seen.gpunodes, seen.discovering, error=error, now=self._clock.wall())
        last = seen.upgrades
        status["conditions"] += upgrading(last.census, last.rules, policy.status.conditions, self._clock.wall())
        await self._status(policy, status)
        if seen.drivers:
            used = policy.spec.driver.use_nvidia_driver_crd
            found = choices(policy.spec, seen.drivers) if used else []
            by_name = {node.metadata.name: node for node in seen.gpunodes}
            assigned = assign(seen.nodes, found)
            await write_statuses(self._client, MANAGER, seen.drivers, found, assigned, by_name, self._clock.wall())

    async def _status(self, policy: ClusterPolicy, status: dict[str, Any]) -> None:
        if msgspec.convert(status, type(policy.status)) != policy.status:
            await self._client.patch(
                ClusterPolicy, policy.metadata.name, {"status": status}, subresource="status", manager=MANAGER
            )

    async def _patch(self, policy: ClusterPolicy, patch: dict[str, Any]) -> None:
        await self._client.patch(ClusterPolicy, policy.metadata.name, patch, manager=MANAGER)
