"""Files and kinds that are not gpuplane's, in folders that people give to `gpuplane check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.api.chartvalues import CHART_KEYS
from gpuplane.api.effects import fields
from gpuplane.api.manifests import Document, check_text
from gpuplane.api.recognition import check_kind
from gpuplane.api.validation import KINDS
from kubekit.api.kinds import RESOURCES

CHART = Path(__file__).parents[4] / "deploy/chart/gpuplane"
THEIRS = Path(__file__).parents[4] / "tests/chart/charts"
PROVISIONER = """\
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: gpu}
spec:
  ttlSecondsAfterEmpty: 300
  limits: {resources: {cpu: 1000}}
  ttlSecondsAfterEmpty: 30
"""
VALUES = """\
config:
  map:
    default: |-
      version: v1
    shared: |-
      version: v1
      sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}
nodeSelector: {pool: gpu}
"""


def only(text: str) -> Document:
    (found,) = check_text(text)
    return found


def test_a_key_that_stands_twice_is_a_warning_which_says_that_the_last_one_counts() -> None:
    found = [finding for finding in only(PROVISIONER).findings if finding.code == "GP117"]
    assert [(one.line, one.severity, one.path) for one in found] == [(7, "warning", "spec.ttlSecondsAfterEmpty")]
    assert found[0].message == "stands in line 5 already; the last one counts"


def test_a_kind_that_nothing_serves_is_named_with_the_program_that_defines_it() -> None:
    (found,) = only("apiVersion: karpenter.sh/v1beta1\nkind: NodePool\nmetadata: {name: gpu}\n").findings
    assert (found.code, found.severity, found.line) == ("GP104", "warning", 2)
    assert found.message == "neither Kubernetes nor gpuplane serves NodePool of karpenter.sh/v1beta1"
    assert "Karpenter" in found.cure and "NodePool and NodeClaim of v1" in found.cure


@pytest.mark.parametrize(
    ("place", "code", "cure"),
    [
        (("apps/v1", "Deploymnt"), "GP102", "did you mean Deployment?"),
        (("v1", "pod"), "GP102", "did you mean Pod?"),
        (("v1", "Gadget"), "GP104", "install the program"),
        (("extensions/v1beta1", "Deployment"), "GP104", "did you mean apps/v1?"),
        (("apps/v1beta2", "DaemonSet"), "GP104", "did you mean apps/v1?"),
        (("extensions/v1beta1", "Ingress"), "GP104", "did you mean networking.k8s.io/v1?"),
        (("nvidia.com/v1alpha1", "GPUCluster"), "GP104", "install the program"),
        (("monitoring.coreos.com/v1", "ServiceMonitor"), "GP104", "the Prometheus operator"),
    ],
)
def test_unknown_kinds_and_versions_are_named(place: tuple[str, str], code: str, cure: str) -> None:
    (found,) = check_kind(*place)
    assert found.code == code and cure in found.cure


@pytest.mark.parametrize(
    "place",
    [
        *RESOURCES,
        ("autoscaling/v1", "HorizontalPodAutoscaler"),
        ("resource.k8s.io/v1beta1", "ResourceClaim"),
        ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema"),
        ("networking.k8s.io/v1", "ServiceCIDR"),
    ],
)
def test_what_kubernetes_serves_is_no_finding(place: tuple[str, str]) -> None:
    assert check_kind(*place) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.RESOURCE.kind)
def test_our_own_kinds_are_not_called_unknown(kind: type) -> None:
    text = f"apiVersion: {kind.RESOURCE.api_version}\nkind: {kind.RESOURCE.kind}\nmetadata: {{name: a}}\n"  # type: ignore[attr-defined]
    assert "GP104" not in [finding.code for finding in only(text).findings]


def test_values_of_a_chart_are_recognised_and_the_configurations_in_them_checked() -> None:
    found = only(VALUES)
    assert found.note.startswith("values of a Helm chart")
    (wrong,) = found.findings
    assert (wrong.code, wrong.path, wrong.line) == ("GP160", "config.map.shared", 5)
    assert "replicas: must be a number from 2" in wrong.message


@pytest.mark.parametrize("chart", ["gpu-operator", "device-plugin"])
def test_whole_values_files_of_other_charts_are_recognised(chart: str) -> None:
    found = only((THEIRS / f"{chart}.json").read_text())
    assert found.note.startswith("values of a Helm chart") and found.findings == ()


def test_the_names_of_values_are_those_of_the_chart() -> None:
    import json

    named = set(json.loads((CHART / "values.schema.json").read_text())["properties"])
    assert named - {path.partition(".")[0] for path, _ in fields()} == set(CHART_KEYS)


@pytest.mark.parametrize(
    ("text", "note", "code"),
    [
        ('{"kind": "Policy", "apiVersion": "v1", "extenders": []}', "a policy of kube-scheduler", "GP105"),
        (
            "apiVersion: kubescheduler.config.k8s.io/v1beta2\nkind: KubeSchedulerConfiguration\n",
            "a configuration of kube-scheduler",
            "GP105",
        ),
        (
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n",
            "a configuration of kube-scheduler",
            "",
        ),
        ("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n", "a file of kustomize", ""),
        ("apiVersion: v1\nkind: Config\nclusters: []\n", "a kubeconfig", ""),
        ('{"LaunchTemplateName": "a", "LaunchTemplateData": {}}', "a launch template of EC2", ""),
        ("version: v1\nflags: {}\n", "a configuration of the device plugin", ""),
    ],
)
def test_a_file_that_no_api_server_stores_is_named(text: str, note: str, code: str) -> None:
    found = only(text)
    assert found.note == note
    assert [finding.code for finding in found.findings] == ([code] if code else [])


def test_something_else_without_kind_is_still_no_object() -> None:
    assert [finding.code for finding in only("spec: {}\n").findings] == ["GP101"]


SCHEDULER = """\
apiVersion: v1
kind: Pod
metadata: {name: kube-scheduler}
spec:
  containers:
  - name: kube-scheduler
    image: registry/kube-scheduler:v1.19.8
    command:
    - kube-scheduler
    - --leader-elect=true
    - --policy-config-file=/etc/kubernetes/policy.json
    - --use-legacy-policy-config=true
  - name: other
    image: mine
    args: [--policy-config-file=x]
"""


def test_flags_that_kube_scheduler_has_no_more_are_named_at_their_place() -> None:
    found = only(SCHEDULER).findings
    assert [(one.code, one.severity, one.line, one.path) for one in found] == [
        ("GP105", "warning", 11, "spec.containers[0].command[2]"),
        ("GP105", "warning", 12, "spec.containers[0].command[3]"),
    ]
    assert found[0].message == "kube-scheduler does not start with --policy-config-file since 1.23"
    assert "--print-config kube" in found[0].cure


@pytest.mark.parametrize(
    ("image", "command", "count"),
    [
        ("registry/kube-scheduler@sha256:1", "[/bin/sh]", 1),
        ("mine", "[/usr/local/bin/kube-scheduler]", 1),
        ("mine/kube-scheduler-ui:1", "[/bin/sh]", 0),
        ("5", "5", 0),
    ],
)
def test_kube_scheduler_is_known_by_its_image_or_program(image: str, command: str, count: int) -> None:
    container = f"{{name: a, image: {image}, command: {command}, args: [--policy-configmap, gpu]}}"
    text = f"apiVersion: apps/v1\nkind: Deployment\nspec: {{template: {{spec: {{containers: [{container}]}}}}}}\n"
    found = [one for one in only(text).findings if one.code == "GP105"]
    assert [one.path for one in found] == ["spec.template.spec.containers[0].args[0]"] * count


@pytest.mark.parametrize("spec", ["5", "{containers: 5}", "{containers: [5, {command: {a: 1}}]}", "{template: 5}"])
def test_pods_that_no_api_server_would_take_end_no_check(spec: str) -> None:
    for kind in ("Pod", "Deployment"):
        only(f"apiVersion: v1\nkind: {kind}\nspec: {spec}\n")
