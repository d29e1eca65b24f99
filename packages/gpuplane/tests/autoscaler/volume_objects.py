"""Volumes, claims and storage classes as the autoscaler caches them, and pods that use them, for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuplane.autoscaler.observed import PodView, view_pod
from gpuplane.autoscaler.volumes import PlacedVolume, VolumeClass, WantedVolume, view_claim, view_class, view_volume
from kubekit.api.raw import RawPod
from packages.gpuplane.tests.autoscaler.worlds import pod

ZONE, EBS_ZONE, HOST = "topology.kubernetes.io/zone", "topology.ebs.csi.aws.com/zone", "kubernetes.io/hostname"
CONDITION = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def term(**values: list[str]) -> dict[str, Any]:
    keys = {"zone": ZONE, "ebs": EBS_ZONE, "host": HOST}
    found = [{"key": keys[name], "operator": "In", "values": listed} for name, listed in values.items()]
    return {"matchExpressions": found}


def volume(name: str, *terms: dict[str, Any], **spec: Any) -> PlacedVolume:
    affinity = {"required": {"nodeSelectorTerms": list(terms)}}
    raw = {"metadata": {"name": name}, "spec": {**({"nodeAffinity": affinity} if terms else {}), **spec}}
    return view_volume(msgspec.convert(raw, PlacedVolume))


def claim(name: str, *, phase: str = "Bound", deleted: str = "", **spec: Any) -> WantedVolume:
    meta = {"name": name, "namespace": "ml"} | ({"deletionTimestamp": deleted} if deleted else {})
    return view_claim(msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, WantedVolume))


def storage(
    name: str, *allowed: list[str], mode: str = "WaitForFirstConsumer", key: str = ZONE, provisioner: str = ""
) -> VolumeClass:
    topologies = [{"matchLabelExpressions": [{"key": key, "values": zones}]} for zones in allowed]
    raw = {"metadata": {"name": name}, "volumeBindingMode": mode, "allowedTopologies": topologies}
    return view_class(msgspec.convert({**raw, "provisioner": provisioner}, VolumeClass))


def using(*claims: str, name: str = "p", gpus: int = 1, **spec: Any) -> dict[str, Any]:
    volumes = [{"name": f"v{at}", "persistentVolumeClaim": {"claimName": one}} for at, one in enumerate(claims)]
    return pod(name, gpus, volumes=[{"name": "tmp", "emptyDir": {}}, *volumes], **spec)


def view(raw: dict[str, Any], **status: Any) -> PodView:
    return view_pod(msgspec.convert({**raw, "status": {"phase": "Pending", "conditions": [CONDITION]}}, RawPod))
