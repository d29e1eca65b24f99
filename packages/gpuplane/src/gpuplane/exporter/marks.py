"""Owner, labels and uid of the pods that hold GPUs, for the metrics: a watch of this node's pods.

Invariant: metrics never wait for it or fail because of it; lines of an unknown pod have no marks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kubekit.api.core import Pod
from kubekit.api.meta import ObjectMeta
from kubekit.kube import Client, Informer

UID = "pod_uid"
TEMPLATE_LABEL = "pod-template-hash"  # of a Deployment, at its ReplicaSets and their pods


class PodMarks:
    """
    Args:
        labels: whether labels are wanted: those in whose key one of `allowed` is found, without such all.
        uid: whether the uid is wanted.
    """

    def __init__(
        self, client: Client, node_name: str, *, labels: bool, uid: bool, allowed: Sequence[re.Pattern[str]] = ()
    ) -> None:
        self._labels, self._uid, self._allowed = labels, uid, allowed
        self._pods = Informer(client, Pod, fields=f"spec.nodeName={node_name}", keep=_only_marks)

    def start(self) -> None:
        self._pods.start()

    async def stop(self) -> None:
        await self._pods.stop()

    def of(self, namespace: str, name: str) -> tuple[tuple[str, str], ...]:
        """(label of the metric, value) of what is wanted of a pod, sorted; none for an unknown pod."""
        pod = self._pods.get(f"{namespace}/{name}")
        if pod is None:
            return ()
        found = chosen(pod.metadata.labels, self._allowed) if self._labels else {}
        return tuple(sorted({**found, **({UID: pod.metadata.uid} if self._uid else {})}.items()))

    def owner(self, namespace: str, name: str) -> tuple[str, str]:
        """As `owner_of`; empty for an unknown pod."""
        pod = self._pods.get(f"{namespace}/{name}")
        return ("", "") if pod is None else owner_of(pod)

    def knows(self, namespace: str, name: str) -> bool:
        return self._pods.get(f"{namespace}/{name}") is not None


def owner_of(pod: Pod) -> tuple[str, str]:
    """Return kind and name of the controller of a pod: of a ReplicaSet's pod the Deployment, of a bare pod itself."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            template = pod.metadata.labels.get(TEMPLATE_LABEL, "")
            deployment = owner.name.removesuffix(f"-{template}")
            if owner.kind == "ReplicaSet" and template and deployment != owner.name:
                return "Deployment", deployment
            return owner.kind, owner.name
    return "Pod", pod.metadata.name


def chosen(labels: Mapping[str, str], allowed: Sequence[re.Pattern[str]]) -> dict[str, str]:
    """Labels of a pod as labels of a metric. Of two that become one name the first in the alphabet stays."""
    found: dict[str, str] = {}
    for key in sorted(labels):
        if not allowed or any(pattern.search(key) for pattern in allowed):
            found.setdefault(metric_label(key), labels[key])
    return found


def metric_label(key: str) -> str:
    """`app.kubernetes.io/name` as Prometheus can have it: `app_kubernetes_io_name`."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", key)
    return f"_{name}" if name[:1].isdigit() else name


def _only_marks(pod: Pod) -> Pod:
    meta = pod.metadata
    return Pod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            labels=meta.labels,
            owner_references=meta.owner_references,
        )
    )
