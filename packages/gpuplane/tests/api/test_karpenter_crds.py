"""The definitions of Karpenter's kinds admit and refuse the right objects, and `gpuplane check` agrees with them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from gpuplane.api.karpenter import (
    AWSNodeTemplate,
    EC2NodeClass,
    NodePool,
    NodePoolBudget,
    NodePoolDisruption,
    NodePoolTemplateSpec,
    Provisioner,
)
from gpuplane.api.karpenter_crds import DEFINITIONS, karpenter_crds
from gpuplane.api.karpenter_labels import is_restricted, key_rule
from gpuplane.api.nodeclaim import NodeClaim
from gpuplane.api.nodeoverlay import NodeOverlay
from gpuplane.api.schema import PrinterColumn
from gpuplane.api.validation import check_object, errors
from tests.support.realkube.stories import SHARED
from tinykube.apiserver import crd
from tinykube.apiserver.celrules import compile_rules
from tinykube.apiserver.crd_findings import findings
from tinykube.apiserver.structural import Structural

PROVISIONER = """
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: gpu}
spec:
  ttlSecondsAfterEmpty: 30
  labels: {team: red}
  requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [g4dn.xlarge]}]
  taints: [{key: nvidia.com/gpu, effect: NoSchedule}]
  limits: {resources: {cpu: 1000}}
  kubeletConfiguration: {evictionSoft: {memory.available: 5%}, evictionSoftGracePeriod: {memory.available: 1m}}
  provider: {launchTemplate: gpu, subnetSelector: {karpenter.sh/discovery: demo}}
"""
TEMPLATE = """
apiVersion: karpenter.k8s.aws/v1alpha1
kind: AWSNodeTemplate
metadata: {name: gpu}
spec:
  subnetSelector: {aws-ids: "subnet-1,subnet-2"}
  securityGroupSelector: {karpenter.sh/discovery: demo}
  blockDeviceMappings: [{deviceName: /dev/xvda, ebs: {volumeSize: 120Gi, volumeType: gp3}}]
"""
POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpu}
spec:
  limits: {cpu: "64"}
  template:
    metadata: {labels: {team: red}}
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}
      requirements: [{key: karpenter.k8s.aws/instance-gpu-count, operator: Gt, values: ["0"], minValues: 1}]
"""
CLASS = """
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: gpu}
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@latest}]
  subnetSelectorTerms: [{tags: {karpenter.sh/discovery: demo}}]
  securityGroupSelectorTerms: [{id: sg-1}]
"""
CLAIM = """
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: gpu-1}
spec:
  requirements: [{key: karpenter.sh/nodepool, operator: In, values: [gpu]}]
"""
OVERLAY = """
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: contract}
spec:
  weight: 10
  requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [g4dn.xlarge]}]
  priceAdjustment: "-15%"
  capacity: {smarter-devices/fuse: "1"}
"""
AMI = "spec.amiSelectorTerms"


@functools.cache
def definition_of(kind: str) -> dict[str, Any]:
    return next(found for found in karpenter_crds() if found["spec"]["names"]["kind"] == kind)


@functools.cache
def server(kind: str) -> Structural:
    return Structural(definition_of(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"], root=True)


def refusals(data: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """Return the API server's errors about an object."""
    filled = msgspec.json.decode(msgspec.json.encode(data))
    server(data["kind"]).fill(filled)
    return [cause.message for cause in server(data["kind"]).validate(filled, old)]


def changed(text: str, path: str, value: Any) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(text)
    place: Any = data
    *above, last = path.split("/")
    for step in above:
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    if value is None:
        place.pop(last, None)
    elif last.isdigit():
        place[int(last)] = value
    else:
        place[last] = value
    return data


def places(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from places(child, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield from places(schema[word], f"{path}[]")


@pytest.mark.parametrize("served", DEFINITIONS, ids=lambda served: served.kind.__name__)
def test_the_api_server_takes_each_definition_and_every_field_explains_itself(served: Any) -> None:
    made = copy.deepcopy(definition_of(served.kind.__name__))
    crd.fill_defaults(made)
    assert list(findings(made)) == []
    for path, place in places(made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]):
        assert place.get("type") or place.get("x-kubernetes-int-or-string"), path
        if place.get("type") == "array":
            assert "x-kubernetes-list-type" in place, path
        if not path.endswith("[]") and path not in (".apiVersion", ".kind", ".metadata"):
            assert place.get("description"), path


def fields_of(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and the type of each field of a Struct, and of the Structs in its fields."""
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        yield field.encode_name, field.type
        for found in (field.type, *getattr(field.type, "types", ()), getattr(field.type, "item_type", None)):
            if isinstance(found, msgspec.inspect.StructType):
                yield from ((f"{field.encode_name}.{path}", inner) for path, inner in fields_of(found.cls))


# Fields of v1beta1 alone, or of a reference that two kinds share.
ELSEWHERE = {
    ("NodePool", "spec.template.spec.kubelet"),
    ("NodePool", "spec.disruption.expireAfter"),
    ("Provisioner", "spec.requirements.minValues"),
    ("Provisioner", "spec.providerRef.group"),
    ("Provisioner", "status.nodes"),
    ("NodeOverlay", "spec.requirements.minValues"),
}


@pytest.mark.parametrize("kind", [Provisioner, NodePool, NodeClaim, AWSNodeTemplate, EC2NodeClass, NodeOverlay])
def test_every_field_that_is_read_is_defined(kind: Any) -> None:
    schema = definition_of(kind.__name__)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    defined = {path.replace("[]", "").lstrip(".") for path, _ in places(schema)}
    read = {path for path, _ in fields_of(kind) if not path.startswith("metadata.")}
    assert {
        path
        for path in read - defined
        if not any(kind.__name__ == k and path.startswith(place) for k, place in ELSEWHERE)
    } == set()


@pytest.mark.skipif(not SHARED.exists(), reason="no shared manifests beside this checkout")
@pytest.mark.parametrize("name", ["provisioner-gpu", "provisioner-gpu-shared"])
def test_the_printed_provisioners_are_admitted(name: str) -> None:
    data = yaml.safe_load((SHARED / "karpenter" / f"{name}.yaml").read_text())
    assert refusals(data) == [] and check_object(data) == []
    before = copy.deepcopy(data)
    assert server("Provisioner").prune(data) == [] and data == before


def test_a_node_pool_gets_the_defaults_that_its_struct_has() -> None:
    data = yaml.safe_load(POOL)
    server("NodePool").fill(data)
    assert data["spec"]["disruption"] == {
        "consolidateAfter": "0s",
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "budgets": [{"nodes": "10%"}],
    }
    assert msgspec.convert(data["spec"]["disruption"], NodePoolDisruption) == NodePoolDisruption()
    assert NodePoolBudget().nodes == "10%"
    assert data["spec"]["template"]["spec"]["expireAfter"] == NodePoolTemplateSpec().expire_after == "720h"


def test_metadata_of_instances_needs_tokens_by_default() -> None:
    data = yaml.safe_load(CLASS)
    server("EC2NodeClass").fill(data)
    assert data["spec"]["metadataOptions"] == {
        "httpEndpoint": "enabled",
        "httpProtocolIPv6": "disabled",
        "httpPutResponseHopLimit": 1,
        "httpTokens": "required",
    }


ADMITTED: list[tuple[str, str, Any]] = [
    (PROVISIONER, "spec/consolidation", {"enabled": False}),
    (PROVISIONER, "spec/requirements/0", {"key": "karpenter.sh/capacity-type", "operator": "Exists"}),
    (PROVISIONER, "spec/weight", 100),
    (PROVISIONER, "spec/limits/resources/nvidia.com~1gpu", "10"),
    (TEMPLATE, "spec/amiFamily", "Bottlerocket"),
    (TEMPLATE, "spec/userData", "text"),
    (POOL, "spec/disruption", {"budgets": [{"nodes": "0", "schedule": "@daily", "duration": "1h"}]}),
    (POOL, "spec/disruption", {"consolidateAfter": "Never", "consolidationPolicy": "Balanced"}),
    (POOL, "spec/template/spec/terminationGracePeriod", "1h30m"),
    (POOL, "spec/template/spec/expireAfter", "Never"),
    (POOL, "spec/template/spec/requirements/0", {"key": "node.kubernetes.io/windows-build", "operator": "Exists"}),
    (CLASS, AMI.replace(".", "/"), [{"alias": "bottlerocket@v1.20.0"}]),
    (CLASS, "spec/kubelet", {"systemReserved": {"cpu": "100m"}, "maxPods": 20}),
    (CLASS, "spec/blockDeviceMappings", [{"ebs": {"volumeSize": "100Gi"}, "rootVolume": True}]),
    (CLASS, "spec/amiFamily", "Custom"),
    *(
        (OVERLAY, "spec/requirements/0", {"key": key, "operator": operator, "values": values})
        for key, operator, values in (
            ("karpenter.sh/capacity-type", "In", ["spot"]),
            ("karpenter.sh/nodepool", "NotIn", ["gpu"]),
            ("team", "Exists", []),
            ("test.com.com/test", "DoesNotExist", []),
            ("karpenter.k8s.aws/instance-gpu-count", "Gte", ["2"]),
            ("topology.kubernetes.io/zone", "In", ["us-east-1a"]),
        )
    ),
    (OVERLAY, "spec/requirements", []),
    (OVERLAY, "spec/requirements/0", {"key": "team", "operator": "Exists"}),
    *((OVERLAY, "spec/priceAdjustment", text) for text in ("+0.5", "-1", "+.5", "+120%", "-99.5%", "-100%")),
    (OVERLAY, "spec/capacity", {"nvidia.com/gpu": 10}),
    (OVERLAY, "spec/weight", 10000),
    (CLAIM, "spec/expireAfter", "2592000s"),
    (CLAIM, "spec/nodeClassRef", {"group": "g", "kind": "K", "name": "n"}),
]
REFUSED: list[tuple[str, str, Any, str]] = [
    (PROVISIONER, "spec/provider", None, "exactly one of provider and providerRef"),
    (PROVISIONER, "spec/providerRef", {"name": "x"}, "exactly one of provider and providerRef"),
    (PROVISIONER, "spec/consolidation", {"enabled": True}, "together with consolidation"),
    (PROVISIONER, "spec/ttlSecondsAfterEmpty", -1, "-1"),
    (PROVISIONER, "spec/weight", 0, "0"),
    (PROVISIONER, "spec/weight", 101, "101"),
    (PROVISIONER, "spec/requirements/0/operator", "Gte", "Gte"),
    (PROVISIONER, "spec/requirements/0/values", [], "In needs values"),
    (PROVISIONER, "spec/requirements/0", {"key": "size", "operator": "Gt", "values": ["big"]}, "one whole number"),
    (PROVISIONER, "spec/requirements/0", {"key": "karpenter.sh/x", "operator": "Exists"}, "is set by Karpenter"),
    (PROVISIONER, "spec/labels", {"kubernetes.io/hostname": "x"}, "is set by Karpenter"),
    (PROVISIONER, "spec/labels", {"karpenter.sh/provisioner-name": "x"}, "is set by Karpenter"),
    (PROVISIONER, "spec/labels", {"team": "a b"}, "a b"),
    (PROVISIONER, "spec/limits/resources", {"cpu": "ten"}, "ten"),
    (PROVISIONER, "spec/taints/0/effect", "Never", "Never"),
    (PROVISIONER, "spec/kubeletConfiguration/evictionSoft", {"x": "1"}, "evictionSoftGracePeriod"),
    (PROVISIONER, "spec/provider/subnetSelector", None, "subnetSelector"),
    (PROVISIONER, "spec/provider/amiFamily", "AL2", "launchTemplate"),
    (PROVISIONER, "spec/provider/launchTemplate", None, "securityGroupSelector"),
    (TEMPLATE, "spec/launchTemplate", "gpu", "launchTemplate"),
    (TEMPLATE, "spec/amiFamily", "Custom", "amiSelector"),
    (TEMPLATE, "spec/amiFamily", "Windows95", "Windows95"),
    (TEMPLATE, "spec/subnetSelector", {"aws-ids": "subnet-1,vpc-2"}, "not of the form"),
    (TEMPLATE, "spec/subnetSelector", {"name": ""}, "a key or a value is empty"),
    (TEMPLATE, "spec/blockDeviceMappings/0/ebs/volumeSize", None, "snapshotID"),
    (TEMPLATE, "spec/blockDeviceMappings/0/deviceName", None, "deviceName"),
    (TEMPLATE, "spec/metadataOptions", {"httpPutResponseHopLimit": 65}, "65"),
    (TEMPLATE, "spec/tags", {"karpenter.sh/provisioner-name": "x"}, "own"),
    (TEMPLATE, "spec/tags", {"kubernetes.io/cluster/demo": "owned"}, "own"),
    (POOL, "spec/template/spec/nodeClassRef", None, "nodeClassRef"),
    (POOL, "spec/template/spec/requirements", None, "requirements"),
    (POOL, "spec/template/spec/nodeClassRef", {"group": "", "kind": "EC2NodeClass", "name": "gpu"}, "group"),
    (POOL, "spec/template/spec/nodeClassRef", {"group": "g", "kind": "EC2NodeClass", "name": ""}, "name"),
    (POOL, "spec/template/spec/requirements/0/minValues", 51, "51"),
    (POOL, "spec/template/spec/requirements/0/minValues", 0, "0"),
    (
        *(POOL, "spec/template/spec/requirements/0"),
        {"key": "size", "operator": "In", "values": ["a"], "minValues": 2},
        "minValues",
    ),
    (POOL, "spec/template/spec/requirements/0/key", "karpenter.k8s.aws/instance-gpus", "is set by Karpenter"),
    (POOL, "spec/template/spec/requirements", [{"key": "a", "operator": "Exists"}] * 101, "100"),
    (POOL, "spec/template/spec/expireAfter", "30d", "30d"),
    (POOL, "spec/template/spec/terminationGracePeriod", "Never", "Never"),
    (POOL, "spec/template/metadata/labels", {"karpenter.sh/nodepool": "x"}, "is set by Karpenter"),
    (POOL, "spec/disruption", {"consolidateAfter": "soon"}, "soon"),
    (POOL, "spec/disruption", {"consolidationPolicy": "WhenUnderutilized"}, "WhenUnderutilized"),
    (POOL, "spec/disruption", {"budgets": [{"nodes": "101%"}]}, "101%"),
    (POOL, "spec/disruption", {"budgets": [{"nodes": "1", "schedule": "@daily"}]}, "schedule"),
    (POOL, "spec/disruption", {"budgets": [{"nodes": "1", "reasons": ["Bored"]}]}, "Bored"),
    (POOL, "spec/disruption", {"budgets": [{"nodes": "1", "schedule": "@daily", "duration": "9s"}]}, "9s"),
    (POOL, "spec/disruption", {"budgets": [{"nodes": "1"}] * 51}, "50"),
    (POOL, "spec/weight", 101, "101"),
    (CLASS, "spec/role", None, "exactly one of role and instanceProfile"),
    (CLASS, "spec/instanceProfile", "nodes", "exactly one of role and instanceProfile"),
    (CLASS, "spec/subnetSelectorTerms", [], "subnetSelectorTerms"),
    (CLASS, "spec/subnetSelectorTerms", [{}], "subnetSelectorTerms"),
    (CLASS, "spec/subnetSelectorTerms", [{"id": "subnet-1", "tags": {"a": "b"}}], "stands alone"),
    (CLASS, "spec/subnetSelectorTerms", [{"id": "vpc-1"}], "vpc-1"),
    (CLASS, "spec/subnetSelectorTerms", [{"tags": {"a": ""}}], "a key or a value is empty"),
    (CLASS, "spec/securityGroupSelectorTerms", [{"name": "a", "tags": {"a": "b"}}], "stands alone"),
    (CLASS, "spec/capacityReservationSelectorTerms", [{"ownerID": "123456789012"}], "apacityReservation"),
    (CLASS, "spec/amiSelectorTerms", [{"owner": "self"}], "amiSelectorTerms"),
    (CLASS, "spec/amiSelectorTerms", [{"alias": "al2023@latest"}, {"id": "ami-1"}], "an alias is the only term"),
    (CLASS, "spec/amiSelectorTerms", [{"id": "ami-1"}], "amiFamily"),
    (CLASS, "spec/amiSelectorTerms", [{"alias": "al2023"}], "family@version"),
    (CLASS, "spec/amiSelectorTerms", [{"alias": "ubuntu@latest"}], "is not one of al2"),
    (CLASS, "spec/amiSelectorTerms", [{"alias": "windows2022@1.0"}], "latest only"),
    (CLASS, "spec/amiFamily", "Bottlerocket", "AL2023 or Custom"),
    (CLASS, "spec/tags", {"karpenter.sh/nodepool": "x"}, "own"),
    (CLASS, "spec/kubelet", {"systemReserved": {"gpu": "1"}}, "systemReserved"),
    (CLASS, "spec/kubelet", {"kubeReserved": {"cpu": "-1"}}, "below 0"),
    (CLASS, "spec/kubelet", {"evictionHard": {"nodefs": "1"}}, "evictionHard"),
    (
        *(CLASS, "spec/kubelet", {"imageGCHighThresholdPercent": 5, "imageGCLowThresholdPercent": 9}),
        "imageGCLowThresholdPercent",
    ),
    (CLASS, "spec/blockDeviceMappings", [{"ebs": {"volumeSize": "65T"}}], "65T"),
    (CLASS, "spec/blockDeviceMappings", [{"ebs": {"iops": 3000}}], "snapshotID"),
    (CLASS, "spec/blockDeviceMappings", [{"rootVolume": True}] * 2, "rootVolume"),
    (CLASS, "spec/metadataOptions", {"httpTokens": "maybe"}, "maybe"),
    (OVERLAY, "spec/requirements", None, "requirements"),
    (OVERLAY, "spec/requirements/0/key", "karpenter.sh/x", "is set by Karpenter"),
    (OVERLAY, "spec/requirements/0/key", "sub.karpenter.sh/x", "is set by Karpenter"),
    (OVERLAY, "spec/requirements/0/key", "kubernetes.io/hostname", "is set by Karpenter"),
    *((OVERLAY, "spec/requirements/0/key", key, key) for key in ("test.com.com}", "Test.com/test", "a/b/c", "/test")),
    (OVERLAY, "spec/requirements/0/operator", "unknown", "unknown"),
    (OVERLAY, "spec/requirements/0/values", [], "need"),
    (OVERLAY, "spec/requirements/0", {"key": "a", "operator": "NotIn"}, "need"),
    *(
        (OVERLAY, "spec/requirements/0", {"key": "a", "operator": operator, "values": values}, "one whole number")
        for operator in ("Gt", "Lte")
        for values in ([], ["1", "2"], ["a"], ["-1"])
    ),
    (OVERLAY, "spec/requirements", [{"key": "a", "operator": "Exists"}] * 101, "100"),
    (OVERLAY, "spec/price", "0.5", "exclude each other"),
    *((OVERLAY, "spec/priceAdjustment", text, text) for text in ("10%", "0.5", "-101%", "+x", "-200%", "")),
    (OVERLAY, "spec", {"requirements": [], "price": "-1"}, "-1"),
    (OVERLAY, "spec", {"requirements": [], "price": "+1"}, "+1"),
    *((OVERLAY, "spec/capacity", {name: "1"}, "decided by") for name in ("cpu", "memory", "ephemeral-storage", "pods")),
    (OVERLAY, "spec/capacity", {"a/b": "many"}, "many"),
    (OVERLAY, "spec/weight", 0, "0"),
    (OVERLAY, "spec/weight", 10001, "10001"),
    (CLAIM, "spec/requirements", None, "requirements"),
    (CLAIM, "spec/nodeClassRef", {"group": "g", "kind": "K"}, "name"),
    (CLAIM, "spec/expireAfter", "30.0s", "30.0s"),
]


@pytest.mark.parametrize("text", [PROVISIONER, TEMPLATE, POOL, CLASS, CLAIM, OVERLAY])
def test_each_kind_is_admitted(text: str) -> None:
    assert refusals(yaml.safe_load(text)) == []
    assert check_object(yaml.safe_load(text)) == []


@pytest.mark.parametrize("text, path, value", ADMITTED)
def test_admitted_by_the_api_server_and_by_check(text: str, path: str, value: Any) -> None:
    data = changed(text, path, value)
    assert refusals(data) == []
    assert errors(check_object(data)) == []


@pytest.mark.parametrize("text, path, value, rule", REFUSED)
def test_refused_by_the_api_server_and_by_check_with_the_rule(text: str, path: str, value: Any, rule: str) -> None:
    data = changed(text, path, value)
    said = refusals(data)
    assert said, "the API server admits it"
    found = [str(finding) for finding in errors(check_object(data))]
    assert found, "check admits it"
    assert any(rule in message for message in [*said, *found]), (said, found)


def test_the_spec_of_a_claim_never_changes() -> None:
    old = yaml.safe_load(CLAIM)
    assert refusals(changed(CLAIM, "status/nodeName", "n"), old) == []
    assert refusals(changed(CLAIM, "spec/expireAfter", "1h"), old) == ["Invalid value: spec never changes"]


def test_a_pool_stays_dynamic_and_keeps_the_kind_of_its_class() -> None:
    old = yaml.safe_load(POOL)
    server("NodePool").fill(old)
    assert any("stays static" in message for message in refusals(changed(POOL, "spec/replicas", 3), old))
    moved = changed(POOL, "spec/template/spec/nodeClassRef/kind", "OtherClass")
    assert any("never changes" in message for message in refusals(moved, old))


def test_a_static_pool_is_admitted_as_karpenter_does_and_check_warns() -> None:
    data = changed(POOL, "spec/replicas", 3)
    del data["spec"]["limits"]
    assert refusals(data) == []
    assert [(finding.code, finding.severity) for finding in check_object(data)] == [("GP140", "warning")]


KEYS = (
    *("team", "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/role", "node.kubernetes.io/pool"),
    *("a.node.kubernetes.io/x", "node-restriction.kubernetes.io/x", "kops.k8s.io/x", "k8s.io/x", "a.k8s.io/x"),
    *("karpenter.sh/capacity-type", "karpenter.sh/nodepool", "karpenter.sh/x", "sub.karpenter.sh/x"),
    *("karpenter.k8s.aws/instance-family", "karpenter.k8s.aws/instance-x", "karpenter.k8s.aws/ec2nodeclass"),
    *("nvidia.com/gpu.count", "topology.kubernetes.io/zone", "karpenter.sh/provisioner-name", "karpenter.sh"),
)


@pytest.mark.parametrize("key", KEYS)
def test_the_rule_on_labels_is_the_same_in_cel(key: str) -> None:
    place = Structural({"type": "string"})
    place.rules, place.has_rules = tuple(compile_rules([{"rule": key_rule("self"), "message": "restricted"}])), True
    assert bool(list(place.check_rules(key, "", None))) == is_restricted(key)


def test_karpenters_columns_names_and_scale() -> None:
    pool = definition_of("NodePool")["spec"]
    version = pool["versions"][0]
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        *("NodeClass", "Nodes", "Ready", "Age", "Weight", "CPU", "Memory"),
    ]
    assert version["subresources"] == {
        "status": {},
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.nodes"},
    }
    assert pool["names"]["categories"] == ["karpenter"] and pool["scope"] == "Cluster"
    assert definition_of("EC2NodeClass")["spec"]["names"]["shortNames"] == ["ec2nc", "ec2ncs"]
    overlays = definition_of("NodeOverlay")["spec"]
    assert overlays["names"]["shortNames"] == ["overlays"]
    columns = overlays["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in columns] == ["Ready", "Age", "Weight"]
    claims = definition_of("NodeClaim")["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in claims if not column.get("priority")] == [
        *("Type", "Capacity", "Zone", "Node", "Ready", "Age"),
    ]
    assert all(isinstance(column, PrinterColumn) for served in DEFINITIONS for column in served.columns)


def test_older_versions_are_left_to_karpenter() -> None:
    data = yaml.safe_load(POOL.replace("karpenter.sh/v1", "karpenter.sh/v1beta1"))
    assert check_object(data) == []
