"""kubectl and objects: reading in every form, writing in every way, and refusals."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "plain", "labels": {"app": "plain"}},
    "spec": {
        "schedulerName": "nobody",
        "containers": [{"name": "main", "image": "busybox", "resources": {"limits": {"cpu": "100m"}}}],
    },
}


def manifest(obj: dict[str, Any], **data: str) -> str:
    return yaml.safe_dump({**obj, "data": {**obj.get("data", {}), **data}} if data else obj)


@pytest.fixture(scope="module")
def pod(kubectl_of_file):
    kubectl_of_file("apply", "-f", "-", stdin=manifest(POD))
    return "plain"


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ("", "plain   0/1     Pending   0"),
        ("wide", "NOMINATED NODE"),
        ("yaml", "image: busybox"),
        ("json", '"image": "busybox"'),
        ("name", "pod/plain"),
        ("jsonpath={.spec.containers[0].name}", "main"),
        ("go-template={{.metadata.name}}", "plain"),
        ("custom-columns=IMAGE:.spec.containers[*].image", "IMAGE\nbusybox"),
    ],
)
def test_get_in_every_output_form(kubectl, pod, form, found):
    assert found in kubectl("get", "pod", pod, *(["-o", form] if form else []))


def test_get_lists_by_label_field_and_category(kubectl, pod):
    assert "plain" in kubectl("get", "pods", "-l", "app=plain", "--show-labels")
    assert kubectl("get", "pods", "-l", "app in (other)", "-o", "name") == ""
    assert "plain" in kubectl("get", "po", "--field-selector", "status.phase=Pending", "--sort-by", ".metadata.name")
    assert "pod/plain" in kubectl("get", "all")
    assert "default" in kubectl("get", "ns")
    assert "plain" in kubectl("get", "pods", "-A", "--chunk-size", "1")


def test_get_watches(kubectl):
    watching = kubectl.popen("get", "configmaps", "-w", "--output-watch-events", "--request-timeout=20s")
    try:
        kubectl("create", "configmap", "seen", "--from-literal", "a=b")
        line = next(line for line in watching.stdout if line.split()[1] == "seen")
        assert line.split() == ["ADDED", "seen", "1", line.split()[-1]]
        kubectl("delete", "configmap", "seen")
        assert next(line for line in watching.stdout if line.startswith("DELETED")).split()[1] == "seen"
    finally:
        watching.terminate()
        watching.wait(10)
        watching.stdout.close()


def test_apply_on_the_client_side_merges_three_ways(kubectl):
    assert "created" in kubectl("apply", "-f", "-", stdin=manifest(CONFIG, b="2"))
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=manifest(CONFIG, b="2"))
    kubectl("patch", "configmap", "settings", "--type=merge", "-p", '{"data":{"theirs":"x"}}')
    assert "configured" in kubectl("apply", "-f", "-", stdin=manifest(CONFIG, c="3"))
    assert kubectl.json("get", "configmap", "settings")["data"] == {"a": "1", "c": "3", "theirs": "x"}


def test_apply_of_a_pod_twice_changes_nothing(kubectl, pod):
    before = kubectl.json("get", "pod", pod)["metadata"]
    kubectl("apply", "-f", "-", stdin=manifest(POD))
    assert kubectl.json("get", "pod", pod)["metadata"]["resourceVersion"] == before["resourceVersion"]


def test_apply_on_the_server_side_owns_fields_and_meets_conflicts(kubectl):
    one = {**CONFIG, "metadata": {"name": "owned"}, "data": {"a": "1", "b": "2"}}
    two = {**CONFIG, "metadata": {"name": "owned"}, "data": {"a": "other"}}
    kubectl("apply", "--server-side", "--field-manager=one", "-f", "-", stdin=manifest(one))
    error = kubectl.refused("apply", "--server-side", "--field-manager=two", "-f", "-", stdin=manifest(two))
    assert "conflict" in error and ".data.a" in error
    kubectl("apply", "--server-side", "--field-manager=two", "--force-conflicts", "-f", "-", stdin=manifest(two))
    assert kubectl.json("get", "configmap", "owned")["data"] == {"a": "other", "b": "2"}
    kubectl("apply", "--server-side", "--field-manager=one", "-f", "-", stdin=manifest({**one, "data": {"c": "3"}}))
    assert kubectl.json("get", "configmap", "owned")["data"] == {"a": "other", "c": "3"}


def test_create_makes_each_kind_that_kubectl_knows(kubectl):
    for words in (
        ("deployment", "made", "--image=nginx", "--replicas=0"),
        ("job", "made", "--image=done", "--", "true"),
        ("configmap", "made", "--from-literal=a=b"),
        ("secret", "generic", "made", "--from-literal=a=b"),
        ("serviceaccount", "made"),
        ("role", "made", "--verb=get", "--resource=pods"),
        ("rolebinding", "made", "--role=made", "--serviceaccount=default:made"),
        ("quota", "made", "--hard=pods=100"),
        ("service", "clusterip", "made", "--tcp=80:8080"),
        ("ingress", "made", "--rule=example.com/=made:80"),
    ):
        assert "created" in kubectl("create", *words), words
    assert "already exists" in kubectl.refused("create", "configmap", "made")
    assert "made" in kubectl("get", "deploy,job,cm,secret,sa,role,rolebinding,quota,svc,ing")
    assert kubectl("get", "secret", "made", "-o", "jsonpath={.data.a}") == "Yg=="


def test_the_three_patches(kubectl, pod):
    kubectl("patch", "pod", pod, "-p", '{"metadata":{"labels":{"strategic":"1"}}}')
    kubectl("patch", "pod", pod, "--type=merge", "-p", '{"metadata":{"labels":{"merge":"1"}}}')
    kubectl("patch", "pod", pod, "--type=json", "-p", '[{"op":"add","path":"/metadata/labels/json","value":"1"}]')
    labels = kubectl.json("get", "pod", pod)["metadata"]["labels"]
    assert {"strategic", "merge", "json"} <= labels.keys()
    strategic = '{"spec":{"containers":[{"name":"main","image":"busybox:2"}]}}'
    kubectl("patch", "pod", pod, "-p", strategic)
    containers = kubectl.json("get", "pod", pod)["spec"]["containers"]
    assert [(c["name"], c["image"]) for c in containers] == [("main", "busybox:2")]
    assert containers[0]["resources"]["limits"] == {"cpu": "100m"}


def test_label_and_annotate(kubectl, pod):
    kubectl("label", "pod", pod, "tier=gold")
    assert "already has a value" in kubectl.refused("label", "pod", pod, "tier=lead")
    kubectl("label", "pod", pod, "tier=lead", "--overwrite")
    kubectl("label", "pod", pod, "tier-")
    kubectl("annotate", "pod", pod, "note=hello")
    metadata = kubectl.json("get", "pod", pod)["metadata"]
    assert "tier" not in metadata["labels"]
    assert metadata["annotations"]["note"] == "hello"


def test_diff_shows_what_apply_would_change(kubectl):
    obj = {**CONFIG, "metadata": {"name": "differs"}}
    kubectl("apply", "-f", "-", stdin=manifest(obj))
    assert kubectl("diff", "-f", "-", stdin=manifest(obj)) == ""
    done = kubectl.run("diff", "-f", "-", stdin=manifest(obj, a="2"))
    assert done.returncode == 1
    assert '-  a: "1"' in done.stdout and '+  a: "2"' in done.stdout


def test_replace_and_dry_run(kubectl):
    obj = {**CONFIG, "metadata": {"name": "replaced"}}
    assert "server dry run" in kubectl("create", "--dry-run=server", "-f", "-", stdin=manifest(obj))
    assert "not found" in kubectl.refused("replace", "-f", "-", stdin=manifest(obj))
    kubectl("create", "-f", "-", stdin=manifest(obj))
    kubectl("replace", "-f", "-", stdin=manifest({**obj, "data": {"only": "this"}}))
    assert kubectl.json("get", "configmap", "replaced")["data"] == {"only": "this"}


def test_wrong_manifests_are_refused_with_their_place(kubectl):
    wrong: dict[str, Any] = json.loads(json.dumps(POD))
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["containers"][0]["imagee"] = "typo"
    refused = kubectl.refused("apply", "-f", "-", stdin=manifest(wrong))
    assert re.search(r'unknown field "(spec\.containers\[0\]\.)?imagee"', refused), refused
    del wrong["spec"]["containers"][0]["imagee"]
    del wrong["spec"]["containers"][0]["name"]
    refused = kubectl.refused("apply", "--validate=false", "-f", "-", stdin=manifest(wrong))
    assert "spec.containers[0].name: Required value" in refused


def test_describe_and_events(kubectl, pod):
    kubectl("get", "events")
    uid = kubectl.json("get", "pod", pod)["metadata"]["uid"]
    about = {"apiVersion": "v1", "kind": "Pod", "name": pod, "namespace": kubectl.namespace, "uid": uid}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "told"},
        "involvedObject": about,
        "reason": "Told",
        "message": "something was told",
        "type": "Warning",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 2,
    }
    kubectl("create", "-f", "-", stdin=manifest(event))
    described = kubectl("describe", "pod", pod)
    assert "something was told" in described and "busybox" in described
    assert "Told" in kubectl("get", "events", "--field-selector", f"involvedObject.name={pod}")


def test_delete(kubectl):
    kubectl("create", "configmap", "going", "--from-literal=a=b")
    kubectl("delete", "configmap", "going")
    assert "NotFound" in kubectl.refused("get", "configmap", "going")
    kubectl("delete", "configmap", "going", "--ignore-not-found")


def test_explain_reads_builtin_kinds(kubectl):
    text = kubectl("explain", "pod.spec.containers")
    assert ("<[]Container>" if kubectl.minor >= 27 else "<[]Object>") in text
    assert "imagePullPolicy" in text and "-required-" in text
    assert "maxSurge" in kubectl("explain", "deployment.spec.strategy.rollingUpdate")


def test_discovery(cluster, kubectl):
    resources = kubectl("api-resources", "-o", "wide")
    assert "deployments" in resources and "pods" in resources
    assert "apps/v1" in kubectl("api-versions")
    assert f"v{cluster.version()}" in kubectl("version")
    assert "is running at" in kubectl("cluster-info")
    assert kubectl("get", "--raw", "/readyz") == "ok"


def test_top_is_refused_cleanly(kubectl):
    for what in ("nodes", "pods"):
        assert "Metrics API not available" in kubectl.refused("top", what)


def test_newer_commands(kubectl, pod):
    kubectl.needs(28, "events, wait for a value")
    kubectl("create", "cronjob", "newer", "--image=done", "--schedule=0 0 * * *")
    kubectl("create", "poddisruptionbudget", "newer", "--selector=a=b", "--min-available=1")
    kubectl("create", "configmap", "newer", "--from-literal=a=b")
    kubectl("wait", "--for=jsonpath={.data.a}=b", "configmap/newer", "--timeout=10s")
    kubectl("events", "--for", f"pod/{pod}")
    kubectl("delete", "configmap", "newer", "--wait=false")
    kubectl("wait", "--for=delete", "configmap/newer", "--timeout=10s")
