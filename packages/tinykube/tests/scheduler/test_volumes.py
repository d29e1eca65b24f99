"""Nodes that a pod's volumes allow, the messages for the other nodes, and the choice of volumes for unbound claims."""

from __future__ import annotations

from typing import Any

import pytest

from kubekit.scheduling.check import FilterCheck
from kubekit.scheduling.decide import find, fit_error
from kubekit.scheduling.volumes.binding import Progress, assume, progress, restore
from kubekit.scheduling.volumes.facts import (
    compile_attachment,
    compile_capacity,
    compile_claim,
    compile_class,
    compile_node_limits,
    compile_volume,
)
from kubekit.scheduling.volumes.store import VolumePlan

ZONE = "topology.kubernetes.io/zone"
NAMES_NO_VOLUME = "0/1 nodes are available: {}. not found"


def on_host(*hosts: str) -> dict[str, Any]:
    return on_label("kubernetes.io/hostname", *hosts)


def on_label(key: str, *values: str) -> dict[str, Any]:
    expression = {"key": key, "operator": "In", "values": list(values)}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


class Storage:
    """Puts claims, volumes and classes into the store of a cache."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.store = world.cache.volumes

    def claim(self, name: str, **fields: Any) -> None:
        annotations = fields.pop("annotations", {})
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": fields.pop("rv", "1")}
        meta |= {key: fields.pop(key) for key in ("deletionTimestamp", "ownerReferences") if key in fields}
        status = {"phase": fields.pop("phase", "Pending")}
        size, modes = fields.pop("size", "1Gi"), fields.pop("modes", ["ReadWriteOnce"])
        spec = {"resources": {"requests": {"storage": size}}, "accessModes": modes, **fields}
        if spec.get("volumeName") and not spec.pop("half", False):
            annotations = {**annotations, "pv.kubernetes.io/bind-completed": "yes"}
        meta["annotations"] = annotations
        self.store.set_claim(compile_claim({"metadata": meta, "spec": spec, "status": status}))

    def volume(self, name: str, **fields: Any) -> None:
        meta = {"name": name, "labels": fields.pop("labels", {}), "resourceVersion": fields.pop("rv", "1")}
        status = {"phase": fields.pop("phase", "Available")}
        spec = {"capacity": {"storage": fields.pop("size", "1Gi")}, "accessModes": ["ReadWriteOnce"], **fields}
        self.store.set_volume(compile_volume({"metadata": meta, "spec": spec, "status": status}))

    def storage_class(self, name: str, provisioner: str = "disks.example.com", **fields: Any) -> None:
        mode = fields.pop("mode", "WaitForFirstConsumer")
        read = compile_class(
            {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, **fields}
        )
        self.store.classes[name] = read

    def pod(self, name: str, *claims: str, **fields: Any) -> Any:
        volumes = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": one}} for i, one in enumerate(claims)]
        return self.world.pod(name, volumes=volumes + fields.pop("volumes", []), **fields)

    def text(self, pod: Any) -> str:
        return fit_error(find(pod, self.world.cache))

    def nodes(self, pod: Any) -> list[str]:
        return sorted(node.name for node in find(pod, self.world.cache).feasible)

    def plan(self, pod: Any, node: str) -> VolumePlan:
        check = FilterCheck(pod, self.world.cache).volumes
        assert check is not None
        planned = check.plan(self.world.cache.nodes[node].facts)
        assert isinstance(planned, VolumePlan), planned
        return planned


@pytest.fixture
def storage(world: Any) -> Storage:
    return Storage(world)


# -- claims that no node can help --------------------------------------------------------------------------------------


def test_a_claim_that_is_missing_refuses_the_pod_everywhere(world, storage):
    world.node("a")
    pod = storage.pod("p", "data")
    assert storage.text(pod) == NAMES_NO_VOLUME.format('persistentvolumeclaim "data" not found')
    assert find(pod, world.cache).plugins() == {"VolumeRestrictions"}


def test_an_ephemeral_volume_waits_for_its_claim_and_takes_no_other_pods(world, storage):
    world.node("a")
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    pod = storage.pod("p", volumes=[volume])
    waits = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-scratch"'
    assert storage.text(pod) == NAMES_NO_VOLUME.format(waits)
    storage.claim("p-scratch")
    strange = "PVC default/p-scratch was not created for pod default/p (pod is not owner)"
    assert storage.text(pod) == NAMES_NO_VOLUME.format(strange)
    storage.volume("disk")
    storage.claim("p-scratch", volumeName="disk", ownerReferences=[{"uid": "uid-default-p", "controller": True}])
    assert storage.nodes(pod) == ["a"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "pod has unbound immediate PersistentVolumeClaims"),
        ({"storageClassName": "nosuch"}, "pod has unbound immediate PersistentVolumeClaims"),
        ({"storageClassName": "at-once"}, "pod has unbound immediate PersistentVolumeClaims"),
        (
            {"storageClassName": "late", "volumeName": "x", "half": True},
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        ({"volumeName": "x"}, 'persistentvolume "x" not found'),
        (
            {"volumeName": "x", "phase": "Lost"},
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "x"',
        ),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, 'persistentvolumeclaim "data" is being deleted'),
    ],
)
def test_what_a_claim_waits_for_is_said(world, storage, fields, words):
    world.node("a")
    storage.storage_class("at-once", mode="Immediate")
    storage.storage_class("late")
    storage.claim("data", **fields)
    assert storage.text(storage.pod("p", "data")) == NAMES_NO_VOLUME.format(words)


# -- where volumes are -------------------------------------------------------------------------------------------------


def test_a_pod_goes_where_its_volume_is(world, storage):
    world.node("a")
    world.node("b")
    storage.volume("disk", nodeAffinity=on_host("b"))
    storage.claim("data", volumeName="disk")
    pod = storage.pod("p", "data")
    assert storage.nodes(pod) == ["b"]
    world.cache.remove_node("b")
    assert storage.text(pod) == "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."


def test_zones_of_a_volume_are_labels(world, storage):
    world.node("a", labels={ZONE: "z1"})
    world.node("b", labels={ZONE: "z2"})
    world.node("old", labels={"failure-domain.beta.kubernetes.io/zone": "z1"})
    world.node("without")
    storage.volume("disk", labels={"failure-domain.beta.kubernetes.io/zone": "z1__z3"})
    storage.claim("data", volumeName="disk")
    pod = storage.pod("p", "data")
    assert storage.nodes(pod) == ["a", "old", "without"]
    found = find(pod, world.cache)
    assert found.failures["b"].reasons == ("node(s) had no available volume zone",)


def test_a_claim_for_a_single_pod_takes_no_second(world, storage):
    world.node("a")
    storage.volume("disk")
    storage.claim("data", volumeName="disk", modes=["ReadWriteOncePod"])
    world.cache.place(storage.pod("first", "data", nodeName="a"))
    text = storage.text(storage.pod("second", "data"))
    assert text == (
        "0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode "
        "already in-use by another pod."
    )
    world.cache.remove("default/first")
    assert storage.nodes(storage.pod("second", "data")) == ["a"]


@pytest.mark.parametrize(
    ("one", "other", "conflict"),
    [
        ({"gcePersistentDisk": {"pdName": "x"}}, {"gcePersistentDisk": {"pdName": "x", "readOnly": True}}, True),
        (*[{"gcePersistentDisk": {"pdName": "x", "readOnly": True}}] * 2, False),
        (*[{"awsElasticBlockStore": {"volumeID": "x", "readOnly": True}}] * 2, True),
        ({"iscsi": {"iqn": "x"}}, {"iscsi": {"iqn": "y"}}, False),
        (*[{"iscsi": {"iqn": "x"}}] * 2, True),
        (
            {"rbd": {"monitors": ["m", "n"], "image": "i"}},
            {"rbd": {"monitors": ["n"], "pool": "rbd", "image": "i"}},
            True,
        ),
        ({"rbd": {"monitors": ["m"], "image": "i"}}, {"rbd": {"monitors": ["n"], "image": "i"}}, False),
    ],
)
def test_disks_that_two_pods_of_a_node_cannot_have(world, storage, one, other, conflict):
    world.node("a")
    world.node("b")
    world.cache.place(storage.pod("first", volumes=[{"name": "v", **one}], nodeName="a"))
    pod = storage.pod("second", volumes=[{"name": "v", **other}])
    assert storage.nodes(pod) == (["b"] if conflict else ["a", "b"])


def test_a_node_attaches_as_many_volumes_as_its_driver_states(world, storage):
    for name, most in (("a", 2), ("b", 1)):
        world.node(name)
        driver = {"name": "disks.example.com", "allocatable": {"count": most}}
        storage.store.node_limits[name] = compile_node_limits({"spec": {"drivers": [driver, {"name": "other"}]}})
    world.node("any")
    for name in ("one", "two"):
        storage.volume(name, csi={"driver": "disks.example.com", "volumeHandle": name})
        storage.claim(name, volumeName=name)
        world.cache.place(storage.pod(f"user-{name}", name, nodeName="a" if name == "one" else "b"))
    storage.volume("three", csi={"driver": "disks.example.com", "volumeHandle": "three"})
    storage.claim("three", volumeName="three")
    assert storage.nodes(storage.pod("p", "three")) == ["a", "any"]
    assert storage.nodes(storage.pod("shares", "two")) == ["a", "any", "b"]
    spec = {"attacher": "disks.example.com", "nodeName": "a", "source": {"persistentVolumeName": "two"}}
    storage.store.set_attachment(compile_attachment({"metadata": {"name": "left"}, "spec": spec}))
    found = find(storage.pod("p", "three"), world.cache)
    assert found.failures["a"].reasons == ("node(s) exceed max volume count",) and found.failures["a"].resolvable
    storage.store.remove_attachment("left")
    assert storage.nodes(storage.pod("p", "three")) == ["a", "any"]


# -- claims that are bound with their first pod ------------------------------------------------------------------------


def test_the_smallest_volume_that_matches_is_chosen_for_each_claim(world, storage):
    world.node("a")
    world.node("b")
    storage.storage_class("local", "kubernetes.io/no-provisioner")
    storage.volume("small", size="1Gi", storageClassName="local", nodeAffinity=on_host("a"))
    storage.volume("middle", size="5Gi", storageClassName="local", nodeAffinity=on_host("a"))
    storage.volume("large", size="9Gi", storageClassName="local", nodeAffinity=on_host("b"))
    storage.volume(
        "taken", size="1Gi", storageClassName="local", phase="Bound", claimRef={"name": "x", "namespace": "y"}
    )
    storage.claim("first", size="2Gi", storageClassName="local")
    storage.claim("second", size="1Gi", storageClassName="local")
    pod = storage.pod("p", "first", "second")
    assert storage.nodes(pod) == ["a"]
    assert find(pod, world.cache).failures["b"].reasons == ("node(s) didn't find available persistent volumes to bind",)
    plan = storage.plan(pod, "a")
    assert [(volume.name, claim.name) for volume, claim in plan.static] == [("small", "second"), ("middle", "first")]
    assert {volume.claim.uid for volume, _ in plan.static} == {"uid-first", "uid-second"}


@pytest.mark.parametrize(
    ("claim", "volume", "matches"),
    [
        ({"size": "1100M"}, {}, False),
        ({"modes": ["ReadWriteMany"]}, {}, False),
        ({"volumeMode": "Block"}, {}, False),
        ({"volumeMode": "Block"}, {"volumeMode": "Block"}, True),
        ({"selector": {"matchLabels": {"disk": "fast"}}}, {}, False),
        ({"selector": {"matchLabels": {"disk": "fast"}}}, {"labels": {"disk": "fast"}}, True),
        ({"volumeAttributesClassName": "gold"}, {}, False),
        ({}, {"phase": "Released"}, False),
        ({}, {"claimRef": {"namespace": "default", "name": "data"}, "phase": "Bound"}, True),
        ({}, {"claimRef": {"namespace": "default", "name": "data", "uid": "an-older-one"}}, False),
    ],
)
def test_which_volumes_match_a_claim(world, storage, claim, volume, matches):
    world.node("a")
    storage.storage_class("local", "kubernetes.io/no-provisioner")
    storage.volume("disk", storageClassName="local", **volume)
    storage.claim("data", storageClassName="local", **claim)
    assert storage.nodes(storage.pod("p", "data")) == (["a"] if matches else [])


def test_a_volume_is_made_where_the_class_allows_it_and_storage_is_left(world, storage):
    for name, zone in (("a", "z1"), ("b", "z2"), ("c", "z3")):
        world.node(name, labels={ZONE: zone})
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z1", "z2"]}]}]
    storage.storage_class("made", allowedTopologies=allowed)
    storage.claim("data", size="5Gi", storageClassName="made")
    pod = storage.pod("p", "data")
    assert storage.nodes(pod) == ["a", "b"]
    storage.store.tracked_drivers.add("disks.example.com")
    assert storage.text(pod).count("node(s) did not have enough free storage") == 1
    for name, zone, most in (("1", "z1", "4Gi"), ("2", "z2", "6Gi")):
        capacity = {"metadata": {"name": name}, "storageClassName": "made", "capacity": most}
        read = compile_capacity({**capacity, "nodeTopology": {"matchLabels": {ZONE: zone}}})
        storage.store.capacities[read.key] = read
    assert storage.nodes(pod) == ["b"]
    assert [claim.selected_node for claim in storage.plan(pod, "b").provisions] == ["b"]
    storage.claim("data", size="5Gi", storageClassName="made", annotations={"volume.kubernetes.io/selected-node": "a"})
    assert storage.nodes(pod) == []


def test_an_assumed_volume_is_taken_until_it_is_restored_or_another_version_arrives(world, storage):
    world.node("a")
    storage.storage_class("local", "kubernetes.io/no-provisioner")
    storage.volume("disk", storageClassName="local")
    storage.claim("data", storageClassName="local")
    storage.claim("more", storageClassName="local")
    first, second = storage.pod("first", "data"), storage.pod("second", "more")
    plan = storage.plan(first, "a")
    assume(plan, storage.store)
    assert storage.nodes(first) == ["a"] and storage.nodes(second) == []
    assert restore(plan, storage.store) and not restore(plan, storage.store)
    assert storage.nodes(second) == ["a"]
    assume(plan, storage.store)
    storage.volume("disk", rv="2", storageClassName="local")
    assert storage.nodes(second) == ["a"] and not restore(plan, storage.store)


def test_binding_is_complete_once_the_controller_says_so(world, storage):
    world.node("a")
    storage.storage_class("local", "kubernetes.io/no-provisioner")
    storage.volume("disk", storageClassName="local")
    storage.claim("data", storageClassName="local")
    plan = storage.plan(storage.pod("p", "data"), "a")
    node = world.cache.nodes["a"].facts
    reference = {"namespace": "default", "name": "data", "uid": "uid-data"}
    assert progress(plan, None, storage.store) == 'failed to get node "a": node "a" not found'
    assert progress(plan, node, storage.store) == 'ClaimRef got reset for pv "disk"'
    storage.volume("disk", rv="2", storageClassName="local", claimRef=reference)
    assert progress(plan, node, storage.store) is Progress.WAITING
    storage.claim("data", rv="3", storageClassName="local", volumeName="disk")
    assert progress(plan, node, storage.store) is Progress.COMPLETE
    storage.store.remove_claim("default/data")
    assert "not found" in str(progress(plan, node, storage.store))


def test_a_driver_that_cannot_make_the_volume_takes_its_node_back(world, storage):
    world.node("a")
    storage.storage_class("made")
    storage.claim("data", storageClassName="made")
    plan = storage.plan(storage.pod("p", "data"), "a")
    node = world.cache.nodes["a"].facts
    assert progress(plan, node, storage.store) == 'provisioning failed for PVC "data"'
    selected = {"volume.kubernetes.io/selected-node": "a"}
    storage.claim("data", rv="2", storageClassName="made", annotations=selected)
    assert progress(plan, node, storage.store) is Progress.WAITING
    storage.claim("data", rv="3", storageClassName="made", annotations=selected, volumeName="new")
    assert progress(plan, node, storage.store) is Progress.WAITING
    storage.volume("new", nodeAffinity=on_host("a"))
    assert progress(plan, node, storage.store) is Progress.COMPLETE
    storage.volume("new", nodeAffinity=on_host("b"))
    assert "node affinity doesn't match" in str(progress(plan, node, storage.store))
