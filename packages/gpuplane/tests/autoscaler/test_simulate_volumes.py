"""`gpuplane simulate nodes` buys where the volumes of the files are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.cli.main import main
from packages.gpuplane.tests.autoscaler.volume_objects import EBS_ZONE, ZONE, term
from packages.gpuplane.tests.autoscaler.worlds import pod

A, B = "us-east-1a", "us-east-1b"
POOL = {
    "apiVersion": "karpenter.sh/v1alpha5",
    "kind": "Provisioner",
    "metadata": {"name": "gpu"},
    "spec": {
        "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.xlarge"]}]
    },
}
POOL["spec"]["provider"] = {"launchTemplate": "gpu", "subnetSelector": {"a": "b"}}  # type: ignore[index]
DATA = pod("train", 1, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])


def claim(name: str = "data", **spec: Any) -> dict[str, Any]:
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "ml"}, "spec": spec}


def volume(zone: str, **spec: Any) -> dict[str, Any]:
    affinity = {"required": {"nodeSelectorTerms": [term(ebs=[zone])]}}
    return {"kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {"nodeAffinity": affinity, **spec}}


def storage(zone: str, mode: str = "WaitForFirstConsumer", **annotations: str) -> dict[str, Any]:
    allowed = [{"matchLabelExpressions": [{"key": EBS_ZONE, "values": [zone]}]}]
    meta = {"name": "gp3", "annotations": annotations}
    return {"kind": "StorageClass", "metadata": meta, "volumeBindingMode": mode, "allowedTopologies": allowed}


class Simulation:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._capsys = capsys
        self.err = ""

    def __call__(self, *objects: dict[str, Any], code: int = 0) -> dict[str, Any]:
        path = self._folder / "all.yaml"
        path.write_text(yaml.safe_dump_all([POOL, *objects]))
        assert main(["simulate", "nodes", "--pools", str(path), "--pods", str(path), "-o", "json"]) == code
        out, self.err = self._capsys.readouterr()
        found: dict[str, Any] = json.loads(out) if out else {}
        return found


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulation:
    return Simulation(tmp_path, capsys)


@pytest.mark.parametrize(
    "objects",
    [
        [claim(volumeName="pv"), volume(B)],
        [claim(), volume(B, claimRef={"namespace": "ml", "name": "data"})],
        [claim(storageClassName="gp3"), storage(B)],
        [claim(storageClassName="gp3"), storage(B, "Immediate")],
        [claim(), storage(B, **{"storageclass.kubernetes.io/is-default-class": "true"})],
    ],
    ids=["bound", "bound by the volume", "class", "class that binds at once", "default class"],
)
def test_the_node_is_bought_in_the_zone_of_the_volume(simulate: Simulation, objects: list[dict[str, Any]]) -> None:
    assert [node["zone"] for node in simulate(DATA)["nodes"]] == [A]
    assert [node["zone"] for node in simulate(DATA, *objects)["nodes"]] == [B]
    assert simulate.err == ""


def test_two_volumes_in_two_zones_leave_no_node(simulate: Simulation) -> None:
    both = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("data", "more")]
    found = simulate(
        pod("train", 1, volumes=both),
        claim(volumeName="pv"),
        volume(B),
        claim("more", storageClassName="gp3"),
        storage(A),
    )
    assert not found["nodes"]
    assert found["waiting"]["ml/train"] == [
        "gpu: no node of the pool would have what the volumes of the pod want together"
    ]


def test_a_claim_whose_objects_are_missing_binds_nothing_and_is_named(simulate: Simulation) -> None:
    assert simulate(DATA)["nodes"]
    assert "volumes that may be anywhere, by what the files have: ml/data" in simulate.err
    assert simulate(DATA, claim(volumeName="pv"))["nodes"] and "ml/data" in simulate.err
    assert simulate(DATA, claim(storageClassName="gp3"))["nodes"] and "ml/data" in simulate.err
    assert simulate(pod("plain", 1))["nodes"] and simulate.err == ""


def test_many_claims_are_named_in_one_line(simulate: Simulation) -> None:
    volumes = [{"name": f"v{at}", "persistentVolumeClaim": {"claimName": f"c{at}"}} for at in range(8)]
    simulate(pod("train", 1, volumes=volumes))
    assert simulate.err.rstrip().endswith("ml/c0, ml/c1, ml/c2, ml/c3, ml/c4 and 3 more")


def replicated(templates: Any, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {}, "spec": {"containers": DATA["spec"]["containers"], **spec}}
    meta = {"name": "db", "namespace": "ml"}
    found = {"replicas": 2, "template": template, "volumeClaimTemplates": templates}
    return {"kind": "StatefulSet", "metadata": meta, "spec": found}


def test_the_claims_of_a_statefulset_follow_their_template_or_are_there_already(simulate: Simulation) -> None:
    templates = [{"metadata": {"name": "data"}, "spec": {"storageClassName": "gp3"}}]
    objects = [replicated(templates), storage(B), claim("data-db-1", volumeName="pv"), volume("us-east-1c")]
    zones = {name: node["zone"] for node in simulate(*objects)["nodes"] for name in node["pods"]}
    assert zones == {"ml/db-0": B, "ml/db-1": "us-east-1c"}


@pytest.mark.parametrize(
    "odd, where",
    [
        (claim(volumeName=5), "PersistentVolumeClaim/data"),
        ({"kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {"nodeAffinity": 5}}, "PersistentVolume/pv"),
        (volume(B, claimRef=5), "PersistentVolume/pv"),
        ({**storage(B), "allowedTopologies": [{"matchLabelExpressions": [{"values": [A]}]}]}, "StorageClass/gp3"),
        ({"kind": "StorageClass", "metadata": 5}, "StorageClass/"),
        (replicated(5), "StatefulSet/db"),
        (replicated([{"spec": {}}]), "StatefulSet/db"),
        (pod("odd", 1, volumes="none"), "Pod/odd"),
        (pod("odd", 1, volumes=[5]), "Pod/odd"),
    ],
)
def test_an_odd_object_is_named(simulate: Simulation, odd: dict[str, Any], where: str) -> None:
    simulate(pod("train", 1), odd, code=1)
    assert where in simulate.err, simulate.err


def test_zones_have_one_name(simulate: Simulation) -> None:
    """The driver's name of a zone and the name of Kubernetes mean the same zone."""
    chosen = pod("train", 1, volumes=DATA["spec"]["volumes"], nodeSelector={ZONE: A})
    found = simulate(chosen, claim(volumeName="pv"), volume(B))
    assert not found["nodes"] and found["waiting"]
