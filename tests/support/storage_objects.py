"""Claims and volumes on an API server, and what Kubernetes's volume controller and drivers do with them."""

from __future__ import annotations

from typing import Any

from kubekit.api.kinds import built_in
from kubekit.kube import Client

CLAIM = built_in("v1", "PersistentVolumeClaim")
VOLUME = built_in("v1", "PersistentVolume")
CLASS = built_in("storage.k8s.io/v1", "StorageClass")
LATE, LOCAL = "late", "local"  # classes: a driver makes volumes for the first pod, an administrator has made them
SELECTED_NODE = "volume.kubernetes.io/selected-node"
MERGE = "application/merge-patch+json"


def claim(name: str, storage_class: str = LOCAL, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """A claim of 1 GiB that is not bound."""
    resources = {"requests": {"storage": spec.pop("size", "1Gi")}}
    whole = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class, "resources": resources, **spec}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": whole}


def local_volume(name: str, node: str, storage_class: str = LOCAL, size: str = "1Gi") -> dict[str, Any]:
    """A volume on the disk of a node."""
    return volume(name, "kubernetes.io/hostname", node, storage_class=storage_class, size=size)


def volume(
    name: str, key: str = "", *values: str, storage_class: str = LOCAL, size: str = "1Gi", **spec: Any
) -> dict[str, Any]:
    """A volume that nodes with one of these values of a label can have."""
    whole: dict[str, Any] = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "csi": {"driver": "disks.example.com", "volumeHandle": name},
        **spec,
    }
    if key:
        terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]
        whole["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {"metadata": {"name": name}, "spec": whole}


def with_claims(pod: dict[str, Any], *claims: str) -> dict[str, Any]:
    """The pod with volumes of these claims."""
    pod["spec"]["volumes"] = [
        {"name": f"v{at}", "persistentVolumeClaim": {"claimName": name}} for at, name in enumerate(claims)
    ]
    return pod


async def make_classes(client: Client) -> None:
    """Make the two classes."""
    for name, provisioner in ((LATE, "disks.example.com"), (LOCAL, "kubernetes.io/no-provisioner")):
        made = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        await client.create(made, resource=CLASS)


async def make_volume(client: Client, body: dict[str, Any], phase: str = "Available") -> None:
    """Make a volume; a controller sets its phase."""
    await client.create(body, resource=VOLUME)
    path = VOLUME.path(None, body["metadata"]["name"], "status")
    await client.request("PATCH", path, None, {"status": {"phase": phase}}, MERGE)


async def complete(client: Client, name: str, volume_name: str, namespace: str = "default") -> None:
    """Bind a claim to a volume, as the controller does that has seen both."""
    patch = {
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": volume_name},
    }
    await client.request("PATCH", CLAIM.path(namespace, name), None, patch, MERGE)
    await client.request("PATCH", CLAIM.path(namespace, name, "status"), None, {"status": {"phase": "Bound"}}, MERGE)
