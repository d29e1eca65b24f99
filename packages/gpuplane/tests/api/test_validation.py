"""Findings: all of them at once, each with its place and a cure."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.api import codes
from gpuplane.api.clusterpolicy import ClusterPolicy
from gpuplane.api.finding import Finding
from gpuplane.api.manifests import check_text
from gpuplane.api.validation import check_object, decode, errors
from kubekit.api.core import Node
from kubekit.errors import InvalidInput


def policy(**spec):
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": spec}


def only(data) -> Finding:
    (finding,) = check_object(data)
    return finding


def test_a_good_policy_has_no_findings():
    assert check_object(policy(driver={"enabled": False}, daemonsets={"labels": {"a": "b"}})) == []


def test_all_errors_come_at_once():
    found = check_object(policy(driver={"enable": False, "version": 570}, mig={"strategy": "some"}, toolkit=[]))
    assert [(f.code, f.path) for f in found] == [
        ("GP110", "spec.driver.enable"),
        ("GP111", "spec.driver.version"),
        ("GP112", "spec.mig.strategy"),
        ("GP111", "spec.toolkit"),
    ]


@pytest.mark.parametrize(
    ("spec", "code", "path", "cure"),
    [
        ({"driver": {"enable": False}}, "GP110", "spec.driver.enable", "did you mean enabled?"),
        ({"device_plugin": {}}, "GP110", "spec.device_plugin", "did you mean devicePlugin?"),
        ({"installDir": "/x"}, "GP110", "spec.installDir", "there is spec.toolkit.installDir"),
        ({"zzz": 1}, "GP110", "spec.zzz", ""),
        ({"driver": {"enabled": "true"}}, "GP111", "spec.driver.enabled", "write true, without quotes"),
        ({"driver": {"version": 570}}, "GP111", "spec.driver.version", 'write "570", with quotes'),
        ({"ccManager": {"defaultMode": True}}, "GP111", "spec.ccManager.defaultMode", 'write "on", with quotes'),
        ({"toolkit": {"args": "-v"}}, "GP111", "spec.toolkit.args", 'write ["-v"]'),
        (
            {"driver": {"upgradePolicy": {"maxParallelUpgrades": "2"}}},
            "GP111",
            "spec.driver.upgradePolicy.maxParallelUpgrades",
            "write 2, without quotes",
        ),
        ({"driver": {"kernelModuleType": "Open"}}, "GP112", "spec.driver.kernelModuleType", "did you mean open?"),
        ({"toolkit": {"installDir": "usr"}}, "GP113", "spec.toolkit.installDir", ""),
        (
            {"driver": {"upgradePolicy": {"maxUnavailable": "half"}}},
            "GP113",
            "spec.driver.upgradePolicy.maxUnavailable",
            "",
        ),
        (
            {"driver": {"upgradePolicy": {"maxParallelUpgrades": -1}}},
            "GP114",
            "spec.driver.upgradePolicy.maxParallelUpgrades",
            "at least 0",
        ),
        ({"driver": {"env": [{"value": "x"}]}}, "GP115", "spec.driver.env[0].name", ""),
        ({"driver": {"env": [{"name": "A"}, {"name": "A"}]}}, "GP116", "spec.driver.env[1].name", ""),
        ({"driver": {"version": None}}, "GP118", "spec.driver.version", "give it a value, or leave it out"),
        (
            {"devicePlugin": {"config": {"default": "a"}}},
            "GP120",
            "spec.devicePlugin.config.default",
            "set name too",
        ),
        ({"driver": {"rdma": {"useHostMofed": True}}}, "GP121", "spec.driver.rdma.useHostMofed", "enabled: true"),
        (
            {"daemonsets": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
            "GP122",
            "spec.daemonsets.tolerations",
            "leave out its value, or operator: Equal",
        ),
        (
            {"daemonsets": {"tolerations": [{"effect": "NoSchedule"}]}},
            "GP123",
            "spec.daemonsets.tolerations",
            "operator: Exists",
        ),
        (
            {"cdi": {"enabled": False, "nriPluginEnabled": True}},
            "GP124",
            "spec.cdi.nriPluginEnabled",
            "enabled: true, or nriPluginEnabled: false",
        ),
    ],
)
def test_what_is_found_and_how_to_cure_it(spec, code, path, cure):
    finding = only(policy(**spec))
    assert (finding.code, finding.path, finding.cure) == (code, path, cure)
    assert finding.severity == "error"
    assert "\n" not in str(finding)


def test_a_driver_of_a_pool_is_checked():
    driver = {"apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": "d"}}
    found = check_object(driver | {"spec": {"driverTyp": "gpu", "default": True, "nodeSelector": {"a": "b"}}})
    assert [f.code for f in found] == ["GP110"]
    found = check_object(driver | {"spec": {"default": True, "nodeSelector": {"a": "b"}}})
    assert [f.code for f in found] == ["GP127"]
    idle = {"nodeSelector": {"a.b/c": "d"}, "gds": {"enabled": True}, "args": ["x"], "licensingConfig": {"name": "l"}}
    found = check_object(driver | {"spec": idle | {"version": "570.133.20", "repoConfig": {"name": "r"}}})
    assert {(f.code, f.severity, f.path) for f in found} == {
        ("GP140", "warning", f"spec.{path}") for path in ("gds.enabled", "args", "licensingConfig.name")
    }
    image = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "570.133.20"}
    found = check_object(driver | {"spec": idle | image})
    assert [f.path for f in found] == ["spec.gds.enabled"]


def test_combinations_that_need_the_driver():
    found = errors(check_object(policy(driver={"enabled": False}, gds={"enabled": True}, gdrcopy={"enabled": True})))
    assert [f.code for f in found] == ["GP125", "GP126"]


def test_a_null_where_there_is_a_default_is_no_error():
    assert check_object(policy(toolkit=None, gds=None, driver={"enabled": None})) == []


def test_what_has_no_effect_is_warned_of():
    finding = only(policy(dcgm={"enabled": True}))
    assert (finding.code, finding.severity, finding.path) == ("GP140", "warning", "spec.dcgm.enabled")
    assert check_object(policy(dcgm={"enabled": False})) == []


@pytest.mark.parametrize(
    ("data", "code", "cure"),
    [
        ({}, "GP101", ""),
        ([], "GP101", ""),
        ("text", "GP101", ""),
        ({"kind": "ClusterPolicy"}, "GP101", ""),
        ({"apiVersion": "nvidia.com/v2", "kind": "ClusterPolicy"}, "GP102", "did you mean nvidia.com/v1?"),
        ({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolcy"}, "GP102", "did you mean ClusterPolicy?"),
        ({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy"}, "GP103", ""),
        (policy() | {"metadata": {"name": "Cluster_Policy"}}, "GP103", "did you mean cluster-policy?"),
        (policy() | {"metadata": {"name": "p", "labels": {"a": 1}}}, "GP111", 'write "1", with quotes'),
        (policy() | {"metadata": 7}, "GP111", ""),
    ],
)
def test_objects_that_are_none(data, code, cure):
    finding = only(data)
    assert (finding.code, finding.cure) == (code, cure)


def test_other_products_kinds_are_not_ours_to_judge():
    assert check_object({"apiVersion": "apps/v1", "kind": "Deployment", "spec": 7}) == []
    assert check_object({"apiVersion": "nvidia.com/v1alpha1", "kind": "GPUCluster"}) == []


def test_decode_gives_the_object_or_every_error():
    assert decode(ClusterPolicy, policy(driver={"enabled": False})).spec.driver.enabled is False
    with pytest.raises(InvalidInput, match="ClusterPolicy has 2 errors") as caught:
        decode(ClusterPolicy, policy(driver={"enable": 1}, mig={"strategy": "x"}))
    assert len(caught.value.findings) == 2
    assert caught.value.where == "p"


def test_every_code_is_explained():
    assert codes.explain("gp110") is codes.CODES["GP110"]
    assert codes.explain("GP999") is None
    for code, entry in codes.CODES.items():
        assert re.fullmatch(r"GP\d{3}", code)
        assert entry.title
        assert entry.text.endswith(".")


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_no_data_makes_it_fail(data):
    """Validation of any data returns findings with known codes, and data without findings decodes."""
    for candidate in (data, policy() | {"spec": data}, policy(driver=data), policy() | {"metadata": data}):
        found = check_object(candidate)
        assert all(finding.code in codes.CODES for finding in found)
        if isinstance(candidate, dict) and candidate.get("kind") == "ClusterPolicy" and not errors(found):
            cleaned = {k: v for k, v in candidate.items() if v is not None}
            if cleaned.get("spec") != {"driver": None}:
                msgspec.convert(cleaned, ClusterPolicy)


# -- files -------------------------------------------------------------------------------------------------------------


def places(text):
    return [(f.line, f.column, f.code, f.path) for document in check_text(text) for f in document.findings]


def test_findings_point_at_name_or_value():
    text = """\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata:
  name: p
spec:
  driver:
    enable: false
    kernelModuleType: opensource
  validator:
    plugin:
      env: [{value: x}]
"""
    assert places(text) == [
        (7, 5, "GP110", "spec.driver.enable"),
        (8, 23, "GP112", "spec.driver.kernelModuleType"),
        (11, 13, "GP115", "spec.validator.plugin.env[0].name"),
    ]


def test_one_bad_document_hides_no_other():
    text = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nspec: {a: 1}\n---\n---\nhello\n---\na: [1\n"
    assert [code for *_, code, _ in places(text)] == ["GP103", "GP110", "GP101", "GP100"]


def test_the_same_field_twice():
    text = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec:\n  mig: {}\n  mig: {}\n"
    assert places(text) == [(6, 3, "GP117", "spec.mig")]


def test_a_list_is_taken_apart():
    text = """\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
- apiVersion: nvidia.com/v1
  kind: ClusterPolicy
  metadata: {name: p}
  spec:
    mig: {strategy: none, strateg: x}
"""
    assert [(d.kind, d.name, d.line) for d in check_text(text)] == [("ConfigMap", "", 4), ("ClusterPolicy", "p", 6)]
    assert places(text) == [(10, 27, "GP110", "spec.mig.strateg")]


def test_json_is_yaml_too():
    assert places('{"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": 1}') == [
        (1, 93, "GP111", "spec")
    ]


def test_a_second_policy_is_warned_of():
    one = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: p}\n"
    assert places(f"{one}---\n{one}") == [(5, 1, "GP141", "kind")]


@pytest.mark.parametrize("text", ["\x00", "a: !!python/object:os.system {}", "[" * 2000, "&a [*a]", "a: b: c", "%TAG"])
def test_hostile_files_give_a_finding(text):
    assert [code for *_, code, _ in places(text)][-1] in ("GP100", "GP101")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab:{}[]-&*!|>'\"\n \t#,?%@", max_size=40))
def test_no_text_makes_it_fail(text):
    check_text(text)


def test_an_empty_file_has_nothing():
    assert check_text("") == []
    assert check_text("# only a comment\n---\n") == []


def test_kinds_of_kubernetes_are_not_checked_as_ours():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"spec": 1}, Node)


@pytest.mark.parametrize(
    ("context", "at"),
    [
        ({"fsGroup": "1000"}, "fsGroup"),
        ({"runAsNonRoot": "yes"}, "runAsNonRoot"),
        ({"supplementalGroups": ["4"]}, "[0]"),
    ],
)
def test_a_security_context_of_the_wrong_type_is_found_in_the_policy(context, at):
    """Its pods would be refused long after the policy was accepted."""
    policy = {"metadata": {"name": "p"}, "spec": {"daemonsets": {"podSecurityContext": context}}}
    (found,) = check_object(policy, ClusterPolicy)
    assert found.code == "GP111" and found.path.endswith(at)
    fine = {"fsGroup": 1000, "runAsNonRoot": True, "supplementalGroups": [4], "seccompProfile": {"type": "Unconfined"}}
    assert check_object(policy | {"spec": {"daemonsets": {"podSecurityContext": fine}}}, ClusterPolicy) == []
