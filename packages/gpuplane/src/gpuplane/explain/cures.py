"""Cures for a waiting pod: changes of the pod or of the cluster, each proved by deciding again. Pure.

A cure is listed only if the changed pod, or the pod in the changed cluster, is placed now. The least invasive come
first: changes of the pod, then of what keeps pods off nodes, then what other pods notice, then what costs a node.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.admission.translate import translate
from gpuplane.api.gpunode import GPUNode
from gpuplane.explain.world import CORDONED, NodeVerdict, Object, World, devices_of, not_offered
from gpuplane.sharing import request_of
from gpuplane.sharing.findings import MEMORY_UNIT_MIB
from gpuplane.sharing.request import Ask
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput

MOST: Final = 4
_TRIES: Final = 50  # of each kind; a large cluster has too many values to try them all
_SELECTORS: Final = {
    names.GPU_MODELS_ANNOTATION: "models",
    names.NOT_GPU_MODELS_ANNOTATION: "models",
    names.GPU_UUIDS_ANNOTATION: "UUIDs",
    names.NOT_GPU_UUIDS_ANNOTATION: "UUIDs",
    names.HAMI_GPU_MODELS_ANNOTATION: "models",
    names.HAMI_NOT_GPU_MODELS_ANNOTATION: "models",
    names.HAMI_GPU_UUIDS_ANNOTATION: "UUIDs",
    names.HAMI_NOT_GPU_UUIDS_ANNOTATION: "UUIDs",
}
# Conditions of the node itself: who tolerates them gets a pod that does not run.
_OF_THE_NODE: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", names.NOT_READY_TAINT)


class Cure(msgspec.Struct, frozen=True):
    """`change` as one says it; `place` is where the pod would run then, node/GPU. `effect` is what the change does to
    others, empty for a change of the pod alone.
    """

    change: str
    place: str
    effect: str = ""


def cures(world: World, raw: Object, verdicts: list[NodeVerdict]) -> list[Cure]:
    """At most MOST, the smallest changes first."""
    found: list[Cure] = []
    for search in (
        _of_old,
        _less,
        _selectors,
        _placement_rules,
        _tolerations,
        _uncordoned,
        _offered,
        _others_gone,
        _recovered,
        _more_nodes,
    ):
        for cure in search(world, raw, verdicts):
            if cure.change not in {one.change for one in found}:
                found.append(cure)
            if len(found) == MOST:
                return found
    return found


def runs_on(verdicts: list[NodeVerdict]) -> str:
    """The best place that the verdicts leave, as node/GPU; empty when there is none."""
    good = [verdict for verdict in verdicts if verdict.placement is not None]
    if not good:
        return ""
    best = max(good, key=lambda verdict: verdict.placement.score if verdict.placement else -1)
    return place_of(best)


def place_of(verdict: NodeVerdict) -> str:
    """Return the place of the verdict: node/0,1."""
    assert verdict.placement is not None
    parts = [part.index for parts in verdict.placement.assignment.containers.values() for part in parts]
    return f"{verdict.node}/{','.join(map(str, sorted(set(parts))))}" if parts else verdict.node


def _proved(world: World, change: str, raw: Object, nodes: Iterable[str] | None = None) -> Iterator[Cure]:
    """The cure, if the pod as it is in `raw` has a place; `nodes` are those where that can be, all when None."""
    try:
        place = runs_on(world.judge(raw, nodes))
    except InvalidInput:
        return
    if place:
        yield Cure(change, place)


def _with_effect(found: Iterable[Cure], effect: str) -> Iterator[Cure]:
    return (msgspec.structs.replace(cure, effect=effect) for cure in found)


def _changed(raw: Object, change: Callable[[Object], Any]) -> Object:
    new = copy.deepcopy(raw)
    change(new)
    return new


# -- of the pod --------------------------------------------------------------------------------------------------------


def _of_old(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """A pod of Kubernetes 1.3 to 1.9 that admission did not see."""
    try:
        patch = translate(raw).patch
    except InvalidInput:
        return
    if not patch:
        return
    new = copy.deepcopy(raw)
    for containers in (new["spec"].get("initContainers") or (), new["spec"]["containers"]):
        for container in containers:
            for amounts in (container.get("resources") or {}).values():
                if isinstance(amounts, dict) and names.ALPHA_GPU in amounts:
                    amounts[names.GPU_RESOURCE] = amounts.pop(names.ALPHA_GPU)
    yield from _proved(world, f"ask {names.GPU_RESOURCE}, or gpuplane install --admission open and apply it again", new)


def _less(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """As much less memory, core or GPUs as is needed, of the one container that asks."""
    asks = request_of(msgspec.convert(raw, Pod)).asks
    nodes = [verdict.node for verdict in verdicts if verdict.about in ("gpus", "quota")]
    if len(asks) != 1 or not nodes:
        return
    (ask,) = asks
    if ask.gpus:
        each = 100 if ask.dialect == names.VCUDA_CORE else 1
        yield from _first(
            (f"ask {fewer} instead of {ask.gpus} GPUs", {ask.dialect: str(fewer * each)})
            for fewer in range(ask.gpus - 1, 0, -1)
        )(world, raw, ask, nodes)
        return
    free = list(_free(world, nodes))
    units = {memory // MEMORY_UNIT_MIB for core, memory in free if core >= ask.core}
    yield from _first(
        (f"ask {gib(unit * MEMORY_UNIT_MIB)} (vcuda-memory {unit})", {names.VCUDA_MEMORY: str(unit)})
        for unit in sorted(units, reverse=True)
        if 0 < unit * MEMORY_UNIT_MIB < ask.memory_mib
    )(world, raw, ask, nodes)
    cores = {core for core, memory in free if memory >= ask.memory_mib and 0 < core < ask.core}
    yield from _first(
        (f"ask {core}% core (vcuda-core {core})", {names.VCUDA_CORE: str(core)}) for core in sorted(cores, reverse=True)
    )(world, raw, ask, nodes)


def _free(world: World, nodes: list[str]) -> Iterator[tuple[int, int]]:
    """Return the free part of each usable GPU: core, MiB."""
    for node in nodes:
        state = world.ledger.node(node)
        if state is not None:
            for gpu, core, memory in zip(state.gpus, state.core, state.memory, strict=True):
                if not gpu.fault:
                    yield core, memory


def _first(choices: Iterable[tuple[str, dict[str, str]]]) -> Callable[[World, Object, Ask, list[str]], Iterator[Cure]]:
    """The first of the choices (words, amounts) with which the pod runs."""

    def search(world: World, raw: Object, ask: Ask, nodes: list[str]) -> Iterator[Cure]:
        for change, amounts in islice(choices, _TRIES):
            for cure in _proved(world, change, _asking(raw, ask, amounts), nodes):
                yield cure
                return

    return search


def _asking(raw: Object, ask: Ask, amounts: dict[str, str]) -> Object:
    """The pod with other amounts in the container that asks."""

    def change(new: Object) -> None:
        container = (new["spec"]["initContainers"] if ask.init else new["spec"]["containers"])[ask.position]
        for field in ("limits", "requests"):
            listed = container["resources"].setdefault(field, {})
            listed |= amounts

    return _changed(raw, change)


def _selectors(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    said = raw["metadata"].get("annotations") or {}
    for name in _SELECTORS:
        if name in said:
            new = _changed(raw, lambda new, name=name: new["metadata"]["annotations"].pop(name))  # type: ignore[misc]
            yield from _proved(world, f"drop the annotation {name}", new)


def _placement_rules(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """Return the rules that tie the pod to nodes: one label of its nodeSelector, all of it, its node affinity, or
    both.
    """
    selector = raw["spec"].get("nodeSelector") or {}
    done: list[Cure] = []
    if len(selector) > 1:
        for key, value in selector.items():
            new = _changed(raw, lambda new, key=key: new["spec"]["nodeSelector"].pop(key))  # type: ignore[misc]
            done += _proved(world, f"drop {key}={value} of the nodeSelector", new)
    if selector and not done:
        done += _proved(world, "drop the nodeSelector", _changed(raw, lambda new: new["spec"].pop("nodeSelector")))
    if (raw["spec"].get("affinity") or {}).get("nodeAffinity"):
        new = _changed(raw, lambda new: new["spec"]["affinity"].pop("nodeAffinity"))
        done += _proved(world, "drop the node affinity", new)
        if selector and not done:
            new["spec"].pop("nodeSelector")
            done += _proved(world, "drop nodeSelector and node affinity", new)
    yield from done


def _tolerations(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    taints = {taint for node in world.nodes.values() for taint in node.taints if taint.effect != "PreferNoSchedule"}
    for taint in sorted(taints, key=lambda taint: (taint.key, taint.value, taint.effect)):
        if taint.key.startswith(_OF_THE_NODE):
            continue
        toleration = {"key": taint.key, "operator": "Exists", "effect": taint.effect}
        new = _changed(raw, lambda new, t=toleration: new["spec"].setdefault("tolerations", []).append(t))  # type: ignore[misc]
        yield from _proved(world, f"tolerate {taint.key}:{taint.effect}", new)


# -- of the cluster ----------------------------------------------------------------------------------------------------


def _uncordoned(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    for verdict in islice((verdict for verdict in verdicts if verdict.reason == CORDONED), MOST):
        with world.with_node(_schedulable(world.raw(verdict.node))):
            done = list(_proved(world, f"kubectl uncordon {verdict.node}", raw, [verdict.node]))
        yield from _with_effect(done, "other pods may start there too; look first why it is cordoned")


def _schedulable(raw: Object) -> Object:
    spec = {key: value for key, value in (raw.get("spec") or {}).items() if key != "unschedulable"}
    spec["taints"] = [t for t in spec.get("taints") or () if t["key"] != "node.kubernetes.io/unschedulable"]
    return {**raw, "spec": spec}


def _offered(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """Suggest a node that offers whole GPUs and could offer shares; only an idle node, so that no pod is affected."""
    asks = request_of(msgspec.convert(raw, Pod)).asks
    if not any(ask.dialect == names.VCUDA_CORE for ask in asks):
        return
    busy = {pod.spec.node_name for pod in world.pods.values()}
    for verdict in verdicts:
        gpus = world.gpus(verdict.node)
        if verdict.reason != not_offered(names.VCUDA_CORE) or verdict.node in busy or not gpus:
            continue
        memory = sum(gpu.memory_mib for gpu in gpus) // MEMORY_UNIT_MIB
        offer = {names.VCUDA_CORE: str(len(gpus) * 100), names.VCUDA_MEMORY: str(memory)}
        with world.with_node(_offering(world.raw(verdict.node), offer)):
            change = f"kubectl label node {verdict.node} {names.SHARE_LABEL}=enable"
            done = list(_proved(world, change, raw, [verdict.node]))
        if done:
            yield from _with_effect(
                done[:1], "the node offers shares only then: pods that ask nvidia.com/gpu go elsewhere"
            )
            return


def _offering(raw: Object, amounts: dict[str, str]) -> Object:
    status = raw.get("status") or {}
    return {**raw, "status": {**status, "allocatable": {**(status.get("allocatable") or {}), **amounts}}}


def _others_gone(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """The one pod that holds the least of those whose end would make room."""
    nodes = {verdict.node: verdict.about for verdict in verdicts if verdict.about in ("gpus", "quota")}
    others = [pod for pod in world.pods.values() if pod.spec.node_name in nodes]
    for pod in sorted(others, key=lambda pod: (pod.request.core, pod.shown))[:_TRIES]:
        with world.without(pod.metadata.uid):
            # What it leaves is on its node; what it leaves of a quota counts on others as well.
            where = nodes if "quota" in nodes.values() else [pod.spec.node_name]
            done = list(_proved(world, f"{world.shown(pod)} ends or is deleted", raw, where))
        if done:
            yield from _with_effect(done[:1], "deleting it ends its work")
            return


def _recovered(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """The lost GPUs of one node, if its kubelet says what it offers with them."""
    for verdict in islice((verdict for verdict in verdicts if verdict.about == "gpus"), _TRIES):
        lost = [gpu for gpu in world.gpus(verdict.node) if gpu.fault]
        gpunode = world.gpunodes.get(verdict.node)
        if not lost or gpunode is None:
            continue
        indices = f"GPU{'s' if len(lost) > 1 else ''} {','.join(str(gpu.index) for gpu in lost)}"
        change = f"bring {indices} of {verdict.node} back: gpuplane status names the way"
        with world.with_node(_all_offered(world.raw(verdict.node)), _healthy(gpunode)):
            done = list(_proved(world, change, raw, [verdict.node]))
        if done:
            yield from _with_effect(done[:1], "a reboot ends all pods of the node")
            return


def _healthy(gpunode: GPUNode) -> GPUNode:
    return msgspec.structs.replace(gpunode, status=msgspec.structs.replace(gpunode.status, health={}))


def _all_offered(raw: Object) -> Object:
    """Return the node as it is while no GPU is lost: then it offers all the devices that its kubelet counts."""
    return _offering(raw, {name: str(number) for name, number in devices_of(raw).items()})


def _more_nodes(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
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
            gpunode = _healthy(gpunode)
        with world.with_node(other, gpunode):
            done = list(_proved(world, f"add a node like {verdict.node}", raw, [name]))
        if done:
            yield Cure(done[0].change, "the new node", "it costs a node")
            return


def gib(mib: int) -> str:
    """`11 GiB`, `5.25 GiB`, `512 MiB`."""
    return f"{mib} MiB" if mib < 1024 else f"{round(mib / 1024, 2):g} GiB"
