"""Carries out the cures that `explain` prints: on a pod, and on a cluster of `explained_clusters`.

Each is read from its words, as a person reads it, and made as Kubernetes, the kubelet and gpuplane make it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode
from packages.gpuplane.tests.cli.explained_clusters import Cluster

Object = dict[str, Any]
NEW = "new"
Change = Callable[..., None]


def carried_out(cluster: Cluster, pod: Object, change: str) -> tuple[Cluster, Object]:
    """Return the cluster and the pod after the change. Fails for a cure that no user could carry out."""
    cluster, pod = copy.deepcopy((cluster, pod))
    cluster.pods = [pod if one["metadata"]["uid"] == pod["metadata"]["uid"] else one for one in cluster.pods]
    found = [(made, match) for words, made in CHANGES.items() if (match := re.fullmatch(words, change))]
    assert len(found) == 1, f"{change}: {len(found)} ways to read it"
    ((made, match),) = found
    made(cluster, pod, *match.groups())
    return cluster, pod


def _limits(pod: Object, **amounts: str) -> None:
    [container] = [one for one in pod["spec"]["containers"] if one["resources"]["limits"]]
    container["resources"]["limits"] |= amounts


def _fewer(cluster: Cluster, pod: Object, fewer: str, whole: str) -> None:
    [container] = [one for one in pod["spec"]["containers"] if one["resources"]["limits"]]
    limits = container["resources"]["limits"]
    for name, each in ((names.GPU_RESOURCE, 1), (names.VCUDA_CORE, 100)):
        if name in limits:
            assert limits[name] == str(int(whole) * each)
            limits[name] = str(int(fewer) * each)


def _of_old(cluster: Cluster, pod: Object) -> None:
    for container in pod["spec"]["containers"]:
        limits = container["resources"]["limits"]
        limits[names.GPU_RESOURCE] = limits.pop(names.ALPHA_GPU)


def _drop_label(cluster: Cluster, pod: Object, key: str, value: str) -> None:
    assert pod["spec"]["nodeSelector"].pop(key) == value


def _drop(cluster: Cluster, pod: Object, what: str) -> None:
    if "nodeSelector" in what:
        del pod["spec"]["nodeSelector"]
    if "affinity" in what:
        del pod["spec"]["affinity"]["nodeAffinity"]


def _tolerate(cluster: Cluster, pod: Object, key: str, effect: str) -> None:
    taint = {"key": key, "operator": "Exists", "effect": effect}
    pod["spec"]["tolerations"] = [*pod["spec"].get("tolerations", ()), taint]


def _node(cluster: Cluster, name: str) -> tuple[Object, int]:
    [node] = [one for one in cluster.nodes if one["metadata"]["name"] == name]
    [at] = [at for at, one in enumerate(cluster.gpunodes) if one.metadata.name == name]
    return node, at


def _uncordon(cluster: Cluster, pod: Object, name: str) -> None:
    spec = _node(cluster, name)[0]["spec"]
    spec.pop("unschedulable", None)
    spec["taints"] = [one for one in spec.get("taints", ()) if one["key"] != "node.kubernetes.io/unschedulable"]


def _share(cluster: Cluster, pod: Object, name: str) -> None:
    """Offer shares and nothing else, as the device plugin does on a node with the label."""
    node, at = _node(cluster, name)
    status = cluster.gpunodes[at].status
    node["metadata"]["labels"][names.SHARE_LABEL] = "enable"
    for field, lost in (("capacity", {}), ("allocatable", status.health)):
        amounts = {key: "0" if "nvidia" in key else value for key, value in node["status"][field].items()}
        usable = [gpu.memory_mib for gpu in status.gpus if gpu.uuid not in lost and gpu.mig != "enabled"]
        shares = {names.VCUDA_CORE: str(100 * len(usable)), names.VCUDA_MEMORY: str(sum(usable) // 256)}
        node["status"][field] = amounts | shares


def _end(cluster: Cluster, pod: Object, space: str, name: str) -> None:
    [gone] = [one for one in cluster.pods if one["metadata"]["namespace"] == space and one["metadata"]["name"] == name]
    cluster.pods.remove(gone)


def _repair(cluster: Cluster, pod: Object, indices: str, name: str) -> None:
    node, at = _node(cluster, name)
    status = cluster.gpunodes[at].status
    assert {gpu.uuid for gpu in status.gpus if str(gpu.index) in indices.split(",")} == set(status.health)
    cluster.gpunodes[at] = _healthy(cluster.gpunodes[at])
    node["status"]["allocatable"] = node["status"]["capacity"]


def _add(cluster: Cluster, pod: Object, name: str) -> None:
    like, at = _node(cluster, name)
    node, gpunode = copy.deepcopy(like), _healthy(cluster.gpunodes[at])
    node["metadata"]["name"] = node["metadata"]["labels"]["kubernetes.io/hostname"] = NEW
    node["status"]["allocatable"] = node["status"]["capacity"]
    gpus = tuple(msgspec.structs.replace(gpu, uuid=f"GPU-{NEW}-{gpu.index}") for gpu in gpunode.status.gpus)
    status = msgspec.structs.replace(gpunode.status, gpus=gpus)
    meta = msgspec.structs.replace(gpunode.metadata, name=NEW)
    cluster.nodes.append(node)
    cluster.gpunodes.append(msgspec.structs.replace(gpunode, metadata=meta, status=status))


def _healthy(gpunode: GPUNode) -> GPUNode:
    return msgspec.structs.replace(gpunode, status=msgspec.structs.replace(gpunode.status, health={}))


CHANGES: dict[str, Change] = {
    r"ask .* \(vcuda-memory (\d+)\)": lambda c, pod, units: _limits(pod, **{names.VCUDA_MEMORY: units}),
    r"ask .* \(vcuda-core (\d+)\)": lambda c, pod, core: _limits(pod, **{names.VCUDA_CORE: core}),
    r"ask (\d+) instead of (\d+) GPUs": _fewer,
    r"ask nvidia.com/gpu, or gpuplane install --admission open and apply it again": _of_old,
    r"drop the annotation (\S+)": lambda c, pod, name: pod["metadata"]["annotations"].pop(name),
    r"drop (\S+)=(\S+) of the nodeSelector": _drop_label,
    r"drop (the nodeSelector|the node affinity|nodeSelector and node affinity)": _drop,
    r"tolerate ([^:]+):(\S+)": _tolerate,
    r"kubectl uncordon (\S+)": _uncordon,
    rf"kubectl label node (\S+) {names.SHARE_LABEL}=enable": _share,
    r"(\S+)/(\S+) ends or is deleted": _end,
    r"bring GPUs? ([\d,]+) of (\S+) back: gpuplane status names the way": _repair,
    r"add a node like (\S+)": _add,
}
