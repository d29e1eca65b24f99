"""Claims of pods: made from templates, freed by pods that have ended, and pods evicted by taints of devices."""

from __future__ import annotations

from typing import Any

import pytest

from tinykube.apiserver.failure import ApiFailure
from tinykube.controllers.resourceclaims import generated_base

GROUP = "resource.k8s.io"
CLAIMS = (GROUP, "resourceclaims")
FINALIZER = "resource.kubernetes.io/delete-protection"
SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}


async def template(cluster: Any, **metadata: Any) -> None:
    body = {"metadata": {"name": "gpus"}, "spec": {"metadata": metadata, "spec": SPEC}}
    await cluster.create((GROUP, "resourceclaimtemplates"), body)


async def pod(cluster: Any, name: str = "p", claim: str = "", **spec: Any) -> dict[str, Any]:
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": "gpus"}
    body = {"containers": [{"name": "c", "image": "i"}], "resourceClaims": [{"name": "mine", **source}], **spec}
    made: dict[str, Any] = await cluster.create("pods", {"metadata": {"name": name}, "spec": body})
    return made


def claims(cluster: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.registry.list(CLAIMS, "default")
    return found


async def allocated(cluster: Any, *users: dict[str, Any], name: str = "shared", **result: Any) -> dict[str, Any]:
    """A claim with a device, as a scheduler writes it."""
    if cluster.registry.get(CLAIMS, "default", name) is None:
        await cluster.create(CLAIMS, {"metadata": {"name": name, "finalizers": [FINALIZER]}, "spec": SPEC})
    one = {"request": "gpu", "driver": "d.example.com", "pool": "n", "device": "gpu-0", **result}
    listed = [{"resource": "pods", "name": u["metadata"]["name"], "uid": u["metadata"]["uid"]} for u in users]
    status = {"allocation": {"devices": {"results": [one]}}, "reservedFor": listed}
    written: dict[str, Any] = await cluster.registry.patch(
        CLAIMS, "default", name, {"status": status}, "merge", subresource="status"
    )
    return written


async def test_a_claim_of_a_template_belongs_to_its_pod(cluster):
    await template(cluster, labels={"team": "ml"}, annotations={"note": "x"})
    made = await pod(cluster)
    await cluster.settle()
    (claim,) = claims(cluster)
    meta = claim["metadata"]
    assert meta["generateName"] == "p-mine-" and meta["labels"] == {"team": "ml"}
    assert meta["annotations"] == {"note": "x", "resource.kubernetes.io/pod-claim-name": "mine"}
    (owner,) = meta["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", made["metadata"]["uid"], True)
    stored = cluster.registry.get("pods", "default", "p")
    assert stored["status"]["resourceClaimStatuses"] == [{"name": "mine", "resourceClaimName": meta["name"]}]
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1

    # A claim that a user deletes is made again, as long as the pod may start.
    await cluster.registry.delete(CLAIMS, "default", meta["name"])
    await cluster.settle()
    (again,) = claims(cluster)
    assert again["metadata"]["uid"] != meta["uid"]
    await cluster.registry.delete("pods", "default", "p", grace=0)
    await cluster.settle()
    assert not claims(cluster)


async def test_a_pod_waits_for_its_template(cluster):
    await pod(cluster)
    await cluster.settle()
    assert not claims(cluster)
    (event, *_) = cluster.events("FailedResourceClaimCreation")
    assert event["message"].startswith('PodResourceClaim mine: resource claim template "gpus": ')
    await template(cluster)
    await cluster.settle()
    assert len(claims(cluster)) == 1


@pytest.mark.parametrize(
    ("name", "claim", "base"),
    [("p", "mine", "p-mine-"), ("p" * 60, "c" * 30, "p" * 37 + "-" + "c" * 18), ("p" * 200, "c", "p" * 56 + "-")],
)
def test_long_names_are_cut(name, claim, base):
    assert generated_base(name, claim) == base


async def test_the_last_pod_that_ends_frees_the_claim(cluster):
    await cluster.node("n")
    first, second = [await pod(cluster, name, "shared", nodeName="n") for name in ("a", "b")]
    await allocated(cluster, first, second)
    await cluster.run_pods(first, second)
    await cluster.set_status("pods", first, phase="Succeeded")
    await cluster.settle()
    (claim,) = claims(cluster)
    assert [user["name"] for user in claim["status"]["reservedFor"]] == ["b"] and claim["status"]["allocation"]
    await cluster.registry.delete("pods", "default", "b", grace=0)
    await cluster.settle()
    (claim,) = claims(cluster)
    assert not claim.get("status") and not claim["metadata"].get("finalizers")


async def test_a_claim_that_is_deleted_goes_after_its_last_pod(cluster):
    await cluster.node("n")
    user = await pod(cluster, "a", "shared", nodeName="n")
    await allocated(cluster, user)
    await cluster.registry.delete(CLAIMS, "default", "shared")
    await cluster.settle()
    assert claims(cluster)
    await cluster.registry.delete("pods", "default", "a", grace=0)
    await cluster.settle()
    assert not claims(cluster)


async def test_a_claim_made_for_a_pod_goes_when_the_pod_has_ended(cluster):
    await template(cluster)
    await cluster.node("n")
    user = await pod(cluster, nodeName="n")
    await cluster.settle()
    await allocated(cluster, user, name=claims(cluster)[0]["metadata"]["name"])
    await cluster.run_pods(user)
    await cluster.settle()
    assert claims(cluster)
    await cluster.set_status("pods", user, phase="Failed")
    await cluster.settle()
    assert not claims(cluster) and cluster.registry.get("pods", "default", "p") is not None


async def test_a_pod_that_was_bound_by_hand_becomes_a_user(cluster):
    await cluster.node("n")
    await allocated(cluster)
    user = await pod(cluster, "a", "shared", nodeName="n")
    await cluster.settle()
    (claim,) = claims(cluster)
    assert [one["uid"] for one in claim["status"]["reservedFor"]] == [user["metadata"]["uid"]]


async def test_a_claim_has_no_users_without_devices_and_keeps_its_devices(cluster):
    user = await pod(cluster, "a", "shared")
    claim = await allocated(cluster, user)
    listed = claim["status"]["reservedFor"]
    for status, field in (
        ({"allocation": None, "reservedFor": listed}, "status.reservedFor"),
        ({"allocation": {"devices": {"results": []}}}, "status.allocation"),
    ):
        with pytest.raises(ApiFailure) as refused:
            await cluster.registry.patch(CLAIMS, "default", "shared", {"status": status}, "merge", subresource="status")
        assert [cause["field"] for cause in refused.value.details["causes"]] == [field]


async def taint(cluster: Any, *taints: dict[str, Any]) -> None:
    device = {"name": "gpu-0", "taints": list(taints)}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    body = {"driver": "d.example.com", "pool": pool, "nodeName": "n", "devices": [device]}
    info = (GROUP, "resourceslices")
    if cluster.registry.get(info, "", "s") is None:
        await cluster.create(info, {"metadata": {"name": "s"}, "spec": body})
    else:
        stored = cluster.registry.get(info, "", "s")
        await cluster.registry.update(info, "", "s", {**stored, "spec": body})


def lost(**fields: Any) -> dict[str, Any]:
    return {"key": "lost", "value": "yes", "effect": "NoExecute", **fields}


async def using(cluster: Any, **result: Any) -> dict[str, Any]:
    """A running pod with a device."""
    await cluster.node("n")
    user = await pod(cluster, "a", "shared", nodeName="n")
    await allocated(cluster, user, **result)
    await cluster.run_pods(user)
    return user


def target(cluster: Any) -> dict[str, Any] | None:
    found = cluster.registry.get("pods", "default", "a")
    return next((c for c in found["status"]["conditions"] if c["type"] == "DisruptionTarget"), None)


async def test_a_taint_of_a_device_evicts_its_pods(cluster):
    await taint(cluster, lost(effect="NoSchedule"))
    await using(cluster)
    await cluster.settle()
    assert target(cluster) is None
    await taint(cluster, lost())
    await cluster.settle()
    marked = cluster.registry.get("pods", "default", "a")
    assert "deletionTimestamp" in marked["metadata"]
    assert target(cluster)["reason"] == "DeletionByDeviceTaintManager"
    assert [event["message"] for event in cluster.events("DeviceTaintManagerEviction")] == ["Marking for deletion"]


async def test_a_toleration_of_the_request_delays_the_eviction(cluster):
    toleration = {"key": "lost", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    await using(cluster, tolerations=[toleration])
    await taint(cluster, lost())
    await cluster.settle(50)
    assert target(cluster) is None
    await cluster.settle(20)
    assert target(cluster) is not None


async def test_a_taint_that_goes_in_time_evicts_no_pod(cluster):
    toleration = {"key": "lost", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 60}
    await using(cluster, tolerations=[toleration])
    await taint(cluster, lost())
    await cluster.settle(50)
    await taint(cluster)
    await cluster.settle(100)
    assert target(cluster) is None
    assert [event["message"] for event in cluster.events("DeviceTaintManagerEviction")] == ["Cancelling deletion"]


async def test_a_toleration_without_a_time_lasts(cluster):
    await using(cluster, tolerations=[{"operator": "Exists", "effect": "NoExecute"}])
    await taint(cluster, lost())
    await cluster.settle(1000)
    assert target(cluster) is None
