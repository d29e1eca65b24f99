"""Claims get volumes that are there: which one, in which phases, and what becomes of both when one of them goes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from tinykube.scheduler import Scheduler

CLASSES = ("storage.k8s.io", "storageclasses")
CLAIMS, VOLUMES = "persistentvolumeclaims", "persistentvolumes"


class Storage:
    """Makes claims and volumes, and reads them."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.registry = cluster.registry

    async def storage_class(self, name: str = "slow", mode: str = "Immediate", **fields: Any) -> None:
        provisioner = fields.pop("provisioner", "kubernetes.io/no-provisioner")
        body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, **fields}
        await self.cluster.create(CLASSES, body)

    async def volume(self, name: str, size: str = "1Gi", **fields: Any) -> None:
        labels = fields.pop("labels", {})
        source = {} if "local" in fields else {"hostPath": {"path": f"/mnt/{name}"}}
        modes = fields.pop("modes", ["ReadWriteOnce"])
        spec = {"capacity": {"storage": size}, "accessModes": modes, "storageClassName": "slow", **source, **fields}
        await self.cluster.create(VOLUMES, {"metadata": {"name": name, "labels": labels}, "spec": spec})

    async def claim(self, name: str = "data", size: str = "1Gi", **fields: Any) -> dict[str, Any]:
        modes = fields.pop("modes", ["ReadWriteOnce"])
        resources = {"requests": {"storage": size}}
        spec = {"accessModes": modes, "resources": resources, "storageClassName": "slow", **fields}
        made: dict[str, Any] = await self.cluster.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})
        return made

    async def pod(self, name: str = "p", claim: str = "data", **spec: Any) -> dict[str, Any]:
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
        body = {"containers": [{"name": "c", "image": "i"}], "volumes": [volume], **spec}
        made: dict[str, Any] = await self.cluster.create("pods", {"metadata": {"name": name}, "spec": body})
        return made

    def of_claim(self, name: str = "data") -> tuple[str, str]:
        """Phase and volume."""
        found = self.registry.get(CLAIMS, "default", name)
        return found["status"]["phase"], found["spec"].get("volumeName", "")

    def phase(self, volume: str) -> str:
        found: str = self.registry.get(VOLUMES, "", volume)["status"]["phase"]
        return found

    def words(self, reason: str) -> list[str]:
        return [event["message"] for event in self.cluster.events(reason)]

    async def delete(self, resource: str, name: str, **options: Any) -> None:
        namespace = "" if resource == VOLUMES else "default"
        await self.registry.delete(resource, namespace, name, **options)
        await self.cluster.settle()


def local_on(node: str) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "local": {"path": "/mnt/disk"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    }


@pytest.fixture
def storage(cluster: Any) -> Storage:
    return Storage(cluster)


async def test_a_claim_gets_the_smallest_volume_that_fits(cluster, storage):
    await storage.volume("small", "1Gi")
    await storage.volume("large", "5Gi")
    await storage.volume("middle", "3Gi")
    await storage.volume("shared", "2Gi", modes=["ReadOnlyMany"])
    await storage.volume("other", "2Gi", storageClassName="fast")
    await storage.volume("raw", "2Gi", volumeMode="Block")
    await cluster.settle()  # a volume counts from when it is Available
    await storage.claim(size="2Gi")
    await cluster.settle()
    assert storage.of_claim() == ("Bound", "middle")
    claim = storage.registry.get(CLAIMS, "default", "data")
    assert claim["status"]["capacity"] == {"storage": "3Gi"} and claim["status"]["accessModes"] == ["ReadWriteOnce"]
    assert claim["metadata"]["annotations"] == {
        "pv.kubernetes.io/bind-completed": "yes",
        "pv.kubernetes.io/bound-by-controller": "yes",
    }
    volume = storage.registry.get(VOLUMES, "", "middle")
    assert volume["status"]["phase"] == "Bound" and volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    assert volume["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}
    assert {storage.phase(name) for name in ("small", "large", "shared", "other", "raw")} == {"Available"}


async def test_a_claim_waits_for_a_volume_with_its_labels(cluster, storage):
    await storage.volume("plain")
    await storage.claim(selector={"matchLabels": {"disk": "fast"}}, storageClassName="")
    await cluster.settle()
    assert storage.of_claim() == ("Pending", "")
    assert storage.words("FailedBinding") == [
        "no persistent volumes available for this claim and no storage class is set"
    ]
    await storage.volume("fast", labels={"disk": "fast"}, storageClassName="")
    await cluster.settle()
    assert storage.of_claim() == ("Bound", "fast")


async def test_two_claims_never_share_a_volume(cluster, storage):
    for name in "abc":
        await storage.claim(name)
    await storage.volume("one")
    await storage.volume("two")
    await cluster.settle()
    bound = [storage.of_claim(name) for name in "abc"]
    assert sorted(bound) == [("Bound", "one"), ("Bound", "two"), ("Pending", "")]


async def test_a_reserved_volume_is_for_its_claim_alone(cluster, storage):
    await storage.volume("held", claimRef={"namespace": "default", "name": "data"})
    await storage.claim("first")
    await cluster.settle()
    assert storage.of_claim("first") == ("Pending", "") and storage.phase("held") == "Available"
    await storage.volume("free")
    await cluster.settle()
    assert storage.of_claim("first") == ("Bound", "free")
    await storage.claim("data")
    await cluster.settle()
    assert storage.of_claim() == ("Bound", "held")
    assert not storage.registry.get(VOLUMES, "", "held")["metadata"].get("annotations")


async def test_a_claim_that_names_its_volume(cluster, storage):
    await storage.claim("data", volumeName="late")
    await storage.claim("large", size="9Gi", volumeName="late")
    await cluster.settle()
    assert storage.of_claim() == ("Pending", "late")
    await storage.volume("late", "2Gi")
    await cluster.settle()
    assert storage.of_claim() == ("Bound", "late") and storage.of_claim("large")[0] == "Pending"
    assert (
        "pv.kubernetes.io/bound-by-controller"
        not in (storage.registry.get(CLAIMS, "default", "data")["metadata"]["annotations"])
    )
    assert 'volume "late" already bound to a different claim.' in storage.words("FailedBinding")
    await storage.volume("tiny", "1Gi")
    await storage.claim("more", size="9Gi", volumeName="tiny")
    await cluster.settle()
    assert storage.words("VolumeMismatch")[-1] == ('Cannot bind to requested volume "tiny": requested PV is too small')


@pytest.mark.parametrize(
    ("provisioner", "reason", "words"),
    [
        ("", "ProvisioningFailed", 'storageclass.storage.k8s.io "slow" not found'),
        (
            "kubernetes.io/no-provisioner",
            "ProvisioningFailed",
            "no volume plugin matched name: kubernetes.io/no-provisioner",
        ),
        (
            "disks.example.com",
            "ExternalProvisioning",
            "Waiting for a volume to be created either by the external provisioner 'disks.example.com' or manually by "
            "the system administrator. If volume creation is delayed, please verify that the provisioner is running "
            "and correctly registered.",
        ),
    ],
)
async def test_what_a_claim_without_a_volume_says(cluster, storage, provisioner, reason, words):
    if provisioner:
        await storage.storage_class(provisioner=provisioner)
    await storage.claim()
    await cluster.settle()
    assert storage.words(reason) == [words] and storage.of_claim() == ("Pending", "")
    notes = storage.registry.get(CLAIMS, "default", "data")["metadata"].get("annotations") or {}
    assert notes.get("volume.kubernetes.io/storage-provisioner", "") == (
        provisioner if reason == "ExternalProvisioning" else ""
    )


# -- deletion ----------------------------------------------------------------------------------------------------------


async def test_a_claim_stays_while_a_pod_uses_it(cluster, storage):
    await storage.volume("disk")
    await storage.claim()
    await cluster.node("n")
    pod = await storage.pod(nodeName="n")
    await cluster.run_pods(pod, phase="Succeeded")
    await cluster.settle()
    assert storage.registry.get(CLAIMS, "default", "data")["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    await storage.delete(CLAIMS, "data")
    assert storage.of_claim() == ("Bound", "disk") and storage.phase("disk") == "Bound"
    await storage.delete("pods", "p", grace=0)
    assert storage.registry.get(CLAIMS, "default", "data") is None
    assert storage.phase("disk") == "Released"


async def test_a_released_volume_is_not_given_away_until_its_claim_is_taken_out(cluster, storage):
    await storage.volume("disk")
    await storage.claim()
    await cluster.settle()
    await storage.delete(CLAIMS, "data")
    await storage.claim()
    await cluster.settle()
    assert storage.of_claim() == ("Pending", "") and storage.phase("disk") == "Released"
    await storage.registry.patch(VOLUMES, "", "disk", {"spec": {"claimRef": None}}, "merge")
    await cluster.settle()
    assert storage.of_claim() == ("Bound", "disk")


async def test_a_volume_stays_while_it_is_bound(cluster, storage):
    await storage.volume("disk")
    await storage.volume("free", "1Mi")
    await storage.claim()
    await cluster.settle()
    assert storage.registry.get(VOLUMES, "", "disk")["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
    await storage.delete(VOLUMES, "free")
    assert storage.registry.get(VOLUMES, "", "free") is None
    await storage.delete(VOLUMES, "disk")
    assert storage.phase("disk") == "Bound"
    await storage.delete(CLAIMS, "data")
    assert storage.registry.get(VOLUMES, "", "disk") is None


async def test_a_claim_is_lost_with_its_volume(cluster, storage):
    await storage.volume("disk")
    await storage.claim()
    await cluster.settle()
    await storage.delete(VOLUMES, "disk")
    await storage.registry.patch(VOLUMES, "", "disk", {"metadata": {"finalizers": None}}, "merge")
    await cluster.settle()
    assert storage.of_claim() == ("Lost", "disk")
    assert storage.words("ClaimLost") == ["Bound claim has lost its PersistentVolume. Data on the volume is lost!"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"hostPath": {"path": "/tmp/disk"}}, ""),
        (
            {"hostPath": {"path": "/mnt/disk"}},
            "host_path deleter only supports /tmp/.+ but received provided /mnt/disk",
        ),
        (
            local_on("a"),
            'error getting deleter volume plugin for volume "disk": no deletable volume plugin matched',
        ),
    ],
)
async def test_what_becomes_of_a_volume_with_the_policy_delete(cluster, storage, source, problem):
    await storage.volume("disk", persistentVolumeReclaimPolicy="Delete", **source)
    await storage.claim()
    await cluster.settle()
    await storage.delete(CLAIMS, "data")
    if not problem:
        assert storage.registry.get(VOLUMES, "", "disk") is None
        return
    assert storage.phase("disk") == "Failed" and storage.words("VolumeFailedDelete") == [problem]
    assert storage.registry.get(VOLUMES, "", "disk")["status"]["message"] == problem


# -- with the scheduler ------------------------------------------------------------------------------------------------


@pytest.fixture
async def scheduler(cluster):
    task = asyncio.create_task(Scheduler(cluster.registry).run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_claim_that_waits_is_bound_with_its_first_pod(cluster, storage, scheduler):
    await storage.storage_class(mode="WaitForFirstConsumer")
    for name in "ab":
        await cluster.node(name, labels={"kubernetes.io/hostname": name})
    await storage.volume("of-a", "1Gi", **local_on("a"))
    await storage.volume("of-b", "2Gi", **local_on("b"))
    await storage.claim()
    await cluster.settle()
    assert storage.of_claim() == ("Pending", "")
    assert storage.words("WaitForFirstConsumer") == ["waiting for first consumer to be created before binding"]
    await storage.pod("stuck", nodeSelector={"kubernetes.io/hostname": "c"})
    await cluster.settle()
    assert storage.words("WaitForPodScheduled") == ["waiting for pod stuck to be scheduled"]
    await storage.pod("p", nodeSelector={"kubernetes.io/hostname": "b"})
    await cluster.settle(5)
    assert storage.of_claim() == ("Bound", "of-b")
    assert cluster.registry.get("pods", "default", "p")["spec"]["nodeName"] == "b"
    await storage.pod("second")  # goes where the volume is
    await cluster.settle(5)
    assert cluster.registry.get("pods", "default", "second")["spec"]["nodeName"] == "b"


async def test_each_pod_that_waits_gets_a_volume_of_its_own(cluster, storage, scheduler):
    await storage.storage_class(mode="WaitForFirstConsumer")
    await cluster.node("a", labels={"kubernetes.io/hostname": "a"})
    for index in range(3):
        await storage.volume(f"v{index}", **local_on("a"))
        await storage.claim(f"c{index}")
    for index in range(3):
        await storage.pod(f"p{index}", f"c{index}")
    await cluster.settle(5)
    bound = [storage.of_claim(f"c{index}") for index in range(3)]
    assert sorted(bound) == [("Bound", f"v{index}") for index in range(3)]
    assert all(pod["spec"].get("nodeName") == "a" for pod in cluster.pods())


async def test_a_pod_waits_for_the_volume_that_a_driver_makes(cluster, storage, scheduler):
    await storage.storage_class(mode="WaitForFirstConsumer", provisioner="disks.example.com")
    await cluster.node("a")
    await storage.claim()
    await storage.pod()
    await cluster.settle(30)
    claim = storage.registry.get(CLAIMS, "default", "data")
    assert claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "a"
    assert not storage.registry.get("pods", "default", "p")["spec"].get("nodeName")
    meta = claim["metadata"]
    reference = {name: meta[name] for name in ("namespace", "name", "uid")}
    await storage.volume("made", claimRef=reference)  # what a driver does
    await cluster.settle(5)
    assert storage.of_claim() == ("Bound", "made")
    assert storage.registry.get("pods", "default", "p")["spec"]["nodeName"] == "a"


async def test_a_pod_that_goes_ends_the_wait_for_its_volume(cluster, storage, scheduler):
    await storage.storage_class(mode="WaitForFirstConsumer", provisioner="disks.example.com")
    await cluster.node("a")
    await storage.claim()
    await storage.pod(containers=[{"name": "c", "image": "i", "resources": {"requests": {"cpu": "3"}}}])
    await cluster.settle(30)
    await storage.delete("pods", "p", grace=0)
    other = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "3"}}}
    await cluster.create("pods", {"metadata": {"name": "next"}, "spec": {"containers": [other]}})
    await cluster.settle(30)
    assert storage.registry.get("pods", "default", "next")["spec"]["nodeName"] == "a"


async def test_a_stateful_set_gets_a_volume_for_each_pod(cluster, storage, scheduler):
    await cluster.node("a")
    for index in range(2):
        await storage.volume(f"v{index}")
    template = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "slow",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    spec = {
        "replicas": 2,
        "serviceName": "peers",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "app"}]},
        },
        "volumeClaimTemplates": [template],
    }
    await cluster.create("statefulsets", {"metadata": {"name": "web"}, "spec": spec})
    await cluster.settle(30)
    assert [storage.of_claim(f"data-web-{index}")[0] for index in range(2)] == ["Bound", "Bound"]
    assert [pod["spec"].get("nodeName") for pod in cluster.pods()] == ["a", "a"]
