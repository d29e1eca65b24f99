"""PodGroups of scheduler-plugins and of Kubernetes for tests, and pods that belong to them."""

from __future__ import annotations

from typing import Any, Final

from gpuplane import names
from gpuplane.api.pod_groups import PluginPodGroup, WorkloadPodGroup
from gpuplane.scheduler.gangs.gang import GangSource
from kubekit.kube import Client

KINDS: Final[dict[GangSource, Any]] = {
    GangSource.PLUGIN_GROUP: PluginPodGroup,
    GangSource.WORKLOAD_GROUP: WorkloadPodGroup,
}


def definition(source: GangSource) -> dict[str, Any]:
    """The CustomResourceDefinition of the kind, without a schema.

    The embedded API server serves Kubernetes' own kind by it too, as a real one does by a feature gate.
    """
    resource = KINDS[source].RESOURCE
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": resource.version, "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{resource.group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes"},
        },
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {"plural": resource.plural, "kind": resource.kind, "singular": "podgroup", "listKind": "List"},
            "versions": [version],
        },
    }


def pod_group(
    source: GangSource, name: str, size: int, *, rack: str = "", namespace: str = "default", **spec: Any
) -> dict[str, Any]:
    """A PodGroup whose gang has this size; `rack` is the label that Kubernetes' own requires to be equal."""
    made: dict[str, Any] = {"minMember": size}
    if source is GangSource.WORKLOAD_GROUP:
        made = {"schedulingPolicy": {"gang": {"minCount": size}}}
        if rack:
            made["schedulingConstraints"] = {"topology": [{"key": rack}]}
    resource = KINDS[source].RESOURCE
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": made | spec,
    }


async def create_group(client: Client, source: GangSource, name: str, size: int, **how: Any) -> None:
    await client.create(pod_group(source, name, size, **how), resource=KINDS[source].RESOURCE)


def join_gang(pod: dict[str, Any], source: GangSource, gang: str, count: int, **annotations: str) -> dict[str, Any]:
    """The pod as one of the gang. Keywords are further annotations: `required_topology="node"`."""
    meta = pod["metadata"]
    meta["annotations"] = {f"gpuplane.dev/gang-{key.replace('_', '-')}": value for key, value in annotations.items()}
    if source is GangSource.ANNOTATIONS:
        meta["annotations"] |= {names.GANG_ANNOTATION: gang, names.GANG_SIZE_ANNOTATION: str(count)}
    elif source is GangSource.PLUGIN_GROUP:
        meta["labels"] = {names.POD_GROUP_LABEL: gang}
    else:
        pod["spec"]["schedulingGroup"] = {"podGroupName": gang}
    return pod
