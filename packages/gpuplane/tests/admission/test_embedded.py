"""Admission as a user has it: an embedded cluster, `gpuplane install --admission`, kubectl with manifests of old."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane import names

MANIFESTS = Path(__file__).parent / "kubernetes-alpha"
SHARED = Path(__file__).parents[5] / "shared" / "manifests" / "kubernetes-alpha"
NAMES = ("gpu-pod", "gpu-pod-affinity", "gpu-pod-libraries")
# All on one cluster, in this order.
pytestmark = pytest.mark.deadline(240)


class Cluster:
    """`k` has a K80 board, two GPUs; `a` has eight A100."""

    def __init__(self, home: Path) -> None:
        self.environment = {
            **os.environ,
            "GPUPLANE_HOME": str(home),
            "HOME": str(home),
            "NO_COLOR": "1",
            "COLUMNS": "80",
        }
        nodes = ("--node", "k=k80-board-ubuntu22", "--node", "a=a100-ubuntu22")
        described = json.loads(self.gpuplane("up", *nodes, "--detach", "-q", "-o", "json"))
        self.environment["KUBECONFIG"] = described["kubeconfig"]
        self.roots = Path(described["directory"]) / "nodes"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(arguments, env=self.environment, capture_output=True, text=True, timeout=120, check=False)

    def gpuplane(self, *arguments: str, code: int = 0) -> str:
        done = self.run(sys.executable, "-m", "gpuplane", *arguments)
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def kubectl(self, *arguments: str, code: int = 0) -> str:
        done = self.run("kubectl", *arguments)
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on the path")
    made = Cluster(tmp_path_factory.mktemp("a"))
    try:
        made.gpuplane("install", "--admission", "closed", "--wait", "-q", "--timeout", "90")
        made.kubectl("-n", names.OPERATOR_NAMESPACE, "wait", "--for=condition=Available", "--timeout=60s",
                     "deployment/gpuplane-admission")  # fmt: skip
        yield made
    finally:
        made.gpuplane("down", "-q")


@pytest.fixture(scope="module")
def old_pods(cluster: Cluster) -> Callable[[str], dict[str, Any]]:
    """The pods of the three manifests, running."""
    for name in NAMES:
        cluster.kubectl("apply", "-f", str(MANIFESTS / f"{name}.yaml"))
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=60s", *(f"pod/{name}" for name in NAMES))

    def get(name: str) -> dict[str, Any]:
        pod: dict[str, Any] = json.loads(cluster.kubectl("get", "pod", name, "-o", "json"))
        return pod

    return get


@pytest.mark.parametrize("name", NAMES)
def test_the_manifests_are_the_ones_that_users_have(name: str) -> None:
    if not SHARED.exists():
        pytest.skip("the collection of users' manifests is not here")
    assert (SHARED / f"{name}.yaml").read_bytes() == (MANIFESTS / f"{name}.yaml").read_bytes()


def visible(cluster: Cluster, pod: str, container: str = "gpu-container-1") -> list[str]:
    """The GPUs that a program in the container finds."""
    out = cluster.kubectl("exec", pod, "-c", container, "--", "/bin/sh", "-c", "ls /dev")
    return sorted(name for name in out.split() if name.startswith("nvidia") and name[6:].isdigit())


def test_each_container_sees_as_many_gpus_as_it_asked_for(cluster: Cluster, old_pods: Any) -> None:
    first, second = visible(cluster, "gpu-pod"), visible(cluster, "gpu-pod", "gpu-container-2")
    assert (len(first), len(second)) == (2, 3) and not set(first) & set(second)
    assert len(visible(cluster, "gpu-pod-libraries")) == 1


def test_the_affinity_of_old_finds_the_k80(cluster: Cluster, old_pods: Any) -> None:
    assert old_pods("gpu-pod-affinity")["spec"]["nodeName"] == "k"
    label = json.loads(cluster.kubectl("get", "node", "k", "-o", "json"))["metadata"]["labels"]
    assert label[names.ALPHA_GPU_NAME_LABEL] == "Tesla-K80"
    assert len(visible(cluster, "gpu-pod-affinity")) == 2


def test_drivers_directories_are_not_made_on_the_nodes(cluster: Cluster, old_pods: Any) -> None:
    assert [mount["name"] for mount in old_pods("gpu-pod-libraries")["spec"]["containers"][0]["volumeMounts"][:2]] == [
        "bin",
        "lib",
    ]
    for node in ("a", "k"):
        assert not list((cluster.roots / node / "root").glob("usr/lib/nvidia-375*"))


@pytest.mark.parametrize("name", NAMES)
def test_applying_the_unchanged_manifest_again_changes_nothing(cluster: Cluster, old_pods: Any, name: str) -> None:
    before = old_pods(name)
    cluster.kubectl("apply", "-f", str(MANIFESTS / f"{name}.yaml"))
    after = old_pods(name)
    assert before["spec"] == after["spec"] and before["metadata"]["uid"] == after["metadata"]["uid"]


def test_it_says_why_a_pod_can_never_run(cluster: Cluster, tmp_path: Path) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "never"},
        "spec": {"containers": [
            {"name": "c", "image": "pause", "resources": {"limits": {names.VCUDA_CORE: "150"}}}
        ]},
    }  # fmt: skip
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    said = cluster.kubectl("apply", "-f", str(tmp_path / "pod.yaml"), code=1)
    assert "GP201" in said and "150 can never be met" in said


def test_explain_on_a_running_cluster(cluster: Cluster, old_pods: Any) -> None:
    cluster.kubectl("run", "many", "--image=pause", "--overrides", json.dumps({
        "spec": {"containers": [{"name": "many", "image": "pause", "resources": {"limits": {names.GPU_RESOURCE: "4"}}}]}
    }))  # fmt: skip
    told = json.loads(cluster.gpuplane("explain", "many", "-n", "default", "-o", "json"))
    assert (told["kind"], told["apiVersion"]) == ("Explanation", "cli.gpuplane.dev/v1")
    assert (told["state"], told["canEverRun"], told["nodes"], told["gpus"]) == ("waiting", True, 2, 10)
    first = told["cures"][0]
    assert first["change"] == "ask 2 instead of 4 GPUs"
    assert re.fullmatch(r"a/\d,\d", first["place"]), "the extender has placed the others, so their GPUs are known"
    text = cluster.gpuplane("explain", "pod/many")
    assert "4 whole GPUs asked, 2 wholly free" in text and "add a node like a" in text
    assert "on k for" in cluster.gpuplane("explain", "default/gpu-pod-affinity")
    assert "there is no pod nosuch" in cluster.gpuplane("explain", "nosuch", code=1)
    assert "names no pod" in cluster.gpuplane("explain", "a", "b", "c", code=2)
    cluster.kubectl("delete", "pod", "many", "--wait=false", "--force")


def test_without_a_cluster_to_ask_it_exits_with_3(cluster: Cluster, tmp_path: Path) -> None:
    away = tmp_path / "config"
    away.write_text(json.dumps({
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }))  # fmt: skip
    assert "127.0.0.1:9" in cluster.gpuplane("explain", "p", "--kubeconfig", str(away), code=3)


def test_uninstall_leaves_nothing(cluster: Cluster) -> None:
    cluster.kubectl("delete", "pods", "--all", "--force", "--wait=false")
    cluster.gpuplane("uninstall", "-q")
    webhooks = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
    kinds = f"{webhooks},validatingadmissionpolicies,clusterroles,namespaces"
    assert "gpu" not in cluster.kubectl("get", kinds, "-o", "name")
    for node in json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]:
        assert not [label for label in node["metadata"]["labels"] if "nvidia" in label]
