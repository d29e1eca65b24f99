"""Pods as the autoscaler keeps them."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuplane import names
from gpuplane.autoscaler.observed import view_pod
from gpuplane.sharing.assignment import Assignment, Part, to_annotations
from gpuplane.sharing.request import request_of
from kubekit.api.core import Pod
from kubekit.api.raw import RawPod

UUID = "GPU-c3bb0a86-e80c-5f29-a3a2-1a04b1b6e4d1"


def bound(annotations: dict[str, str], *, namespace: str = "ml", app: str = "") -> dict[str, Any]:
    container = {"name": "train", "resources": {"limits": {names.GPU_RESOURCE: "1"}}}
    meta = {"name": "p", "namespace": namespace, "uid": "u", "annotations": annotations, "labels": {"app": app}}
    return {"metadata": meta, "spec": {"nodeName": "n1", "containers": [container]}}


def test_a_bound_pod_holds_the_gpu_that_its_assignment_names(caplog: Any) -> None:
    raw = bound({})
    request = request_of(msgspec.convert(raw, Pod))
    part = Part(uuid=UUID, index=0, core=100, memory_mib=15360)
    annotations = to_annotations(Assignment(containers={"train": (part,)}), request, "n1", 0)
    view = view_pod(msgspec.convert(bound(annotations), RawPod))
    assert view.assignment is not None
    assert [part.uuid for part in view.assignment.containers["train"]] == [UUID]
    assert not caplog.records


def test_the_pod_of_a_validator_holds_nothing_of_its_node() -> None:
    raw = bound({}, namespace=names.OPERATOR_NAMESPACE, app=names.VALIDATION_POD)
    assert view_pod(msgspec.convert(raw, RawPod)).info is None
    assert view_pod(msgspec.convert(bound({}, app=names.VALIDATION_POD), RawPod)).info is not None
