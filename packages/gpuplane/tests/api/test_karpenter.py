"""Karpenter's pools and classes, old and new, as one model."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from gpuplane.api.karpenter import DeclaredPool, DisruptionBudget, NodePool, PoolDisruption, Provisioner, declared_pool
from gpuplane.api.karpenter_checks import is_class, is_pool, read_class, read_pool
from kubekit.api.core import Taint
from kubekit.errors import InvalidInput

PROVISIONER = """
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: gpu-shared}
spec:
  ttlSecondsAfterEmpty: 30
  labels: {team: red, nvidia.com/device-plugin.config: shared_gpu}
  requirements:
    - {key: node.kubernetes.io/instance-type, operator: In, values: [g4dn.xlarge, g4dn.12xlarge]}
    - {key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}
  taints: [{key: nvidia.com/gpu-shared, effect: NoSchedule}]
  limits: {resources: {cpu: 1000}}
  kubeletConfiguration: {maxPods: 20}
  provider: {launchTemplate: karpenter-gpu-shared-demo, subnetSelector: {karpenter.sh/discovery: demo}}
"""
NODE_POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpu}
spec:
  weight: 10
  limits: {cpu: "64", nodes: "3"}
  template:
    metadata: {labels: {team: red}}
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}
      startupTaints: [{key: boot, effect: NoExecute}]
      requirements:
        - {key: karpenter.k8s.aws/instance-gpu-count, operator: Gte, values: ["1"], minValues: 1}
status: {resources: {cpu: "8"}}
"""


def changed(text: str, path: str, value: Any) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(text)
    place: Any = data
    *above, last = path.split(".")
    for step in above:
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return data


def test_a_provisioner_becomes_a_pool_with_the_webhooks_defaults() -> None:
    pool = read_pool(yaml.safe_load(PROVISIONER))
    assert (pool.kind, pool.name, pool.weight) == (Provisioner.RESOURCE.kind, "gpu-shared", 0)
    assert pool.taints == (Taint(key="nvidia.com/gpu-shared", effect="NoSchedule"),)
    assert pool.limits == {"cpu": 1000}
    assert pool.kubelet.max_pods == 20
    added = {requirement.key: requirement.values for requirement in pool.requirements[2:]}
    assert added == {"kubernetes.io/os": ("linux",), "kubernetes.io/arch": ("amd64",)}


def test_a_provisioner_that_names_no_type_is_kept_to_general_purpose() -> None:
    data = changed(PROVISIONER, "spec.requirements", [])
    found = {(r.key.rpartition("/")[2], r.operator, r.values) for r in read_pool(data).requirements}
    assert ("capacity-type", "In", ("on-demand",)) in found
    assert ("instance-category", "In", ("c", "m", "r")) in found
    assert ("instance-generation", "Gt", ("2",)) in found


def test_a_node_pool_becomes_a_pool_without_defaults() -> None:
    pool = read_pool(yaml.safe_load(NODE_POOL))
    assert pool == DeclaredPool(
        name="gpu",
        labels={"team": "red"},
        startup_taints=(Taint(key="boot", effect="NoExecute"),),
        requirements=pool.requirements,
        kind=NodePool.RESOURCE.kind,
        weight=10,
        limits={"cpu": "64", "nodes": "3"},
        used={"cpu": "8"},
        class_kind="EC2NodeClass",
        class_name="gpu",
        disruption=PoolDisruption(
            0.0, "WhenEmptyOrUnderutilized", (DisruptionBudget("10%"),), expire_after=2_592_000.0
        ),
        hash=pool.hash,
    )
    assert pool.hash
    assert [r.min_values for r in pool.requirements] == [1]


def test_a_node_pool_of_v1beta1_has_its_kubelet_in_the_template() -> None:
    data = changed(NODE_POOL.replace("karpenter.sh/v1", "karpenter.sh/v1beta1").replace("Gte", "Gt"), "spec.weight", 5)
    data["spec"]["template"]["spec"]["kubelet"] = {"maxPods": 20}
    assert is_pool(data)
    pool = read_pool(data)
    assert (pool.kind, pool.weight, pool.kubelet.max_pods, pool.class_name) == ("NodePool", 5, 20, "gpu")
    data["spec"]["template"]["spec"]["requirements"][0]["operator"] = "Gte"
    with pytest.raises(InvalidInput) as raised:
        read_pool(data)
    assert any("Gte" in finding for finding in raised.value.findings)


def test_a_provisioner_says_when_its_nodes_go_and_what_its_machines_are() -> None:
    pool = read_pool(yaml.safe_load(PROVISIONER))
    assert pool.disruption == PoolDisruption(empty_after=30.0)
    assert pool.machines["launchTemplate"] == "karpenter-gpu-shared-demo"
    assert (pool.class_kind, pool.class_name, pool.termination_grace) == ("", "", None)
    data = changed(PROVISIONER, "spec.ttlSecondsAfterEmpty", None)
    data["spec"] |= {"consolidation": {"enabled": True}, "ttlSecondsUntilExpired": 60, "annotations": {"a": "b"}}
    pool = read_pool(data)
    assert pool.disruption == PoolDisruption(0.0, "WhenEmptyOrUnderutilized", expire_after=60.0)
    assert pool.annotations == {"a": "b"}


def test_a_node_pool_says_when_its_nodes_go() -> None:
    data = changed(NODE_POOL, "spec.template.spec.terminationGracePeriod", "1h30m")
    data["spec"]["template"]["spec"]["expireAfter"] = "Never"
    night = {"nodes": "0", "reasons": ["Drifted"], "schedule": "0 9 * * mon-fri", "duration": "8h"}
    data["spec"]["disruption"] = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never", "budgets": [night]}
    pool = read_pool(data)
    assert pool.termination_grace == 5400.0
    budget = DisruptionBudget("0", ("Drifted",), "0 9 * * mon-fri", 28_800.0)
    assert pool.disruption == PoolDisruption(None, "WhenEmpty", (budget,))


def test_a_node_pool_of_v1beta1_expires_by_its_disruption() -> None:
    data = changed(NODE_POOL.replace("karpenter.sh/v1", "karpenter.sh/v1beta1").replace("Gte", "Gt"), "spec.weight", 5)
    data["spec"]["disruption"] = {"consolidationPolicy": "WhenUnderutilized", "expireAfter": "24h"}
    found = read_pool(data).disruption
    assert (found.policy, found.expire_after, found.consolidate_after) == ("WhenEmptyOrUnderutilized", 86_400.0, 0.0)


def test_a_budget_that_cannot_be_read_admits_no_disruption() -> None:
    for broken in ({"schedule": "@daily"}, {"duration": "8h"}, {"schedule": "@daily", "duration": "often"}):
        data = changed(NODE_POOL, "spec.disruption", {"budgets": [{"nodes": "5", **broken}]})
        pool = declared_pool(msgspec.convert(data, NodePool))  # as another release's API server may have stored it
        assert pool.disruption.budgets == (DisruptionBudget("0"),)


@pytest.mark.parametrize(
    "text, path, value, drifts",
    [
        (PROVISIONER, "spec.labels", {"team": "blue"}, True),
        (PROVISIONER, "spec.annotations", {"team": "red"}, True),
        (PROVISIONER, "spec.taints", [], True),
        (PROVISIONER, "spec.startupTaints", [{"key": "nvidia.com/gpu-shared", "effect": "NoSchedule"}], True),
        (PROVISIONER, "spec.kubeletConfiguration", {"maxPods": 20, "clusterDNS": ["10.0.0.1"]}, True),
        (PROVISIONER, "spec.requirements", [], False),
        (PROVISIONER, "spec.limits", None, False),
        (PROVISIONER, "spec.weight", 3, False),
        (PROVISIONER, "spec.ttlSecondsAfterEmpty", 300, False),
        (PROVISIONER, "spec.annotations", {}, False),
        (NODE_POOL, "spec.template.metadata.labels", {"team": "blue"}, True),
        (NODE_POOL, "spec.template.metadata.annotations", {"a": "b"}, True),
        (NODE_POOL, "spec.template.spec.taints", [{"key": "boot", "effect": "NoExecute"}], True),
        (NODE_POOL, "spec.template.spec.expireAfter", "1h", True),
        (NODE_POOL, "spec.template.spec.terminationGracePeriod", "1h", True),
        (NODE_POOL, "spec.template.spec.nodeClassRef.name", "other", True),
        (NODE_POOL, "spec.template.spec.requirements", [], False),
        (NODE_POOL, "spec.disruption", {"consolidateAfter": "1h"}, False),
        (NODE_POOL, "spec.limits", {"cpu": "1"}, False),
        (NODE_POOL, "spec.weight", 3, False),
    ],
)
def test_nodes_drift_by_the_fields_that_they_are_made_of(text: str, path: str, value: Any, drifts: bool) -> None:
    before, after = read_pool(yaml.safe_load(text)), read_pool(changed(text, path, value))
    assert (before.hash != after.hash) == drifts


def test_the_order_of_taints_drifts_no_node() -> None:
    taints = [{"key": "a", "effect": "NoExecute"}, {"key": "b", "effect": "NoExecute"}]
    ordered, turned = (read_pool(changed(NODE_POOL, "spec.template.spec.taints", t)) for t in (taints, taints[::-1]))
    assert ordered.hash == turned.hash


def test_a_class_drifts_by_its_fields_but_not_by_its_selectors() -> None:
    data = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "gpu"}}
    plain, *others = (
        read_class({**data, "spec": {"amiSelectorTerms": [{"alias": "al2023@latest"}], **more}})
        for more in ({}, {"subnetSelectorTerms": [{"id": "subnet-1"}]}, {"userData": "x"}, {"kubelet": {"maxPods": 9}})
    )
    assert plain.spec == {"amiSelectorTerms": [{"alias": "al2023@latest"}]}
    assert [other.hash == plain.hash for other in others] == [True, False, False]


def test_a_class_with_a_kubelet_of_another_type_is_refused() -> None:
    data = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "gpu"}}
    with pytest.raises(InvalidInput, match="EC2NodeClass/gpu"):
        read_class({**data, "spec": {"kubelet": {"maxPods": "many"}}})


def test_classes_of_both_kinds_become_one() -> None:
    status = {"subnets": [{"id": "s-1", "zone": "b"}, {"id": "s-2", "zone": "a"}]}
    for version, kind in (("v1alpha1", "AWSNodeTemplate"), ("v1beta1", "EC2NodeClass"), ("v1", "EC2NodeClass")):
        data = {
            "apiVersion": f"karpenter.k8s.aws/{version}",
            "kind": kind,
            "metadata": {"name": "gpu"},
            "spec": {"kubelet": {"maxPods": 30}},
            "status": status,
        }
        assert is_class(data) and not is_pool(data)
        found = read_class(data)
        assert (found.kind, found.name, found.zones, found.kubelet.max_pods) == (kind, "gpu", ("a", "b"), 30)


@pytest.mark.parametrize(
    "text, path, value, finding",
    [
        (PROVISIONER, "spec.provider", None, "exactly one of provider and providerRef"),
        (PROVISIONER, "spec.providerRef", {"name": "x"}, "exactly one of provider and providerRef"),
        (PROVISIONER, "spec.consolidation", {"enabled": True}, "not set together with consolidation"),
        (PROVISIONER, "spec.ttlSecondsAfterEmpty", -1, "-1 is below 0"),
        (PROVISIONER, "spec.ttlSecondsUntilExpired", -2, "-2 is below 0"),
        (PROVISIONER, "spec.weight", 0, "0 is not from 1 to 100"),
        (PROVISIONER, "spec.requirements.0.operator", "Gte", "'Gte' is unknown"),
        (PROVISIONER, "spec.requirements.0.minValues", 1, "minValues: is unknown in karpenter.sh/v1alpha5"),
        (PROVISIONER, "spec.requirements.0.values", [], "In needs values"),
        (PROVISIONER, "spec.requirements.0.key", "karpenter.sh/anything", "is set by Karpenter"),
        (PROVISIONER, "spec.limits.resources.cpu", "ten", "spec.limits.resources.cpu"),
        (PROVISIONER, "spec.taints.0.effect", "Never", "effect 'Never' is unknown"),
        (NODE_POOL, "spec.weight", 101, "101 is not from 1 to 100"),
        (NODE_POOL, "spec.template.spec.nodeClassRef", None, "names no class"),
        (NODE_POOL, "spec.replicas", 3, "static pools are left out"),
        (NODE_POOL, "spec.template.metadata.labels", {"kubernetes.io/hostname": "x"}, "is set by Karpenter"),
        (NODE_POOL, "spec.template.metadata.labels", {"karpenter.sh/nodepool": "x"}, "is set by Karpenter"),
        (NODE_POOL, "spec.template.spec.requirements.0.values", ["-1"], "Gte needs one whole number"),
        (NODE_POOL, "spec.template.spec.requirements.0.values", ["1", "2"], "Gte needs one whole number"),
        (NODE_POOL, "spec.template.spec.requirements.0.minValues", 51, "minValues 51 is not from 1 to 50"),
        (NODE_POOL, "spec.limits.cpu", "-1", "limits.cpu: -1 is below 0"),
        (NODE_POOL, "metadata.name", "", "metadata.name: is missing"),
        (NODE_POOL, "spec.disruption", {"consolidationPolicy": "WhenUnderutilized"}, "consolidationPolicy"),
        (NODE_POOL, "spec.disruption", {"consolidateAfter": "soon"}, "consolidateAfter: 'soon' is no duration"),
        (NODE_POOL, "spec.template.spec.expireAfter", "1d", "expireAfter: '1d' is no duration such as 1h30m or Never"),
        (NODE_POOL, "spec.template.spec.terminationGracePeriod", "Never", "'Never' is no duration such as 1h30m"),
        (NODE_POOL, "spec.disruption", {"budgets": [{"nodes": "101%"}]}, "budgets[0].nodes: '101%'"),
        (NODE_POOL, "spec.disruption", {"budgets": [{"reasons": ["Bored"]}]}, "budgets[0].reasons: 'Bored'"),
        (NODE_POOL, "spec.disruption", {"budgets": [{"schedule": "@daily"}]}, "schedule: is set together"),
        (NODE_POOL, "spec.disruption", {"budgets": [{"schedule": "at noon", "duration": "1h"}]}, "no cron schedule"),
        (NODE_POOL, "spec.disruption", {"budgets": [{"schedule": "@daily", "duration": "1s"}]}, "in hours and minutes"),
        (NODE_POOL, "spec.disruption", {"budgets": [{}] * 51}, "51 are more than 50"),
    ],
)
def test_an_invalid_pool_is_refused_with_the_rule(text: str, path: str, value: Any, finding: str) -> None:
    read_pool(yaml.safe_load(text))  # it is valid before
    with pytest.raises(InvalidInput) as caught:
        read_pool(changed(text, path, value))
    assert any(finding in found for found in caught.value.findings), caught.value.findings


def test_all_findings_come_at_once() -> None:
    data = changed(PROVISIONER, "spec.weight", 1000)
    data["spec"]["requirements"][0] |= {"operator": "Exists"}
    data["spec"]["taints"] *= 2
    with pytest.raises(InvalidInput) as caught:
        read_pool(data)
    assert len(caught.value.findings) == 3


def test_more_min_values_than_values_are_refused() -> None:
    asked = {"key": "size", "operator": "In", "values": ["a", "a"], "minValues": 2}
    data = changed(NODE_POOL, "spec.template.spec.requirements", [asked])
    with pytest.raises(InvalidInput) as caught:
        read_pool(data)
    assert caught.value.findings == ("spec.template.spec.requirements[0]: size: minValues 2 is more than the 1 values",)


def test_a_field_of_another_type_is_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_pool(changed(PROVISIONER, "spec.labels", ["a"]))
    assert "Provisioner/gpu-shared" in str(caught.value) and "$.spec.labels" in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "text", {}, {"kind": "NodePool"}, {"apiVersion": "v1", "kind": "Pod"}])
def test_other_objects_are_no_pools(data: Any) -> None:
    assert not is_pool(data) and not is_class(data)
