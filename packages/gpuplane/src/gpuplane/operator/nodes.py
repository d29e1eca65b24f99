"""Carries out the plan for one node: at most one patch of the Node and one write of its GPUNode.

The patch of the GPUNode holds only what changed and the version it was made from, so that an operand's report that
arrives at the same moment is never overwritten: the write fails, the newer object comes by the watch, and the plan is
made again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, GPUNodeStatus, StageName, StageState
from gpuplane.operator.decide import NodePlan, decide
from gpuplane.operator.observed import ObservedNode
from kubekit.api.core import Node, Pod
from kubekit.api.meta import Resource, to_dict
from kubekit.kube import AlreadyExists, Client, Conflict, NotFound

log = logging.getLogger("gpuplane.operator")
MANAGER: Final = names.FIELD_MANAGER_PREFIX + "operator"
GPU_LABELLER: Final = names.FIELD_MANAGER_PREFIX + "gpu-feature-discovery"
FEATURE_LABELLER: Final = names.FIELD_MANAGER_PREFIX + "discovery"


FREE_SECONDS: Final = 5.0  # pods come and go; the number of free GPUs is written no more often than this


class _Held(msgspec.Struct, frozen=True):
    """A delayed write: the stages' states, when it is written unchanged, and at the latest."""

    stages: tuple[tuple[str, StageState], ...]
    due: float
    latest: float


class Settling:
    """Holds back progress that a later write will carry as well.

    A few nodes show each step at once; a hundred on their way together save the API server a write for each stage. The
    delay grows with the square of the number of nodes, up to about the time in which so many come up: 40 ms for 4, 25 s
    for 100, a minute from 155 to 600, 100 s for 1,000. Progress of a node restarts the delay, so that a slow cluster
    costs no more writes than a fast one; after PATIENCE delays the write happens all the same.
    """

    PATIENCE: Final = 5

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._first: dict[str, dict[tuple[str, str], str]] = {}

    def dated(self, name: str, plan: NodePlan) -> NodePlan:
        """The plan with the times at which its stages were first seen so, also if that was not written then."""
        if plan.status is None:
            self._first.pop(name, None)
            return plan
        first = self._first.setdefault(name, {})
        stages = {
            stage: msgspec.structs.replace(value, since=first.setdefault((stage, value.state), value.since))
            for stage, value in plan.status.stages.items()
        }
        return msgspec.structs.replace(plan, status=msgspec.structs.replace(plan.status, stages=stages))

    def wait(self, name: str, plan: NodePlan, nodes: int) -> float:
        """Seconds to hold the status of `plan` back; 0 means write it now."""
        if plan.status is None or plan.urgent:
            self._held.pop(name, None)
            return 0.0
        now = self._clock()
        delay = FREE_SECONDS if plan.only_free else min(nodes * nodes / 400, max(60.0, nodes / 10))
        stages = tuple((stage, value.state) for stage, value in sorted(plan.status.stages.items()))
        held = self._held.get(name) or _Held(stages, due=now + delay, latest=now + self.PATIENCE * delay)
        if held.stages != stages:
            held = _Held(stages, due=min(now + delay, held.latest), latest=held.latest)
        self._held[name] = held
        if held.due <= now:
            self._held.pop(name)
            return 0.0
        return held.due - now


def _drops_driver(seen: ObservedNode, plan: NodePlan) -> bool:
    """Return whether the plan takes back the stage of a driver whose pod is being replaced."""
    stage, before = StageName.DRIVER.value, seen.status.stages if seen.status is not None else {}
    return bool(seen.stale) and plan.status is not None and stage in before and stage not in plan.status.stages


class NodeWriter:
    """Writes plans. `writes` counts what was sent, by kind of object, for metrics."""

    def __init__(self, client: Client, now: Callable[[], str]) -> None:
        self._client = client
        self._now = now
        self._written: dict[tuple[str, str], int] = {}
        self.writes: dict[str, int] = {"nodes": 0, "gpunodes": 0}

    def behind(self, *objects: Node | GPUNode | None) -> bool:
        """Return whether one of the objects is older than what we wrote; then the watch will bring the newer one.

        Deciding on the older one would write the same again.
        """
        for obj in objects:
            if obj is None:
                continue
            place = (obj.RESOURCE.plural, obj.metadata.name)
            if int(obj.metadata.resource_version or 0) < self._written.get(place, 0):
                return True
            self._written.pop(place, None)
        return False

    def _note(self, resource: Resource, name: str, version: str) -> None:
        self._written[resource.plural, name] = int(version or 0)

    async def carry_out(
        self,
        node: Node,
        gpunode: GPUNode | None,
        seen: ObservedNode,
        settling: Settling,
        nodes: int,
        proofs: Sequence[Pod] = (),
    ) -> float | None:
        """Decide and write. Returns seconds after which to look again, None for never.

        `proofs` are the pods that proved the node and have stayed to be looked at; they go when it is given back.
        """
        plan = settling.dated(seen.name, decide(seen, self._now()))
        if plan.empty:
            settling.wait(seen.name, plan, nodes)
            return None
        if plan.delete:
            for pod in proofs:  # first, since without the GPUNode there is no further reconcile
                with contextlib.suppress(NotFound):
                    await self._client.delete(Pod, pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid)
            await self._delete(seen.name)
        # NB: the GPUNode first: an operand that the gate lets in reports into it.
        hold = settling.wait(seen.name, plan, nodes)
        if plan.status is not None and not hold:
            if _drops_driver(seen, plan) and not await self._is_one_there(seen.stale):
                return None  # the watch of GPUNodes is ahead of that of pods: the stage is the next driver's
            await self._write_status(node, gpunode, plan.status)
        version = node.metadata.resource_version
        if plan.labels or plan.taint is not None:
            version = await self._patch_node(node, plan)
        if plan.release and version:
            self.writes["nodes"] += 1
            version = await release_labels(self._client, seen.name, version, GPU_LABELLER)
            self._note(Node.RESOURCE, seen.name, version)
        return hold or None

    async def _patch_node(self, node: Node, plan: NodePlan) -> str:
        """The Node's version afterwards, empty when it is gone."""
        patch: dict[str, Any] = {"metadata": {"labels": dict(plan.labels)}} if plan.labels else {}
        if plan.taint is not None:
            # A list without merge key in a merge patch is replaced whole; the version guards the others in it.
            others = [to_dict(taint) for taint in node.spec.taints if taint.key != names.NOT_READY_TAINT]
            ours = [{"key": names.NOT_READY_TAINT, "effect": "NoSchedule"}] if plan.taint else []
            patch["spec"] = {"taints": others + ours}
            patch.setdefault("metadata", {})["resourceVersion"] = node.metadata.resource_version
        self.writes["nodes"] += 1
        try:
            after = await self._client.patch(Node, node.metadata.name, patch, manager=MANAGER)
        except NotFound:
            log.debug("node deleted node=%s", node.metadata.name)
            return ""
        self._note(Node.RESOURCE, node.metadata.name, after.metadata.resource_version)
        return after.metadata.resource_version

    async def _write_status(self, node: Node, gpunode: GPUNode | None, status: GPUNodeStatus) -> None:
        self.writes["gpunodes"] += 1
        try:
            if gpunode is None:
                await self._client.create(new_gpunode(node, status), resource=GPUNode.RESOURCE, manager=MANAGER)
                return
            patch = {
                "metadata": {"resourceVersion": gpunode.metadata.resource_version},
                "status": difference(to_dict(gpunode.status), to_dict(status)),
            }
            after = await self._client.patch(GPUNode, node.metadata.name, patch, manager=MANAGER)
            self._note(GPUNode.RESOURCE, node.metadata.name, after.metadata.resource_version)
        except (AlreadyExists, Conflict, NotFound) as error:
            # Our picture is older than the object; what came in between is on its way by the watch.
            log.debug("write failed node=%s: %s", node.metadata.name, error)

    async def _is_one_there(self, pods: Sequence[str]) -> bool:
        """Return whether the API server has one of the operands' pods, whatever the watch has brought so far."""
        for name in pods:
            with contextlib.suppress(NotFound):
                await self._client.get(Pod, name, names.OPERATOR_NAMESPACE)
                return True
        return False

    async def _delete(self, name: str) -> None:
        self.writes["gpunodes"] += 1
        try:
            await self._client.delete(GPUNode, name)
        except NotFound:
            log.debug("GPUNode deleted node=%s", name)


async def release_labels(client: Client, node: str, version: str, *labellers: str) -> str:
    """Drop every label that these discovery operands own: an apply of nothing under their names.

    `version` is the Node's, so that a Node that was deleted meanwhile is not made again. Returns the one afterwards;
    raises Conflict.
    """
    for manager in labellers:
        body = {"metadata": {"name": node, "resourceVersion": version}}
        after = await client.apply(body, manager, resource=Node.RESOURCE)
        version = after["metadata"]["resourceVersion"]
    return version


async def forget_freed(client: Client, node: Node) -> str:
    """Take off what the extender wrote to wake waiting pods. Returns the Node's version afterwards; raises Conflict."""
    meta = node.metadata
    bare = {"resourceVersion": meta.resource_version, "annotations": {names.SHARE_FREED_ANNOTATION: None}}
    after = await client.patch(Node, meta.name, {"metadata": bare}, manager=MANAGER)
    return after.metadata.resource_version


def new_gpunode(node: Node, status: GPUNodeStatus) -> dict[str, Any]:
    """A GPUNode, owned by its Node so that it goes with it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
    return {
        "metadata": {"name": node.metadata.name, "ownerReferences": [owner]},
        "status": to_dict(status),
    }


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that makes `new` of `old`."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            inner = difference(before, value)
            if inner:
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch
