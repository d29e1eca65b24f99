"""Claims get the default class, and grow only where their class allows it."""

from __future__ import annotations

from typing import Any

import pytest

from tinykube.apiserver import ApiFailure

CLASSES = ("storage.k8s.io", "storageclasses")
CLAIMS = "persistentvolumeclaims"
DEFAULT = "storageclass.kubernetes.io/is-default-class"
BETA = "volume.beta.kubernetes.io/storage-class"
SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


async def storage_class(cluster: Any, name: str, *, default: bool = False, **fields: Any) -> None:
    notes = {DEFAULT: "true"} if default else {}
    await cluster.create(CLASSES, {"metadata": {"name": name, "annotations": notes}, "provisioner": "x/y", **fields})


async def claim(cluster: Any, name: str, notes: dict[str, str] | None = None, **fields: Any) -> Any:
    metadata = {"name": name, "annotations": notes or {}}
    return (await cluster.create(CLAIMS, {"metadata": metadata, "spec": {**SPEC, **fields}}))["spec"]


async def test_claims_that_name_no_class_get_the_newest_default_one(cluster: Any) -> None:
    assert "storageClassName" not in await claim(cluster, "before")
    await storage_class(cluster, "plain")
    await storage_class(cluster, "b", default=True)
    await storage_class(cluster, "a", default=True)
    assert (await claim(cluster, "one"))["storageClassName"] == "a"
    assert (await claim(cluster, "none", storageClassName=""))["storageClassName"] == ""
    assert (await claim(cluster, "other", storageClassName="plain"))["storageClassName"] == "plain"
    assert "storageClassName" not in await claim(cluster, "old", {BETA: "plain"})
    cluster.time += 10
    await storage_class(cluster, "z", default=True)
    assert (await claim(cluster, "newest"))["storageClassName"] == "z"


async def resized(cluster: Any, size: str) -> Any:
    patch = {"spec": {"resources": {"requests": {"storage": size}}}}
    return await cluster.registry.patch(CLAIMS, "default", "data", patch, "merge")


async def bind(cluster: Any) -> None:
    status = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
    await cluster.registry.patch(CLAIMS, "default", "data", status, "merge", subresource="status")


async def test_only_bound_claims_grow(cluster: Any) -> None:
    await storage_class(cluster, "slow", allowVolumeExpansion=True)
    await claim(cluster, "data", storageClassName="slow")
    with pytest.raises(ApiFailure, match="spec is immutable after creation"):
        await resized(cluster, "2Gi")
    await bind(cluster)
    assert (await resized(cluster, "2Gi"))["spec"]["resources"]["requests"]["storage"] == "2Gi"


@pytest.mark.parametrize("fields", [{"storageClassName": "fixed"}, {"storageClassName": "none"}, {}])
async def test_a_claim_grows_only_where_its_class_allows_it(cluster: Any, fields: Any) -> None:
    await storage_class(cluster, "fixed")
    await claim(cluster, "data", **fields)
    await bind(cluster)
    with pytest.raises(ApiFailure, match="only dynamically provisioned pvc can be resized") as refused:
        await resized(cluster, "2Gi")
    assert refused.value.status == 403
