"""Clusters for the tests of explain: nodes with GPUs and pods that hold them, as an API server gives them."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPU, GPUNode, GPUNodeStatus, Summary
from gpuplane.api.gpuqueue import GPUQueue
from gpuplane.explain.answer import Explanation, explain
from gpuplane.explain.reading import decode_pod
from gpuplane.explain.scheduling_reading import SchedulingFacts
from gpuplane.explain.world import ClusterFacts
from gpuplane.scheduler.quota import NamespaceQuota, QuotaSettings
from gpuplane.sharing import Assignment, Part, request_of, to_annotations
from kubekit.api.core import Pod
from kubekit.api.meta import ObjectMeta

NOW = "2026-05-01T12:06:00.000000Z"
BORN = "2026-05-01T12:00:00Z"
T4 = 15360


class Cluster:
    """The objects that `explain` reads."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.gpunodes: list[GPUNode] = []
        self.pods: list[dict[str, Any]] = []
        self.quotas: dict[str, NamespaceQuota] = {}
        self.queues: list[GPUQueue] = []
        self.scheduling = SchedulingFacts()
        self._numbers = itertools.count()

    def node(
        self,
        name: str,
        gpus: int = 4,
        *,
        model: str = "Tesla T4",
        memory: int = T4,
        lost: tuple[int, ...] = (),
        ready: bool = True,
        offers: tuple[str, ...] = (names.GPU_RESOURCE, names.VCUDA_CORE, names.VCUDA_MEMORY),
        summary: Summary = Summary(stage="ready"),  # noqa: B008 - frozen
        devices: dict[str, int] | None = None,
        **spec: Any,
    ) -> None:
        labels = spec.pop("labels", {})
        amounts = {names.GPU_RESOURCE: gpus, names.VCUDA_CORE: gpus * 100, names.VCUDA_MEMORY: gpus * memory // 256}
        amounts[names.ALPHA_GPU] = gpus
        wanted = {each: amounts[each] for each in offers if gpus} if devices is None else devices
        host = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        capacity = host | {each: str(number) for each, number in wanted.items()}
        # As a kubelet counts: the devices of a lost GPU are in the capacity only.
        allocatable = host | {each: str(number * (gpus - len(lost)) // gpus) for each, number in wanted.items()}
        conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
        if gpus:
            metadata["labels"][names.GPU_PRESENT_LABEL] = "true"
        status = {"capacity": capacity, "allocatable": allocatable, "conditions": conditions}
        self.nodes.append({"metadata": metadata, "spec": spec, "status": status})
        if gpus:
            listed = tuple(GPU(index, f"GPU-{name}-{index}", model, memory) for index in range(gpus))
            health = {f"GPU-{name}-{index}": "Xid 79" for index in lost}
            told = GPUNodeStatus(summary=summary, gpus=listed, health=health)
            self.gpunodes.append(GPUNode(metadata=ObjectMeta(name=name), status=told))

    def pod(
        self, name: str, *, ns: str = "ml", limits: dict[str, Any] | None = None, on: str = "", **spec: Any
    ) -> dict[str, Any]:
        """A pod; `on` binds it to node, without an assignment."""
        annotations = spec.pop("annotations", {})
        resources = {"limits": {key: str(value) for key, value in (limits or {}).items()}}
        metadata = {
            "name": name,
            "namespace": ns,
            "uid": f"uid-{next(self._numbers)}",
            "creationTimestamp": BORN,
            "annotations": annotations,
        }
        body = {"containers": [{"name": "main", "image": "i", "resources": resources}], **spec}
        if on:
            body["nodeName"] = on
        made = {"metadata": metadata, "spec": body, "status": {"phase": "Running" if on else "Pending"}}
        self.pods.append(made)
        return made

    def share(self, name: str, where: str, core: int, memory_gib: float, ns: str = "ml") -> dict[str, Any]:
        """A pod that holds a share; `where` is node/GPU."""
        node, _, index = where.partition("/")
        units = int(memory_gib * 4)
        made = self.pod(name, ns=ns, limits={names.VCUDA_CORE: core, names.VCUDA_MEMORY: units}, on=node)
        return self._assigned(made, node, (int(index),), core, units * 256)

    def whole(self, name: str, where: str, ns: str = "ml") -> dict[str, Any]:
        """A pod that holds whole GPUs; `where` is node/0,1."""
        node, _, text = where.partition("/")
        indices = tuple(map(int, text.split(",")))
        made = self.pod(name, ns=ns, limits={names.GPU_RESOURCE: len(indices)}, on=node)
        return self._assigned(made, node, indices, 100, T4)

    def _assigned(
        self, made: dict[str, Any], node: str, indices: tuple[int, ...], core: int, memory: int
    ) -> dict[str, Any]:
        pod = msgspec.convert(made, Pod)
        parts = tuple(Part(f"GPU-{node}-{index}", index, core, memory) for index in indices)
        made["metadata"]["annotations"] |= to_annotations(Assignment({"main": parts}), request_of(pod), node, 1)
        return made

    def facts(self) -> ClusterFacts:
        """The cluster as it is read: of bound pods what they take up."""
        return self._facts([decode_pod(msgspec.Raw(msgspec.json.encode(pod))) for pod in self.pods])

    def _facts(self, pods: list[dict[str, Any]]) -> ClusterFacts:
        return ClusterFacts(
            pods, self.nodes, self.gpunodes, {"ml": {}}, self.quotas, QuotaSettings(), self.queues, self.scheduling
        )

    def explain(self, pod: dict[str, Any]) -> Explanation:
        found = explain(pod, self.facts(), NOW)
        assert found == explain(pod, self._facts(self.pods), NOW)
        assert sum(tally.count for tally in found.node_reasons) == found.nodes
        assert sum(tally.count for tally in found.gpu_reasons) == found.gpus
        return found


def picture() -> tuple[Cluster, dict[str, Any]]:
    """Twelve nodes, of which eight are of another pool and four are full in different ways; and a pod that waits."""
    cluster = Cluster()
    for number in range(8):
        cluster.node(f"gpu-h-{number:02}", 8, model="NVIDIA H100 80GB HBM3", memory=81559, labels={"pool": "h100"})
    for number in range(1, 5):
        lost = (3,) if number == 2 else ()
        cluster.node(f"gpu-t-{number:02}", lost=lost, labels={"pool": "t4-share"})
    for name, where, core, memory in (
        ("a", "gpu-t-01/0", 50, 10), ("b", "gpu-t-01/1", 40, 4), ("c", "gpu-t-01/2", 50, 8),
        ("d", "gpu-t-02/0", 50, 6), ("e", "gpu-t-02/1", 70, 2),
        ("f", "gpu-t-03/0", 50, 9), ("g", "gpu-t-03/1", 60, 9), ("h", "gpu-t-03/2", 50, 9), ("i", "gpu-t-03/3", 90, 1),
        ("j", "gpu-t-04/0", 50, 9), ("k", "gpu-t-04/1", 50, 9), ("l", "gpu-t-04/2", 65, 2),
    ):  # fmt: skip
        cluster.share(name, where, core, memory)
    for name, where in (("m", "gpu-t-01/3"), ("n", "gpu-t-02/2"), ("o", "gpu-t-04/3")):
        cluster.whole(name, where)
    limits = {names.VCUDA_CORE: 40, names.VCUDA_MEMORY: 48}
    pod = cluster.pod("tune-42", limits=limits, nodeSelector={"pool": "t4-share"})
    return cluster, pod
