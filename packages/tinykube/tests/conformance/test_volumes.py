"""Claims and volumes: phases, words of events, default classes, growth, ephemeral volumes, and what is not recycled."""

from __future__ import annotations

import pytest

SIZE = {"requests": {"storage": "1Gi"}}
DEFAULT = "storageclass.kubernetes.io/is-default-class"
NOBODY = "example.com/nobody"


def storage_class(here, base, *, default=False, **fields):
    name = here.name(base)
    notes = {DEFAULT: "true"} if default else {}
    body = {"metadata": {"name": name, "annotations": notes}, "provisioner": NOBODY, **fields}
    here.made("/apis/storage.k8s.io/v1/storageclasses", body)
    return name


def volume(here, base, **fields):
    name = here.name(base)
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/mnt/disk"}}
    spec = {key: value for key, value in {**spec, **fields}.items() if value is not None}
    here.made("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
    here.until(f"/api/v1/persistentvolumes/{name}", lambda found: found["status"]["phase"] in ("Available", "Bound"))
    return name


def claim(here, name="data", **fields):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": SIZE, **fields}
    here.made(here.core("persistentvolumeclaims"), {"metadata": {"name": name}, "spec": spec})
    return here.core(f"persistentvolumeclaims/{name}")


def bound(here, path):
    return here.until(path, lambda found: (found.get("status") or {}).get("phase") == "Bound")


def see_events(here, about, count=1, kind="PersistentVolumeClaim", space=None):
    """The events of an object, each once."""
    path = here.core("events") if space is None else f"/api/v1/namespaces/{space}/events"
    selector = f"involvedObject.kind={kind},involvedObject.name={about}"

    def words(items):
        return sorted({(e["reason"], e["type"], e["message"], e["source"]["component"]) for e in items})

    items = here.until_list(path, lambda items: len(words(items)) >= count, fieldSelector=selector)
    here.see("events", [list(one) for one in words(items)])


@pytest.mark.parametrize("named", ["none", "missing", "outside", "inside", "waits"])
def test_why_a_claim_waits(here, named):
    waits = {"volumeBindingMode": "WaitForFirstConsumer"}
    names = {
        "none": lambda: "",
        "missing": lambda: here.name("nosuch"),
        "outside": lambda: storage_class(here, "slow"),
        "inside": lambda: storage_class(here, "slow", provisioner="kubernetes.io/no-provisioner"),
        "waits": lambda: storage_class(here, "slow", **waits),
    }
    claim(here, storageClassName=names[named]())
    see_events(here, "data")


def test_a_claim_that_names_a_volume_of_another_size(here):
    name = volume(here, "small", storageClassName="")
    claim(here, storageClassName="", volumeName=name, resources={"requests": {"storage": "5Gi"}})
    see_events(here, "data")


def test_a_claim_that_names_a_volume_of_another_claim(here):
    name = volume(here, "taken", storageClassName="")
    bound(here, claim(here, "first", storageClassName="", volumeName=name))
    claim(here, storageClassName="", volumeName=name)
    see_events(here, "data")


def test_a_claim_that_loses_its_volume(here):
    name = volume(here, "disk", storageClassName="")
    path = claim(here, storageClassName="", volumeName=name)
    bound(here, path)
    place = f"/api/v1/persistentvolumes/{name}"
    assert here.delete(place).status == 200
    assert here.patch(place, {"metadata": {"finalizers": None}}).status == 200
    found = here.until(path, lambda found: found["status"]["phase"] == "Lost")
    here.see("status", found["status"])
    see_events(here, "data")


@pytest.mark.parametrize("policy", ["Delete", "Recycle", "Retain"])
def test_a_volume_whose_claim_is_gone(here, policy):
    source = {"hostPath": None, "csi": {"driver": "example.com.driver", "volumeHandle": "h"}}
    if policy == "Delete":
        source = {"hostPath": {"path": "/mnt/not-below-tmp"}}
    name = volume(here, "disk", storageClassName="", persistentVolumeReclaimPolicy=policy, **source)
    path = claim(here, storageClassName="", volumeName=name)
    bound(here, path)
    assert here.delete(path).status == 200
    wanted = "Released" if policy == "Retain" else "Failed"
    found = here.until(f"/api/v1/persistentvolumes/{name}", lambda found: found["status"]["phase"] == wanted)
    here.see("status", {key: found["status"].get(key) for key in ("phase", "message")})
    if policy != "Retain":
        see_events(here, name, kind="PersistentVolume", space="default")


@pytest.mark.alone
def test_the_default_class(here):
    early = claim(here, "early")
    see_events(here, "early")
    name = storage_class(here, "usual", default=True)
    found = here.until(early, lambda found: found["spec"].get("storageClassName"))
    assert found["spec"]["storageClassName"] == name
    for one, fields in (("late", {}), ("without", {"storageClassName": ""})):
        here.see(one, here.get(claim(here, one, **fields)).body["spec"])


@pytest.mark.parametrize("grows", [True, False])
def test_the_growth_of_a_claim(here, grows):
    name = storage_class(here, "slow", allowVolumeExpansion=grows)
    path = claim(here, storageClassName=name)
    larger = {"spec": {"resources": {"requests": {"storage": "3Gi"}}}}
    here.see("before it is bound", here.patch(path, larger))
    volume(here, "disk", storageClassName=name)
    bound(here, path)
    here.see("larger", here.patch(path, larger))
    if grows:
        here.until_list(here.core("events"), lambda items: items, fieldSelector="reason=ExternalExpanding")
        here.see("back", here.patch(path, {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}))
        here.see("to its capacity", here.patch(path, {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}))
    here.see("other modes", here.patch(path, {"spec": {"accessModes": ["ReadOnlyMany"]}}))


@pytest.mark.parametrize("taken", [False, True])
def test_an_ephemeral_volume(here, taken):
    here.node("a")
    if taken:
        claim(here, "p-v", storageClassName="")
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": SIZE, "storageClassName": ""}
    template = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": wanted}
    volumes = [{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]
    here.made(here.core("pods"), here.pod("p", volumes=volumes))
    if taken:
        selector = "reason=FailedBinding,involvedObject.kind=Pod"
        items = here.until_list(here.core("events"), lambda items: items, fieldSelector=selector)
        words = {(e["type"], e["message"], e["source"]["component"]) for e in items}
        here.see("events", [list(one) for one in sorted(words)])
    else:
        path = here.core("persistentvolumeclaims/p-v")
        found = here.until(path, lambda found: found)
        here.see("owners", found["metadata"]["ownerReferences"])
        here.see("labels", found["metadata"]["labels"])
        here.see("spec", found["spec"])


def test_a_class_of_attributes_stays_while_a_claim_names_it(here):
    path = f"/apis/storage.k8s.io/v1/volumeattributesclasses/{here.name('gold')}"
    body = {"metadata": {"name": here.name("gold")}, "driverName": NOBODY, "parameters": {"iops": "100"}}
    here.see("made", here.made("/apis/storage.k8s.io/v1/volumeattributesclasses", body))
    path_of_claim = claim(here, storageClassName="", volumeAttributesClassName=here.name("gold"))
    here.call("DELETE", path)
    used = here.until(path, lambda found: found["metadata"].get("deletionTimestamp"))
    here.see("finalizers", used["metadata"]["finalizers"])
    here.call("DELETE", path_of_claim)
    here.see("gone", here.until(path, lambda found: not found))
