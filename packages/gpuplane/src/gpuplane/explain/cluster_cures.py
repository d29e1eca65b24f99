"""Cures that change the cluster: its nodes, their GPUs and other pods. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from gpuplane.explain.proving import TRIES, Cure, proved, with_effect
from gpuplane.explain.world import CORDONED, NodeVerdict, Object, World, devices_of, not_offered
from gpuplane.sharing import request_of
from gpuplane.sharing.findings import MEMORY_UNIT_MIB
from kubekit.api.core import Pod


def uncordoned(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    for verdict in islice((verdict for verdict in verdicts if verdict.reason == CORDONED), TRIES):
        with world.with_node(_schedulable(world.raw(verdict.node))):
            done = list(proved(world, f"kubectl uncordon {verdict.node}", raw, [verdict.node]))
        yield from with_effect(done, "other pods may start there too; look first why it is cordoned")


def _schedulable(raw: Object) -> Object:
    spec = {key: value for key, value in (raw.get("spec") or {}).items() if key != "unschedulable"}
    spec["taints"] = [t for t in spec.get("taints") or () if t["key"] != "node.kubernetes.io/unschedulable"]
    return {**raw, "spec": spec}


def offered(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """Suggest a node that offers whole GPUs and could offer shares; only an idle node, so that no pod is affected."""
    asks = request_of(msgspec.convert(raw, Pod)).asks
    if not any(ask.dialect == names.VCUDA_CORE for ask in asks):
        return
    busy = {pod.spec.node_name for pod in world.pods.values()}
    for verdict in verdicts:
        gpus = world.gpus(verdict.node)
        if verdict.reason != not_offered(names.VCUDA_CORE) or verdict.node in busy or not gpus:
            continue
        if any(gpu.mig == "enabled" for gpu in gpus):
            continue  # a GPU in MIG mode has no shares
        memory = sum(gpu.memory_mib for gpu in gpus) // MEMORY_UNIT_MIB
        offer = {names.VCUDA_CORE: str(len(gpus) * 100), names.VCUDA_MEMORY: str(memory)}
        with world.with_node(_offering(world.raw(verdict.node), offer)):
            change = f"kubectl label node {verdict.node} {names.SHARE_LABEL}=enable"
            done = list(proved(world, change, raw, [verdict.node]))
        if done:
            yield from with_effect(
                done[:1], "the node offers shares only then: pods that ask nvidia.com/gpu go elsewhere"
            )
            return


def _offering(raw: Object, amounts: dict[str, str]) -> Object:
    status = raw.get("status") or {}
    return {**raw, "status": {**status, "allocatable": {**(status.get("allocatable") or {}), **amounts}}}


def others_gone(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """The one pod that holds the least of those whose end would make room."""
    nodes = {verdict.node: verdict.about for verdict in verdicts if verdict.about in ("gpus", "quota")}
    others = [pod for pod in world.pods.values() if pod.spec.node_name in nodes]
    for pod in sorted(others, key=lambda pod: (pod.request.core, pod.shown))[:TRIES]:
        with world.without(pod.metadata.uid):
            # The pod frees GPUs on its node; the part of a quota that it frees counts on other nodes as well.
            where = nodes if "quota" in nodes.values() else [pod.spec.node_name]
            done = list(proved(world, f"{world.shown(pod)} ends or is deleted", raw, where))
        if done:
            yield from with_effect(done[:1], f"deleting it ends its work{_replaced(world, pod.metadata.uid)}")
            return


def _replaced(world: World, uid: str) -> str:
    """Return what becomes of a pod that is deleted while it runs, if a controller owns it."""
    for raw in world.facts.pods:
        if raw["metadata"].get("uid") == uid:
            owners = raw["metadata"].get("ownerReferences") or ()
            kind = next((owner["kind"] for owner in owners if owner.get("controller")), "")
            return f"; its {kind} makes another, which asks for the same" if kind else ""
    return ""


def recovered(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """The lost GPUs of one node, if its kubelet says what it offers with them."""
    for verdict in islice((verdict for verdict in verdicts if verdict.about == "gpus"), TRIES):
        lost = [gpu for gpu in world.gpus(verdict.node) if gpu.fault]
        gpunode = world.gpunodes.get(verdict.node)
        if not lost or gpunode is None:
            continue
        indices = f"GPU{'s' if len(lost) > 1 else ''} {','.join(str(gpu.index) for gpu in lost)}"
        change = f"bring {indices} of {verdict.node} back: gpuplane status names the way"
        with world.with_node(_all_offered(world.raw(verdict.node)), _healthy(gpunode)):
            done = list(proved(world, change, raw, [verdict.node]))
        if done:
            yield from with_effect(done[:1], "a reboot ends all pods of the node")
            return


def _healthy(gpunode: GPUNode) -> GPUNode:
    return msgspec.structs.replace(gpunode, status=msgspec.structs.replace(gpunode.status, health={}))


def _all_offered(raw: Object) -> Object:
    """Return the node as it is while no GPU is lost: then it offers all the devices that its kubelet counts."""
    return _offering(raw, {name: str(number) for name, number in devices_of(raw).items()})


def more_nodes(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """Another node like one there is."""
    seen: set[tuple[str, ...]] = set()
    for verdict in verdicts:
        models = tuple(gpu.model for gpu in world.gpus(verdict.node))
        if verdict.about != "gpus" or models in seen:
            continue
        seen.add(models)
        name = f"another {verdict.node}"
        other = copy.deepcopy(_all_offered(world.raw(verdict.node)))
        other["metadata"]["name"] = name
        other["metadata"]["labels"] = {**(other["metadata"].get("labels") or {}), "kubernetes.io/hostname": name}
        gpunode = world.gpunodes.get(verdict.node)
        if gpunode is not None:
            gpus = [msgspec.structs.replace(gpu, uuid=f"{name}/{gpu.index}") for gpu in gpunode.status.gpus]
            status = msgspec.structs.replace(gpunode.status, health={}, gpus=tuple(gpus))
            gpunode = msgspec.structs.replace(gpunode, status=status)
        with world.with_node(other, gpunode):
            done = list(proved(world, f"add a node like {verdict.node}", raw, [name]))
        if done:
            yield Cure(done[0].change, "the new node", "it costs a node")
            return
