"""The controllers of StatefulSets and ReplicationControllers."""

from __future__ import annotations

import pytest

CLAIM = {
    "metadata": {"name": "data", "labels": {"of": "claims"}},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def template(here, image="busybox"):
    spec = {"containers": [{"name": "c", "image": image}], "nodeSelector": {"run": here.suffix}}
    return {"metadata": {"labels": {"a": "b"}}, "spec": spec}


def stateful_set(here, **spec):
    chosen = {"selector": {"matchLabels": {"a": "b"}}, "serviceName": "peers", "template": template(here), **spec}
    return {"metadata": {"name": "s", "annotations": {"note": "x"}}, "spec": chosen}


def settled(count, updated=None):
    """All pods are ready, of the newest revision, and the status says so."""

    def check(found):
        status = found.get("status") or {}
        return (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and status.get("replicas") == status.get("availableReplicas") == count
            and status.get("updatedReplicas", 0) == (count if updated is None else updated)
        )

    return check


def pods(here):
    found = here.get(here.core("pods"), labelSelector="a=b")["items"]
    return {pod["metadata"]["name"]: pod for pod in found}


def events(here, reason):
    found = here.until_list(
        here.core("events"),
        lambda items: items,
        fieldSelector=f"reason={reason},involvedObject.kind=StatefulSet",
    )
    first = min(found, key=lambda event: event["message"])
    return {name: first.get(name) for name in ("message", "type", "source", "reportingComponent")}


def test_a_stateful_set(here):
    here.node("a")
    path = here.apps("statefulsets/s")
    here.made(here.apps("statefulsets"), stateful_set(here, replicas=2))
    found = here.until(path, settled(2))
    here.normal.names[found["status"]["updateRevision"].rpartition("-")[2]] = "FIRST"
    here.see("status", found["status"])
    pod = pods(here)["s-1"]
    here.see("prefix", pod["metadata"].pop("generateName"))
    here.see("pod", pod["metadata"])
    here.see("names of the pod", {name: pod["spec"].get(name) for name in ("hostname", "subdomain")})
    (revision,) = here.get(here.apps("controllerrevisions"))["items"]
    here.see("revision", {"number": revision["revision"], "of": revision["metadata"]})
    here.see("created", events(here, "SuccessfulCreate"))
    here.patch(
        path, {"spec": {"template": template(here, "two"), "updateStrategy": {"rollingUpdate": {"partition": 1}}}}
    )
    found = here.until(path, settled(2, updated=1))
    here.normal.names[found["status"]["updateRevision"].rpartition("-")[2]] = "SECOND"
    here.see("above the partition", found["status"])
    here.see("images", {name: one["spec"]["containers"][0]["image"] for name, one in pods(here).items()})
    here.patch(path, {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})

    def updated(found):
        status = found["status"]
        return settled(2)(found) and status.get("currentRevision") == status["updateRevision"]

    found = here.until(path, updated)
    here.see("updated", found["status"])
    numbers = sorted(one["revision"] for one in here.get(here.apps("controllerrevisions"))["items"])
    here.see("revisions", numbers)
    here.patch(path, {"spec": {"replicas": 1}})
    here.until(path, settled(1))
    here.see("the first stays", sorted(pods(here)))
    here.see("deleted", events(here, "SuccessfulDelete"))
    here.see("scale", here.get(f"{path}/scale")["status"])


def test_a_parallel_stateful_set(here):
    here.node("a")
    path = here.apps("statefulsets/s")
    spec = {"replicas": 3, "podManagementPolicy": "Parallel", "ordinals": {"start": 4}}
    here.made(here.apps("statefulsets"), stateful_set(here, **spec, updateStrategy={"type": "OnDelete"}))
    found = here.until(path, settled(3))
    here.normal.names[found["status"]["updateRevision"].rpartition("-")[2]] = "FIRST"
    here.see("pods", sorted(pods(here)))
    here.patch(path, {"spec": {"template": template(here, "two")}})
    here.until(path, settled(3, updated=0))
    here.delete(here.core("pods/s-5"))
    found = here.until(path, settled(3, updated=1))
    here.normal.names[found["status"]["updateRevision"].rpartition("-")[2]] = "SECOND"
    here.see("one was deleted", found["status"])
    here.see("images", {name: one["spec"]["containers"][0]["image"] for name, one in pods(here).items()})


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_claims_of_a_stateful_set(here, policy):
    """No volume is there for them, so the pods wait."""
    here.node("a")
    retention = {"whenDeleted": policy, "whenScaled": policy}
    spec = {"replicas": 2, "podManagementPolicy": "Parallel", "persistentVolumeClaimRetentionPolicy": retention}
    here.made(here.apps("statefulsets"), stateful_set(here, **spec, volumeClaimTemplates=[CLAIM]))
    here.until_list(here.core("pods"), lambda items: len(items) == 2)

    def owned(items):
        owners = [bool(claim["metadata"].get("ownerReferences")) for claim in items]
        return owners == [policy == "Delete"] * 2

    claims = here.until_list(here.core("persistentvolumeclaims"), owned)
    found = {claim["metadata"]["name"]: claim["metadata"] for claim in claims}
    here.see("claims", {name: {k: m.get(k) for k in ("labels", "ownerReferences")} for name, m in found.items()})
    here.see("volumes", [v for v in pods(here)["s-1"]["spec"]["volumes"] if v["name"] == "data"])
    here.see("event", events(here, "SuccessfulCreate"))
    here.patch(here.apps("statefulsets/s"), {"spec": {"replicas": 1}})
    here.until(here.core("pods/s-1"), lambda found: not found)
    left = 2 if policy == "Retain" else 1
    here.until_list(
        here.core("persistentvolumeclaims"),
        lambda items: len([c for c in items if "deletionTimestamp" not in c["metadata"]]) == left,
    )


def test_a_replication_controller(here):
    here.node("a")
    path = here.core("replicationcontrollers/r")
    made = here.made(
        here.core("replicationcontrollers"),
        {"metadata": {"name": "r"}, "spec": {"replicas": 2, "template": template(here)}},
    )
    here.see("defaults", {"selector": made["spec"]["selector"], "labels": made["metadata"]["labels"]})
    found = here.until(path, lambda found: (found.get("status") or {}).get("availableReplicas") == 2)
    here.see("status", found["status"])
    first = next(iter(pods(here).values()))
    here.see("pod", first["metadata"])
    (event, *_) = here.until_list(
        here.core("events"),
        lambda items: items,
        fieldSelector="reason=SuccessfulCreate,involvedObject.kind=ReplicationController",
    )
    here.see("event", {name: event.get(name) for name in ("type", "source", "reportingComponent")})
    here.see("scale", here.get(f"{path}/scale")["status"])
    here.patch(here.core(f"pods/{first['metadata']['name']}"), {"metadata": {"labels": {"a": "other"}}})
    here.until_list(here.core("pods"), lambda items: len(items) == 2, labelSelector="a=b")
    found = here.until(
        here.core(f"pods/{first['metadata']['name']}"), lambda found: not found["metadata"].get("ownerReferences")
    )
    here.see("released", found["metadata"].get("ownerReferences"))
    here.delete(path, propagationPolicy="Orphan")
    here.until(path, lambda found: not found)
    here.see("orphans", [one["metadata"].get("ownerReferences") for one in pods(here).values()])
