"""Random claims and volumes for the pods of a random cluster: all of what filters of volumes look at.

Sizes of the volumes of a class differ, so that the choice among them is determined. Names have the seed in them, so
that the objects of one cluster mean nothing to the next.
"""

from __future__ import annotations

import random
from typing import Any

from kubekit.api.kinds import built_in
from kubekit.api.meta import Resource
from tests.support.random_clusters import HOST, ZONE, ZONES, RandomCluster

CLAIM = built_in("v1", "PersistentVolumeClaim")
VOLUME = built_in("v1", "PersistentVolume")
CLASS = built_in("storage.k8s.io/v1", "StorageClass")
NODE_DRIVERS = built_in("storage.k8s.io/v1", "CSINode")
DRIVER = built_in("storage.k8s.io/v1", "CSIDriver")
CAPACITY = built_in("storage.k8s.io/v1", "CSIStorageCapacity")
ATTACHMENT = built_in("storage.k8s.io/v1", "VolumeAttachment")
Stored = tuple[Resource, dict[str, Any]]
_BOUND = "pv.kubernetes.io/bind-completed"


class RandomVolumes:
    """Gives pods of a cluster volumes; `objects` are what has to be there before the pods, in this order."""

    def __init__(self, seed: int, cluster: RandomCluster) -> None:
        self._dice = random.Random(f"volumes {seed}")
        self._seed = seed
        self._cluster = cluster
        self._nodes = [node["metadata"]["name"] for node in cluster.nodes]
        self._driver = f"disks-{seed}.example.com"
        self._volumes = self._claims = 0
        self.objects: list[Stored] = []
        self._make_classes()
        self._make_drivers()
        for _ in range(self._dice.randint(0, 6)):
            self._free_volume()
        pods = [*cluster.running, *cluster.waiting]
        shared: dict[str, list[str]] = {}
        for pod in pods:
            if self._dice.random() < 0.7:
                self._give(pod, shared.setdefault(pod["metadata"]["namespace"], []))

    def _name(self, word: str) -> str:
        return f"{word}-{self._seed}"

    def _make_classes(self) -> None:
        late = "WaitForFirstConsumer"
        for word, provisioner, mode in (
            ("local", "kubernetes.io/no-provisioner", late),
            ("made", self._driver, late),
            ("at-once", self._driver, "Immediate"),
        ):
            body: dict[str, Any] = {
                "metadata": {"name": self._name(word)},
                "provisioner": provisioner,
                "volumeBindingMode": mode,
            }
            if word == "made" and self._dice.random() < 0.5:
                values = self._dice.sample(ZONES, 2)
                body["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": values}]}]
            self.objects.append((CLASS, body))

    def _make_drivers(self) -> None:
        dice = self._dice
        tracks = dice.random() < 0.4
        self.objects.append((DRIVER, {"metadata": {"name": self._driver}, "spec": {"storageCapacity": tracks}}))
        for zone in ZONES:
            if dice.random() < 0.6:
                capacity = {
                    "metadata": {"name": f"{self._name('left')}-{zone}", "namespace": "red"},
                    "storageClassName": self._name("made"),
                    "nodeTopology": {"matchLabels": {ZONE: zone}},
                    "capacity": dice.choice(("1Gi", "3Gi", "100Gi")),
                }
                self.objects.append((CAPACITY, capacity))
        for node in self._nodes:
            if dice.random() < 0.7:
                driver: dict[str, Any] = {"name": self._driver, "nodeID": node, "topologyKeys": []}
                if dice.random() < 0.7:
                    driver["allocatable"] = {"count": dice.randint(1, 3)}
                self.objects.append((NODE_DRIVERS, {"metadata": {"name": node}, "spec": {"drivers": [driver]}}))

    def _volume(self, word: str, size: int, **fields: Any) -> str:
        """Add a volume somewhere; returns its name."""
        dice = self._dice
        self._volumes += 1
        name = f"{self._name('volume')}-{self._volumes}"
        labels = {}
        if dice.random() < 0.3:
            labels = {ZONE: dice.choice(("a", "b", "a__c"))}
        spec: dict[str, Any] = {
            "capacity": {"storage": f"{size}Mi"},
            "accessModes": dice.choice((["ReadWriteOnce"], ["ReadWriteOnce", "ReadOnlyMany"])),
            "storageClassName": self._name(word),
            **fields,
        }
        if dice.random() < 0.7:
            spec["csi"] = {"driver": self._driver, "volumeHandle": name}
        else:
            spec["nfs"] = {"server": "files.example.com", "path": "/"}
        if dice.random() < 0.6:
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": self._terms()}}
        status = {"phase": "Bound" if "claimRef" in spec else dice.choice(("Available", "Available", "Released"))}
        self.objects.append((VOLUME, {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}))
        if "csi" in spec and dice.random() < 0.15:
            attached = {"attacher": self._driver, "nodeName": dice.choice(self._nodes)}
            spec = {**attached, "source": {"persistentVolumeName": name}}
            self.objects.append((ATTACHMENT, {"metadata": {"name": name}, "spec": spec}))
        return name

    def _terms(self) -> list[dict[str, Any]]:
        dice = self._dice
        hosts = dice.sample(self._nodes, dice.randint(1, len(self._nodes)))
        expressions = (
            {"key": HOST, "operator": "In", "values": hosts},
            {"key": ZONE, "operator": "In", "values": dice.sample(ZONES, dice.randint(1, 2))},
            {"key": "disk", "operator": "NotIn", "values": ["ssd"]},
        )
        chosen = dice.sample(expressions, dice.randint(1, 2))
        if dice.random() < 0.3:
            return [{"matchExpressions": [one]} for one in chosen]
        return [{"matchExpressions": chosen}]

    def _free_volume(self) -> None:
        fields: dict[str, Any] = {}
        if self._dice.random() < 0.15:
            fields["volumeMode"] = "Block"
        self._volume(
            self._dice.choice(("local", "local", "made")), 500 + 700 * self._volumes + self._seed % 7, **fields
        )

    # -- pods --------------------------------------------------------------------------------------------------------

    def _give(self, pod: dict[str, Any], shared: list[str]) -> None:
        """Give a pod volumes; `shared` are claims of its namespace."""
        dice, namespace = self._dice, pod["metadata"]["namespace"]
        volumes = pod["spec"].setdefault("volumes", [])
        for number in range(dice.choice((1, 1, 1, 2, 3))):
            kind = dice.random()
            volume: dict[str, Any] = {"name": f"v{number}"}
            if kind < 0.1:
                volume |= self._disk()
            elif kind < 0.2:
                volume["emptyDir"] = {}
            elif kind < 0.24:
                template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
                volume["ephemeral"] = {"volumeClaimTemplate": template}
                # NB: such a claim of a running pod makes kube-scheduler's filter fail, not refuse.
                if dice.random() < 0.5 and "nodeName" not in pod["spec"]:  # a claim that was not made for the pod
                    metadata = {"name": f"{pod['metadata']['name']}-v{number}", "namespace": namespace}
                    self.objects.append((CLAIM, {"metadata": metadata, **template}))
            elif kind < 0.34 and shared:
                volume["persistentVolumeClaim"] = {"claimName": dice.choice(shared)}
            else:
                claim = self._claim(namespace)
                shared.append(claim)
                volume["persistentVolumeClaim"] = {"claimName": claim}
            named = volume.get("persistentVolumeClaim")
            if named is None or all(one.get("persistentVolumeClaim") != named for one in volumes):
                volumes.append(volume)

    def _disk(self) -> dict[str, Any]:
        dice = self._dice
        read_only = dice.random() < 0.5
        return dice.choice(
            (
                {"gcePersistentDisk": {"pdName": dice.choice("ab"), "readOnly": read_only}},
                {"awsElasticBlockStore": {"volumeID": dice.choice("ab"), "readOnly": read_only}},
                {
                    "iscsi": {
                        "targetPortal": "10.0.0.1",
                        "iqn": "iqn.2026-01.com.example:disk",
                        "lun": 0,
                        "readOnly": read_only,
                    }
                },
                {"rbd": {"monitors": dice.sample("mno", 2), "image": dice.choice("ab"), "readOnly": read_only}},
            )
        )

    def _claim(self, namespace: str) -> str:
        """Add a claim in some state; returns its name."""
        dice = self._dice
        self._claims += 1
        name = f"{self._name('claim')}-{self._claims}"
        kind = dice.random()
        if kind < 0.04:
            return name  # it does not exist
        metadata: dict[str, Any] = {"name": name, "namespace": namespace}
        status: dict[str, Any] = {}
        spec: dict[str, Any] = {
            "accessModes": dice.choice((["ReadWriteOnce"], ["ReadWriteOnce"], ["ReadWriteOncePod"], ["ReadOnlyMany"])),
            "resources": {"requests": {"storage": dice.choice(("100Mi", "1000Mi", "2Gi"))}},
        }
        if kind < 0.5:
            reference = {"kind": "PersistentVolumeClaim", "name": name, "namespace": namespace, "uid": "u"}
            word = dice.choice(("local", "at-once"))
            bound = self._volume(word, 3000 + self._volumes, claimRef=reference)
            spec |= {"storageClassName": self._name(word), "volumeName": bound}
            metadata["annotations"] = {_BOUND: "yes"}
            status["phase"] = "Bound"
        elif kind < 0.56:
            spec |= {"storageClassName": self._name("local"), "volumeName": self._name("gone")}
            metadata["annotations"] = {_BOUND: "yes"} if dice.random() < 0.7 else {}
            status["phase"] = dice.choice(("Lost", "Bound"))
        elif kind < 0.61:
            spec["storageClassName"] = dice.choice((self._name("at-once"), self._name("nosuch"), ""))
        else:
            spec["storageClassName"] = self._name(dice.choice(("local", "local", "made")))
            if spec["storageClassName"] == self._name("made") and dice.random() < 0.2:
                metadata["annotations"] = {"volume.kubernetes.io/selected-node": dice.choice(self._nodes)}
        self.objects.append((CLAIM, {"metadata": metadata, "spec": spec, "status": status}))
        return name
