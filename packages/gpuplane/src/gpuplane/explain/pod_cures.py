"""Cures that change the waiting pod. Pure.

A request, a selector or an affinity of a pod cannot be changed: the pod has to be made again, by hand or by its
controller.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from gpuplane import names
from gpuplane.admission.translate import translate
from gpuplane.explain.proving import TRIES, Cure, gib, proved, with_effect
from gpuplane.explain.world import NodeVerdict, Object, World
from gpuplane.sharing import request_of
from gpuplane.sharing.findings import MEMORY_UNIT_MIB
from gpuplane.sharing.request import Ask
from kubekit.api.core import Pod
from kubekit.errors import InvalidInput

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


def pod_cures(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """Yield the changes of the pod, with what it takes to make them."""
    again = made_again(raw)
    for search in (_of_old, _less, _selectors, _placement_rules):
        yield from with_effect(search(world, raw, verdicts), again)
    yield from with_effect(
        _tolerations(world, raw, verdicts), f"the taint keeps pods off the node on purpose: look first why; {again}"
    )


def made_again(raw: Object) -> str:
    """Return how the waiting pod is replaced by a changed pod."""
    owners = raw["metadata"].get("ownerReferences") or ()
    owner = next((owner for owner in owners if owner.get("controller")), None)
    if owner is None:
        return "the pod has to be deleted and made again"
    kind, name = owner["kind"], owner["name"]
    revision = (raw["metadata"].get("labels") or {}).get("pod-template-hash", "")
    if kind == "ReplicaSet" and revision and name.endswith(f"-{revision}"):
        return f"change Deployment/{name.removesuffix(f'-{revision}')}, which then replaces all its pods"
    if kind == "Job":
        return f"Job/{name} has to be deleted and made again"
    return f"change {kind}/{name}, and delete the pod, which is then made again"


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
    yield from proved(world, f"ask {names.GPU_RESOURCE}, or gpuplane install --admission open and apply it again", new)


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
        state = world.holdings.node(node)
        if state is not None:
            for gpu, core, memory in zip(state.gpus, state.core, state.memory, strict=True):
                if not gpu.fault:
                    yield core, memory


def _first(choices: Iterable[tuple[str, dict[str, str]]]) -> Callable[[World, Object, Ask, list[str]], Iterator[Cure]]:
    """The first of the choices (words, amounts) with which the pod runs."""

    def search(world: World, raw: Object, ask: Ask, nodes: list[str]) -> Iterator[Cure]:
        for change, amounts in islice(choices, TRIES):
            for cure in proved(world, change, asking(raw, ask, amounts), nodes):
                yield cure
                return

    return search


def asking(raw: Object, ask: Ask, amounts: dict[str, str]) -> Object:
    """Return the pod with other amounts in the container that asks."""

    def change(new: Object) -> None:
        container = (new["spec"]["initContainers"] if ask.init else new["spec"]["containers"])[ask.position]
        for field in ("limits", "requests"):
            listed = container["resources"].setdefault(field, {})
            listed |= amounts

    return changed(raw, change)


def _selectors(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    said = raw["metadata"].get("annotations") or {}
    for name in _SELECTORS:
        if name in said:
            new = changed(raw, lambda new, name=name: new["metadata"]["annotations"].pop(name))  # type: ignore[misc]
            yield from proved(world, f"drop the annotation {name}", new)


def _placement_rules(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    """Return the rules that tie the pod to nodes: one label of its nodeSelector, all of it, its node affinity, or
    both.
    """
    selector = raw["spec"].get("nodeSelector") or {}
    done: list[Cure] = []
    if len(selector) > 1:
        for key, value in selector.items():
            new = changed(raw, lambda new, key=key: new["spec"]["nodeSelector"].pop(key))  # type: ignore[misc]
            done += proved(world, f"drop {key}={value} of the nodeSelector", new)
    if selector and not done:
        done += proved(world, "drop the nodeSelector", changed(raw, lambda new: new["spec"].pop("nodeSelector")))
    if (raw["spec"].get("affinity") or {}).get("nodeAffinity"):
        new = changed(raw, lambda new: new["spec"]["affinity"].pop("nodeAffinity"))
        done += proved(world, "drop the node affinity", new)
        if selector and not done:
            new["spec"].pop("nodeSelector")
            done += proved(world, "drop nodeSelector and node affinity", new)
    yield from done


def _tolerations(world: World, raw: Object, verdicts: list[NodeVerdict]) -> Iterator[Cure]:
    taints = {taint for node in world.nodes.values() for taint in node.taints if taint.effect != "PreferNoSchedule"}
    for taint in sorted(taints, key=lambda taint: (taint.key, taint.value, taint.effect)):
        if taint.key.startswith(_OF_THE_NODE):
            continue
        toleration = {"key": taint.key, "operator": "Exists", "effect": taint.effect}
        new = changed(raw, lambda new, t=toleration: new["spec"].setdefault("tolerations", []).append(t))  # type: ignore[misc]
        yield from proved(world, f"tolerate {taint.key}:{taint.effect}", new)


def changed(raw: Object, change: Callable[[Object], Any]) -> Object:
    """Return a copy of the pod to which a change was made."""
    new = copy.deepcopy(raw)
    change(new)
    return new
