"""Errors of a NodeFeatureRule are reported at once, with place and cure, by the API server or by gpuplane."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuplane.api.codes import CODES
from gpuplane.api.crds import crds
from gpuplane.api.manifests import check_text
from gpuplane.api.nodefeature import VALUES, NodeFeature, NodeFeatureRule
from gpuplane.api.nodefeature_checks import problems
from gpuplane.api.validation import check_object, errors
from tinykube.apiserver.structural import Structural

SAMPLE = """
apiVersion: nfd.k8s-sigs.io/v1alpha1
kind: NodeFeatureRule
metadata:
  name: my-sample-rule-object
spec:
  rules:
    - name: "my sample rule"
      labels:
        "feature.node.kubernetes.io/my-sample-feature": "true"
      matchFeatures:
        - feature: kernel.loadedmodule
          matchExpressions:
            dummy: {op: Exists}
        - feature: kernel.config
          matchExpressions:
            X86: {op: In, value: ["y"]}
"""


def rule(**fields: Any) -> dict[str, Any]:
    return {"spec": {"rules": [{"name": "r", **fields}]}}


def with_expression(**expression: Any) -> dict[str, Any]:
    return rule(matchFeatures=[{"feature": "kernel.version", "matchExpressions": {"major": expression}}])


def test_the_documented_sample_is_fine() -> None:
    (document,) = check_text(SAMPLE)
    assert document.findings == ()


@pytest.mark.parametrize(
    ("data", "code", "path"),
    [
        (with_expression(op="Exists", value=["1"]), "GP150", "major.value"),
        (with_expression(op="In"), "GP150", "major"),
        (with_expression(op="Gt", value=["1", "2"]), "GP150", "major.value"),
        (with_expression(op="GtLt", value=["1"]), "GP150", "major.value"),
        (with_expression(op="Gt", value=["x"]), "GP151", "major.value[0]"),
        (with_expression(op="Gt", value=["5.4"]), "GP151", "major.value[0]"),
        (with_expression(op="Gt", value=["a.b"], type="version"), "GP151", "major.value[0]"),
        (with_expression(op="GtLt", value=["5", "4"]), "GP151", "major.value"),
        (with_expression(op="In", value=["5"], type="version"), "GP151", "major.type"),
        (with_expression(op="InRegexp", value=["a", "(b"]), "GP152", "major.value[1]"),
        (with_expression(op="InRegexp", value=["(?=a)"]), "GP152", "major.value[0]"),
        (with_expression(op="InRegexp", value=[r"(a)\1"]), "GP152", "major.value[0]"),
        (rule(labelsTemplate="{{ range .a }}"), "GP153", "labelsTemplate"),
        (rule(varsTemplate="{{ env `A` }}"), "GP153", "varsTemplate"),
        (rule(labels={"kubernetes.io/a": "x"}), "GP154", "labels.kubernetes.io/a"),
        (rule(labels={"node-role.kubernetes.io/a": "x"}), "GP154", "labels.node-role.kubernetes.io/a"),
        (rule(labels={"a b": "x"}), "GP154", "labels.a b"),
        (rule(labels={"nvidia.com/gpu.present": "x"}), "GP154", "labels.nvidia.com/gpu.present"),
        (rule(labels={"nvidia.com/gpu.deploy.driver": "x"}), "GP154", "labels.nvidia.com/gpu.deploy.driver"),
        (rule(annotations={"profile.node.kubernetes.io/a": "x"}), "GP154", "annotations.profile.node.kubernetes.io/a"),
        (rule(taints=[{"key": "a", "effect": "NoSchedule"}]), "GP154", "taints[0].key"),
        (rule(extendedResources={"kubernetes.io/a": "1"}), "GP154", "extendedResources.kubernetes.io/a"),
        (rule(matchFeatures=[{"feature": "kernel"}]), "GP154", "matchFeatures[0].feature"),
        (rule(labels={"a": "not a value"}), "GP155", "labels.a"),
        (rule(labels={"a": "@kernel.config"}), "GP155", "labels.a"),
        (rule(annotations={"a": "x" * 1025}), "GP155", "annotations.a"),
        (rule(extendedResources={"a": "many"}), "GP155", "extendedResources.a"),
        (rule(extendedResources={"a": "1.5"}), "GP155", "extendedResources.a"),
        (rule(extendedResources={"a": "-1"}), "GP155", "extendedResources.a"),
        (
            rule(matchAny=[{"matchFeatures": [{"feature": "a.b", "matchName": {"op": "InRegexp", "value": ["("]}}]}]),
            "GP152",
            "matchAny[0].matchFeatures[0].matchName.value[0]",
        ),
    ],
)
def test_each_mistake_has_its_code_and_place(data: dict[str, Any], code: str, path: str) -> None:
    (problem,) = problems(data)
    assert problem.code == code
    assert problem.path.endswith(path)
    assert code in CODES
    (finding,) = errors(check_object({"metadata": {"name": "r"}, **data}, NodeFeatureRule))
    assert finding.code == code


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ({"op": "Gt", "value": ["9223372036854775808"]}, "9223372036854775808 does not fit into 64 bits"),
        ({"op": "Lt", "value": ["-9223372036854775809"]}, "-9223372036854775809 does not fit into 64 bits"),
        ({"op": "Gt", "value": ["9" * 5000]}, "9" * 60 + "… does not fit into 64 bits"),
        ({"op": "Gt", "value": ["x" * 5000]}, f"'{'x' * 60}…' is no whole number"),
        ({"op": "InRegexp", "value": ["(" * 4000]}, f"'{'(' * 60}…' is no regular expression: "),
    ],
)
def test_a_long_value_is_named_by_its_beginning(expression: dict[str, Any], message: str) -> None:
    (problem,) = problems(with_expression(**expression))
    assert problem.message.startswith(message)
    assert len(problem.message) < 300


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": {"a": "", "vendor.io/b": "@system.osrelease.VERSION_ID.major", "profile.node.kubernetes.io/x": "1"}},
        {"labels": {"sub.feature.node.kubernetes.io/x": "1", "nvidia.com/gpu.deploy.operands": "false"}},
        {"annotations": {"a": "any text", "vendor.io/b": "x" * 1024}},
        {"taints": [{"key": "feature.node.kubernetes.io/x", "effect": "NoExecute"}]},
        {"extendedResources": {"vendor.io/x": "2k", "y": "@kernel.version.major"}},
        {
            "matchFeatures": [
                {"feature": "cpu.cpuid", "matchName": {"op": "InRegexp", "value": ["^AVX", "[[:upper:]]\\z"]}}
            ]
        },
    ],
)
def test_what_rules_may_say(fields: dict[str, Any]) -> None:
    assert list(problems(rule(**fields))) == []


def test_a_wrong_operator_is_told_with_line_and_the_operators_there_are() -> None:
    (document,) = check_text(SAMPLE.replace("op: Exists", "op: Exist"))
    (finding,) = document.findings
    assert (finding.code, finding.line) == ("GP112", 14)
    assert finding.cure == "did you mean Exists?"


def test_groups_are_refused_aloud() -> None:
    (document,) = check_text("apiVersion: nfd.k8s-sigs.io/v1alpha1\nkind: NodeFeatureGroup\nmetadata: {name: g}\n")
    assert [finding.code for finding in document.findings] == ["GP156"]
    assert "NodeFeatureGroup" not in {made["spec"]["names"]["kind"] for made in crds()}


def server_refuses(expression: dict[str, Any]) -> bool:
    """Return whether the API server refuses a rule with this expression, by its schema alone."""
    (made,) = [made for made in crds() if made["spec"]["names"]["kind"] == "NodeFeatureRule"]
    server = Structural(made["spec"]["versions"][0]["schema"]["openAPIV3Schema"], root=True)
    return bool(server.validate({"metadata": {"name": "r"}, **with_expression(**expression)}))


@pytest.mark.parametrize("operator", VALUES)
def test_the_api_server_counts_values_as_we_do(operator: str) -> None:
    least, most = VALUES[operator]
    for count in range(4):
        values = [str(number) for number in range(count)]
        fits = count >= least and (most is None or count <= most)
        given = {"op": operator, **({"value": values} if values else {})}
        assert server_refuses(given) is not fits
        assert bool([found for found in problems(with_expression(**given)) if found.code == "GP150"]) is not fits


def test_the_api_server_refuses_operators_that_are_none() -> None:
    assert server_refuses({"op": "Equals", "value": ["1"]})
    assert server_refuses({"value": ["1"]})


def test_node_features_of_others_decode_as_documented() -> None:
    vendor = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {"name": "vendor", "labels": {"nfd.node.kubernetes.io/node-name": "node-1"}},
        "spec": {
            "features": {
                "flags": {"vendor.flags": {"elements": {"feature-x": {}}}},
                "attributes": {"vendor.config": {"elements": {"knob-b": "123"}}},
                "instances": {"vendor.devices": {"elements": [{"attributes": {"model": "dev-1000"}}]}},
            },
            "labels": {"vendor.io/feature.enabled": "true"},
        },
    }
    assert check_object(vendor) == []
    decoded = msgspec.convert(vendor, NodeFeature)
    assert set(decoded.spec.features.flags["vendor.flags"].elements) == {"feature-x"}
    assert decoded.spec.features.instances["vendor.devices"].elements[0].attributes == {"model": "dev-1000"}
