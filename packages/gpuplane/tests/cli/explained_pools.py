"""Node pools, a pod and the printed page for the tests of what pools would buy."""

from __future__ import annotations

import io
from typing import Any

import msgspec

from gpuplane.api.karpenter import DeclaredPool, NodePool, PoolRequirement
from gpuplane.autoscaler.options import SharingSettings
from gpuplane.cli.explain_text import page
from gpuplane.cli.terminal import Console
from gpuplane.explain.answer import Explanation, PoolAnswer
from kubekit.api.core import Taint

TEN = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}"
SHARING = SharingSettings(configs={"default": "version: v1", "shared": TEN}, default="default")
TYPES = PoolRequirement(key="node.kubernetes.io/instance-type", operator="In", values=("g4dn.xlarge", "g4dn.12xlarge"))
ON_DEMAND = PoolRequirement(key="karpenter.sh/capacity-type", operator="In", values=("on-demand",))


def pod(gpus: int = 1, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    meta = {"name": "train", "namespace": "ml", "uid": "1", "creationTimestamp": "2026-11-23T00:00:00Z"}
    return {"metadata": meta, "spec": {"containers": [container], **spec}, "status": {}}


def pool(name: str, *taints: Taint, **fields: Any) -> DeclaredPool:
    return DeclaredPool(name, taints=taints, requirements=(TYPES, ON_DEMAND), **fields)


GUARDED = pool("guarded", Taint(key="nvidia.com/gpu", effect="NoSchedule"))


def printed(found: tuple[PoolAnswer, ...]) -> list[str]:
    """Return the lines of the page about pools, for a pod that waits."""
    what = Explanation("ml/train", "waiting", asks="1 GPU", pools=found, priced="2026-07-20, us-east-1")
    lines = page(what, Console(io.StringIO(), io.StringIO())).splitlines()
    return lines[lines.index(" the cluster has no nodes") + 2 :]


def declared_object(**fields: Any) -> NodePool:
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"}
    data = {"metadata": {"name": "plain"}, "spec": {"template": {"spec": {"nodeClassRef": reference}}}, **fields}
    return msgspec.convert(data, NodePool)


def not_ready(message: str, *more: dict[str, str]) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": "False", "reason": "No", "message": message}, *more]}


CLASS_SPEC = {
    "amiSelectorTerms": [{"alias": "al2023@latest"}],
    "role": "nodes",
    "subnetSelectorTerms": [{"tags": {"a": "b"}}],
    "securityGroupSelectorTerms": [{"tags": {"a": "b"}}],
}
