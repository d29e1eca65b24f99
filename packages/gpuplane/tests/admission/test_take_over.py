"""Pods of gpu-manager and gpu-admission: gpuplane's programs run in them."""

from __future__ import annotations

import copy
from importlib import resources
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.admission.review import Question, take_over_pod
from gpuplane.admission.take_over import take_over, taken_over
from gpuplane.admission.translate import Translation
from gpuplane.api.manifests import check_text
from kubekit.cel import CelProgram
from kubekit.errors import InvalidInput
from tinykube.apiserver.patch import json_patch

IMAGE = "registry/gpuplane:1"
MANAGER = yaml.safe_load("""
metadata: {name: gpu-manager-daemonset-x, namespace: kube-system}
spec:
  serviceAccount: gpu-manager
  hostPID: true
  containers:
  - image: tkestack/gpu-manager:v1.1.5
    name: gpu-manager
    securityContext: {privileged: true}
    ports: [{containerPort: 5678}]
    volumeMounts: [{name: run-dir, mountPath: /var/run}, {name: kube-api-access, mountPath: /var/run/secrets}]
    env:
    - {name: EXTRA_FLAGS, value: --logtostderr=false}
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  volumes: [{name: run-dir, hostPath: {type: Directory, path: /var/run}}, {name: kube-api-access, projected: {}}]
""")
QUOTAS = yaml.safe_load("""
metadata: {name: gpu-quota-admission-x, namespace: kube-system}
spec:
  containers:
  - image: ccr.ccs.tencentyun.com/tkeimages/gpu-quota-admission:latest
    name: gpu-quota-admission
    env: [{name: EXTRA_FLAGS, value: --incluster-mode=true}]
    volumeMounts: [{mountPath: /root/gpu-quota-admission/, name: config}]
  initContainers: [{name: init-kube-config, image: busybox}]
  volumes: [{name: config, configMap: {name: gpu-quota-admission}}]
""")


def taken(pod: dict[str, Any], flags: str = "") -> dict[str, Any]:
    pod = copy.deepcopy(pod)
    if flags:
        pod["spec"]["containers"][0]["env"][0]["value"] = flags
    done: dict[str, Any] = json_patch(pod, list(take_over(pod, IMAGE).patch))
    return done


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {v["name"]: v["valueFrom"]["fieldRef"]["fieldPath"] for v in container["env"] if "valueFrom" in v}


def test_gpu_managers_pod_serves_its_metrics_without_a_way_to_the_host() -> None:
    spec = taken(MANAGER)["spec"]
    [container] = spec["containers"]
    assert (container["image"], container["command"], container["args"]) == (
        IMAGE,
        ["gpuplane"],
        ["run", "gpu-manager"],
    )
    assert "hostPID" not in spec and [volume["name"] for volume in spec["volumes"]] == ["kube-api-access"]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["kube-api-access"], "its account's token"
    assert "privileged" not in container["securityContext"] and container["securityContext"]["runAsNonRoot"]
    assert variables(container)["NODE_NAME"] == "spec.nodeName" and variables(container)["POD_IP"] == "status.podIP"
    assert container["ports"] == [{"containerPort": 5678}]


def test_gpu_admissions_pod_runs_the_extender() -> None:
    spec = taken(QUOTAS)["spec"]
    [container] = spec["containers"]
    assert (container["image"], container["args"]) == (IMAGE, ["run", "scheduler", "--plain-http"])
    assert {"POD_NAME", "POD_NAMESPACE", "POD_IP"} <= variables(container).keys()
    assert spec["initContainers"] == QUOTAS["spec"]["initContainers"] and spec["volumes"] == QUOTAS["spec"]["volumes"]


@pytest.mark.parametrize("pod", [MANAGER, QUOTAS], ids=["gpu-manager", "gpu-admission"])
def test_a_second_time_nothing_changes(pod: dict[str, Any]) -> None:
    assert take_over(taken(pod), IMAGE).patch == ()


@pytest.mark.parametrize(
    ("pod", "flags", "args"),
    [
        (MANAGER, "--query-port=6000 --v=5", ["run", "gpu-manager", "--port=6000"]),
        (MANAGER, "--query-port 5999 --v 5 --logtostderr", ["run", "gpu-manager", "--port=5999"]),
        (QUOTAS, "--address=0.0.0.0:3457 --logtostderr=true", ["run", "scheduler", "--plain-http", "--port=3457"]),
        (MANAGER, "--port=5700 --log_dir /var/log --share-mode", ["run", "gpu-manager", "--port=5700"]),
        (MANAGER, "--share-mode=true --cgroup-driver=systemd --driver nvidia", ["run", "gpu-manager"]),
        (MANAGER, "--kubeconfig=/root/.kube/config --master=https://10.0.0.1:6443", ["run", "gpu-manager"]),
        (MANAGER, "--container-runtime-endpoint=/run/containerd/containerd.sock", ["run", "gpu-manager"]),
        (MANAGER, "--query-addr=0.0.0.0 --hostname-override=$(NODE_NAME)", ["run", "gpu-manager"]),
    ],
)
def test_flags_act(pod: dict[str, Any], flags: str, args: list[str]) -> None:
    assert taken(pod, flags)["spec"]["containers"][0]["args"] == args


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--share-mode=false", "--share-mode=false is not what gpuplane, which runs here, does"),
        ("--share-mode false", "false is no flag"),
        ("--driver=dummy", "--driver=dummy is not what gpuplane"),
        ("--driver", "--driver= is not what gpuplane"),
        ("--query-addr=127.0.0.1", "--query-addr=127.0.0.1 is not what gpuplane"),
        ("--hostname-override=gpu-7", "--hostname-override=gpu-7 is not what gpuplane"),
        ("--node-labels=team=a", "--node-labels=team=a is not what gpuplane"),
        ("--volume-config=/mine.conf", "--volume-config=/mine.conf is not what gpuplane"),
        ("--sample-period=5", "--sample-period has no meaning"),
        ("--query-port=x", "names no port"),
        ("--query-port", "names no port"),
        ("--query-port=0", "names no port"),
        ("--query-port=65536", "names no port"),
        ("--query-port=٣", "names no port"),
        ("--v=5 stray", "stray is no flag"),
        ("--log-dir='/var/log", "open quote"),
    ],
)
def test_a_flag_without_a_meaning_is_refused_by_name(flags: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        taken(MANAGER, flags)
    pod = copy.deepcopy(MANAGER)
    pod["spec"]["containers"][0]["env"][0]["value"] = flags
    asked = msgspec.convert({"uid": "1", "kind": {"kind": "Pod"}, "object": pod}, Question)
    verdict = take_over_pod(asked, IMAGE)
    assert verdict.refused.startswith("GP209 ") and why in verdict.refused


@pytest.mark.parametrize(
    "image",
    ["busybox", "tkestack/gpu-manager-ui:1", "gpu-manager", "mine/gpu-manager:v2", "registry/team/gpu-admission"],
)
def test_a_tenants_own_image_stays_also_with_the_same_name(image: str) -> None:
    assert take_over({"spec": {"containers": [{"name": "a", "image": image}]}}, IMAGE) == Translation()


@pytest.mark.parametrize(
    "image", ["tkestack/gpu-manager", "mirror:5000/tkestack/gpu-manager@sha256:1", "a/tkeimages/gpu-manager:2"]
)
def test_the_published_image_is_known_in_every_registry(image: str) -> None:
    pod = copy.deepcopy(MANAGER)
    pod["spec"]["containers"][0]["image"] = image
    assert taken(pod)["spec"]["containers"][0]["image"] == IMAGE


@pytest.mark.parametrize(("before", "refused"), [("busybox", True), (MANAGER["spec"]["containers"][0]["image"], False)])
def test_a_pod_that_runs_gets_no_image_of_gpu_manager_afterwards(before: str, refused: bool) -> None:
    old = copy.deepcopy(MANAGER)
    old["spec"]["containers"][0]["image"] = before
    question = {"uid": "1", "kind": {"kind": "Pod"}, "operation": "UPDATE", "object": MANAGER, "oldObject": old}
    verdict = take_over_pod(msgspec.convert(question, Question), IMAGE)
    why = "GP210 container gpu-manager: a pod that is there already cannot get tkestack/gpu-manager:v1.1.5"
    assert verdict.refused.startswith(why) == bool(verdict.refused) == refused and not verdict.patch


def webhook() -> dict[str, Any]:
    manifest = resources.files("gpuplane.operator") / "install" / "admission" / "30-webhooks.yaml"
    configuration = next(iter(yaml.safe_load_all(manifest.read_text())))
    return next(one for one in configuration["webhooks"] if one["name"].startswith("gpu-manager."))


def test_the_webhook_is_asked_about_images_of_gpu_manager_and_about_no_others() -> None:
    [condition] = webhook()["matchConditions"]

    def asks(spec: dict[str, Any]) -> list[bool]:
        objects = ({"spec": spec}, {"spec": {"template": {"spec": spec}}})
        return [CelProgram(condition["expression"], ["object"])({"object": one}) for one in objects]

    assert asks(MANAGER["spec"]) == asks(QUOTAS["spec"]) == [True, True]
    assert asks({"containers": [{"name": "filled in later"}]}) == [False, False]
    assert asks({"containers": [{"name": "a"}, MANAGER["spec"]["containers"][0]]}) == [True, True]
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in webhook()["rules"])


def test_the_author_is_told_what_runs_instead() -> None:
    text = "container gpu-manager: gpuplane run gpu-manager runs here, which serves the metrics"
    [warning] = take_over(MANAGER, IMAGE).warnings
    assert warning.startswith(text)
    daemonset = {"spec": {"template": {"spec": MANAGER["spec"]}}}
    asked = msgspec.convert({"uid": "1", "kind": {"kind": "DaemonSet"}, "object": daemonset}, Question)
    verdict = take_over_pod(asked, IMAGE)
    assert verdict.warnings == (warning,) and not verdict.patch and not verdict.refused


def test_check_says_of_the_manifests_what_runs_and_which_flag_is_wrong() -> None:
    spec = copy.deepcopy(MANAGER["spec"])
    spec["containers"][0]["env"][0]["value"] = "--share-mode=false"
    text = yaml.safe_dump({"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {"template": {"spec": spec}}})
    [document] = check_text(text, taken_over)
    path = "spec.template.spec.containers[0]"
    assert {(found.code, found.path, found.severity) for found in document.findings} >= {
        ("GP210", f"{path}.image", "warning"),
        ("GP209", f"{path}.env", "error"),
    }
    assert (
        taken_over({"kind": "DaemonSet", "spec": {"template": {"spec": {"containers": [{"image": "busybox"}]}}}}) == []
    )
    assert taken_over({"kind": "ConfigMap"}) == [] and taken_over(None) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": 5},
        {"containers": {"a": 1}},
        {"containers": ["a", None]},
        {"containers": [{"image": "tkestack/gpu-manager:1", "env": {"EXTRA_FLAGS": "--v=5"}}]},
        {"containers": [{"image": "tkestack/gpu-manager:1", "env": ["EXTRA_FLAGS"]}]},
        {"containers": [{"image": "tkestack/gpu-manager:1", "env": [{"name": "EXTRA_FLAGS", "value": 5}]}]},
    ],
)
def test_check_answers_for_a_manifest_that_no_api_server_would_take(spec: dict[str, Any]) -> None:
    for document in (
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {"template": {"spec": spec}}},
    ):
        check_text(yaml.safe_dump(document), taken_over)


def test_flags_that_are_no_text_are_named() -> None:
    spec = {"containers": [{"image": "tkestack/gpu-manager:1", "env": [{"name": "EXTRA_FLAGS", "value": 5}]}]}
    assert "5 is no text" in next(
        one.message for one in taken_over({"kind": "Pod", "spec": spec}) if one.code == "GP209"
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
VARIABLES = st.fixed_dictionaries({"name": st.just("EXTRA_FLAGS") | JSON, "value": JSON})
CONTAINERS = st.fixed_dictionaries(
    {"image": st.just("tkestack/gpu-manager:1") | JSON, "env": st.lists(VARIABLES | JSON, max_size=3) | JSON}
)
SPECS = st.fixed_dictionaries({"containers": st.lists(CONTAINERS | JSON, max_size=3) | JSON}) | JSON


@given(JSON | st.fixed_dictionaries({"kind": st.just("Pod") | JSON, "spec": SPECS}))
def test_no_document_ends_the_check(document: Any) -> None:
    assert all(found.code in ("GP209", "GP210") for found in taken_over(document))
