"""Claims of ephemeral volumes, classes that become the default, claims that grow, volumes that are not recycled."""

from __future__ import annotations

from typing import Any

import pytest

from tinykube.apiserver.failure import ApiFailure

CLASSES = ("storage.k8s.io", "storageclasses")
CLAIMS, VOLUMES = "persistentvolumeclaims", "persistentvolumes"
DEFAULT = "storageclass.kubernetes.io/is-default-class"
SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
VOLUME = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/mnt/disk"}}


async def pod(cluster: Any, name: str = "p", **metadata: Any) -> Any:
    template = {"metadata": metadata, "spec": {**SPEC, "storageClassName": "slow"}}
    volume = {"name": "v", "ephemeral": {"volumeClaimTemplate": template}}
    spec = {"containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
    return await cluster.create("pods", {"metadata": {"name": name}, "spec": spec})


def claim(cluster: Any, name: str = "p-v") -> Any:
    return cluster.registry.get(CLAIMS, "default", name)


def words(cluster: Any, reason: str) -> list[str]:
    return [event["message"] for event in cluster.events(reason)]


async def test_a_pod_gets_a_claim_of_its_own_for_each_ephemeral_volume(cluster: Any) -> None:
    made = await pod(cluster, labels={"a": "b"}, annotations={"c": "d"})
    await cluster.settle()
    found = claim(cluster)
    assert found["metadata"]["labels"] == {"a": "b"} and found["metadata"]["annotations"]["c"] == "d"
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["kind"]) == (made["metadata"]["uid"], True, "Pod")
    assert found["spec"]["storageClassName"] == "slow"
    await cluster.registry.delete("pods", "default", "p")
    await cluster.settle()
    assert claim(cluster) is None


async def test_a_claim_that_is_deleted_is_made_again(cluster: Any) -> None:
    await pod(cluster)
    await cluster.settle()
    before = claim(cluster)["metadata"]["uid"]
    await cluster.registry.delete(CLAIMS, "default", "p-v")
    await cluster.settle()
    assert claim(cluster)["metadata"]["uid"] != before


async def test_a_claim_of_that_name_that_is_another_ones_is_left_alone(cluster: Any) -> None:
    await cluster.create(CLAIMS, {"metadata": {"name": "p-v"}, "spec": SPEC})
    await pod(cluster)
    await cluster.settle()
    text = "ephemeral volume v: PVC default/p-v was not created for pod default/p (pod is not owner)"
    assert set(words(cluster, "FailedBinding")) >= {text}
    assert "ownerReferences" not in claim(cluster)["metadata"]


async def storage_class(cluster: Any, name: str, *, default: bool = False, **fields: Any) -> None:
    notes = {DEFAULT: "true"} if default else {}
    await cluster.create(CLASSES, {"metadata": {"name": name, "annotations": notes}, "provisioner": "x/y", **fields})


async def made_claim(cluster: Any, name: str, **fields: Any) -> Any:
    return (await cluster.create(CLAIMS, {"metadata": {"name": name}, "spec": {**SPEC, **fields}}))["spec"]


async def test_a_claim_that_waits_gets_a_default_class_that_is_made_later(cluster: Any) -> None:
    await made_claim(cluster, "early")
    await made_claim(cluster, "none", storageClassName="")
    await cluster.settle()
    await storage_class(cluster, "late", default=True)
    await cluster.settle()
    assert claim(cluster, "early")["spec"]["storageClassName"] == "late"
    assert claim(cluster, "none")["spec"]["storageClassName"] == ""


async def resized(cluster: Any, size: str) -> Any:
    patch = {"spec": {"resources": {"requests": {"storage": size}}}}
    return await cluster.registry.patch(CLAIMS, "default", "data", patch, "merge")


async def bound(cluster: Any) -> None:
    await storage_class(cluster, "slow", allowVolumeExpansion=True)
    await cluster.create(VOLUMES, {"metadata": {"name": "disk"}, "spec": {**VOLUME, "storageClassName": "slow"}})
    await cluster.settle()
    await made_claim(cluster, "data", storageClassName="slow")
    await cluster.settle()
    assert claim(cluster, "data")["status"]["phase"] == "Bound"


async def test_a_claim_that_grows_waits_for_its_driver_and_shrinks_to_more_than_its_capacity(
    cluster: Any,
) -> None:
    await bound(cluster)
    await resized(cluster, "3Gi")
    await cluster.settle()
    assert words(cluster, "ExternalExpanding") == ["waiting for an external controller to expand this PVC"]
    assert claim(cluster, "data")["status"]["capacity"] == {"storage": "1Gi"}
    await resized(cluster, "2Gi")
    with pytest.raises(ApiFailure, match=r"can not be less than status\.capacity"):
        await resized(cluster, "1Gi")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"hostPath": {"path": "/mnt/disk"}}, "Recycle failed: the embedded cluster runs no recycler pods"),
        ({"csi": {"driver": "x.y", "volumeHandle": "h"}}, "No recycler plugin found for the volume!"),
    ],
)
async def test_a_volume_that_is_to_be_recycled_fails_with_the_reason(cluster: Any, source: Any, text: str) -> None:
    spec = {**VOLUME, "hostPath": None, **source, "persistentVolumeReclaimPolicy": "Recycle"}
    spec = {name: value for name, value in spec.items() if value is not None}
    await cluster.create(VOLUMES, {"metadata": {"name": "disk"}, "spec": {**spec, "storageClassName": "slow"}})
    await cluster.settle()
    await made_claim(cluster, "data", storageClassName="slow")
    await cluster.settle()
    await cluster.registry.delete(CLAIMS, "default", "data")
    await cluster.settle()
    status = cluster.registry.get(VOLUMES, "", "disk")["status"]
    assert status["phase"] == "Failed" and status["message"].startswith(text)
    assert words(cluster, "VolumeFailedRecycle") == [status["message"]]
