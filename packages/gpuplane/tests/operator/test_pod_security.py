"""Pods of gpuplane have no more of their node than they need: each pod that is rendered, with a table of exceptions."""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

import msgspec
import pytest
import yaml

from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import installation
from gpuplane.operator.manifest import parse
from gpuplane.operator.operands import manifests
from gpuplane.operator.stages import OPERANDS
from kubekit.api.quantity import parse_quantity

OWNER: Final = {"kind": "ClusterPolicy", "name": "p", "uid": "1", "apiVersion": "nvidia.com/v1", "controller": True}
IMAGE: Final = "registry.example.com:5000/a/gpuplane@sha256:" + "a" * 64
THEIRS: Final = {"nvidia-driver-ctr": "the image, its entry point and its needs are NVIDIA's"}

# Restrictions that a container lacks, and the reason.
PRIVILEGED: Final = {
    **THEIRS,
    "driver": "loads kernel modules and mounts the driver's root for the host",
    "driver-before": "looks for loaded modules and mounts of the host",
    "container-toolkit": "writes the runtime's configuration and signals or restarts the runtime",
    "operator-validator": "opens every GPU before a CDI specification is proved",
    "device-plugin": "opens every GPU, reads the processes of other containers, serves in the kubelet's directory",
    "mps-control-daemon": "mounts shared memory for all containers and serves processes of other containers",
    "dcgm-exporter-privileged": "has its GPUs from the host where no container runtime adds them by RuntimeClass",
    "gpu-feature-discovery": "opens every GPU and MIG device, also those that appear while it runs",
}
WRITES_ITS_ROOT: Final = THEIRS
NO_REQUESTS: Final = THEIRS
NO_MEMORY_LIMIT: Final = {
    **THEIRS,
    "driver": "compiles kernel modules, which takes as much memory as the compiler likes",
    "mps-control-daemon": "its servers hold memory of their clients, which would all end with it",
}
ROOT: Final = {
    "dcgm-exporter": "the kubelet's socket of pod resources is root's",
    "nvidia-cuda-validator": "the image of the policy may be one that runs as root, as the pods of tenants do",
}
MOUNTS_FOR_THE_HOST: Final = {
    **THEIRS,
    "driver": "the driver's root is a mount, which the host's programs and all containers use",
    "driver-before": "takes such a root of an earlier driver away",
    "device-plugin": "the pages that containers of shares may write lie on small file systems of their own",
    "mps-control-daemon": "the shared memory of clients is a file system of its own",
}
HOST_NAMESPACES: Final = {
    "driver": "finds the processes that hold a driver",
    "driver-before": "finds the processes that hold a driver",
    "container-toolkit": "signals the runtime's process",
    "device-plugin": "NVML tells who uses a GPU as a process of the host",
    "mps-control-daemon": "clients are processes of other containers",
    **THEIRS,
}
# Of one node, together. A node that is full to this margin loses a pod of a tenant to the operands' priority.
NODE_MILLI_CPU, NODE_MEMORY_MIB = 60, 400

Pod = dict[str, Any]


def pods(image: str = IMAGE) -> list[Pod]:
    """The specs of all pods that the installation, the operator and the validator make."""
    folder = resources.files("gpuplane.operator").joinpath("operands")
    drivers = [
        one for name in ("0200-driver.yaml", "0210-driver-image.yaml") for one in parse((folder / name).read_text())
    ]
    gates = [operand.gate for operand in OPERANDS]
    operands = manifests(ClusterPolicySpec(), {}, gates, image=image, owner=OWNER, shared=True)
    own = installation(
        image=image, pod_scheduler=True, autoscaler=AutoscalerInstall({"CLUSTER_NAME": "-"}), dashboard=()
    )
    second = parse(resources.files("gpuplane.scheduler").joinpath("manifests/second.yaml").read_text())
    made = [
        one["spec"]["template"]["spec"]
        for one in (*own, *operands, *drivers, *second)
        if one.get("kind") in ("Deployment", "DaemonSet", "Job")
    ]
    validation = resources.files("gpuplane.validator").joinpath("validation-pod.yaml").read_text()
    return [*made, yaml.safe_load(validation)["spec"]]


def containers(pod: Pod) -> list[dict[str, Any]]:
    return [*pod["containers"], *pod.get("initContainers", ())]


ALL: Final = [(pod, container) for pod in pods() for container in containers(pod)]
CONFINED: Final = [(pod, one) for pod, one in ALL if one["name"] not in PRIVILEGED]


def lacking(field: Any) -> set[str]:
    """The names of the containers for which `field(container)` has no answer."""
    return {one["name"] for _, one in ALL if not field(one)}


def test_no_other_container_is_privileged() -> None:
    found = {one["name"] for _, one in ALL if one.get("securityContext", {}).get("privileged")}
    assert found == PRIVILEGED.keys()


def test_our_containers_write_nothing_into_their_root() -> None:
    assert lacking(lambda one: one["securityContext"].get("readOnlyRootFilesystem")) == WRITES_ITS_ROOT.keys()


def test_every_pod_has_the_runtimes_filter_of_system_calls() -> None:
    assert not [pod for pod in pods() if pod["securityContext"].get("seccompProfile") != {"type": "RuntimeDefault"}]


def test_a_policys_security_context_leaves_the_filter() -> None:
    spec = msgspec.convert({"daemonsets": {"podSecurityContext": {"fsGroup": 5}}}, ClusterPolicySpec)
    daemonsets = [m for m in manifests(spec, {}, image="i", owner=OWNER) if m["kind"] == "DaemonSet"]
    found = [one["spec"]["template"]["spec"]["securityContext"] for one in daemonsets]
    assert found and all(one == {"fsGroup": 5, "seccompProfile": {"type": "RuntimeDefault"}} for one in found)


def test_only_who_looks_at_other_processes_shares_their_namespace() -> None:
    found = {one["name"] for pod, one in ALL if any(pod.get(field) for field in ("hostPID", "hostIPC", "hostNetwork"))}
    assert found == HOST_NAMESPACES.keys()


def test_only_who_mounts_for_the_host_passes_mounts_on_to_it() -> None:
    found = {
        one["name"]
        for _, one in ALL
        if any(mount.get("mountPropagation") == "Bidirectional" for mount in one.get("volumeMounts", ()))
    }
    assert found == MOUNTS_FOR_THE_HOST.keys()


@pytest.mark.parametrize(("pod", "container"), CONFINED, ids=[one["name"] for _, one in CONFINED])
def test_the_others_have_no_capability(pod: Pod, container: dict[str, Any]) -> None:
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}


def test_the_others_are_no_root() -> None:
    assert {one["name"] for _, one in CONFINED if not one["securityContext"].get("runAsNonRoot")} == ROOT.keys()


def test_an_exporter_without_privilege_has_no_part_of_the_host_but_three_directories() -> None:
    exporter, *_ = [pod for pod, one in CONFINED if one["name"] == "dcgm-exporter"]
    assert [one["hostPath"]["path"] for one in exporter["volumes"]] == [
        "/var/lib/kubelet/pod-resources",
        "/var/run/cdi",
        "/var/lib/gpuplane/limits",
    ]
    assert all(mount["readOnly"] for mount in exporter["containers"][0]["volumeMounts"])


def test_every_container_requests_processor_and_memory() -> None:
    assert lacking(lambda one: {"cpu", "memory"} <= one.get("resources", {}).get("requests", {}).keys()) == set(
        NO_REQUESTS
    )


def test_every_container_has_a_limit_of_memory() -> None:
    """None of processors: a device plugin that is throttled holds up the pods of its node."""
    assert lacking(lambda one: one.get("resources", {}).get("limits", {}).get("memory")) == NO_MEMORY_LIMIT.keys()
    assert not [one["name"] for _, one in ALL if "cpu" in one.get("resources", {}).get("limits", {})]


def test_the_operands_of_a_node_request_little() -> None:
    every = manifests(ClusterPolicySpec(), {}, image=IMAGE, owner=OWNER)
    [driver] = parse(resources.files("gpuplane.operator").joinpath("operands/0200-driver.yaml").read_text())
    asked = [
        one["resources"]["requests"]
        for manifest in (*every, driver)
        if manifest["kind"] == "DaemonSet"
        for one in containers(manifest["spec"]["template"]["spec"])
    ]
    assert len(asked) == 8 + 1, "of the two exporters a node has one"
    assert 1000 * sum(parse_quantity(one["cpu"]) for one in asked) <= NODE_MILLI_CPU
    assert sum(parse_quantity(one["memory"]) for one in asked) <= NODE_MEMORY_MIB << 20


@pytest.mark.parametrize("component", ["toolkit", "devicePlugin", "dcgmExporter", "gfd", "validator"])
def test_a_policy_sets_the_resources_of_an_operand(component: str) -> None:
    wanted = {"requests": {"cpu": "1m"}, "limits": {"memory": "9Gi"}}
    spec = msgspec.convert({component: {"resources": wanted}}, ClusterPolicySpec)
    every = [m for m in manifests(spec, {}, image="i", owner=OWNER) if m["kind"] == "DaemonSet"]
    found = [one["resources"] for m in every for one in m["spec"]["template"]["spec"]["containers"]]
    assert wanted in found


def test_an_image_by_digest_is_the_image_of_every_pod() -> None:
    """Of the pods that the installation and the operator make, and of the policy on the validation pod."""
    gates = [operand.gate for operand in OPERANDS]
    own = installation(
        image=IMAGE, pod_scheduler=True, autoscaler=AutoscalerInstall({"CLUSTER_NAME": "-"}), dashboard=()
    )
    every = [*own, *manifests(ClusterPolicySpec(), {}, gates, image=IMAGE, owner=OWNER)]
    made = [m for m in every if m["kind"] in ("Deployment", "DaemonSet")]
    assert {one["image"] for m in made for one in containers(m["spec"]["template"]["spec"])} == {IMAGE}
    named = [
        v["value"]
        for m in made
        for c in containers(m["spec"]["template"]["spec"])
        for v in c.get("env", ())
        if v["name"] == "GPUPLANE_IMAGE"
    ]
    assert set(named) == {IMAGE}
    policies = [m for m in own if m["metadata"]["name"] == "gpuplane-validation-pods"]
    allowed = [v["expression"] for m in policies for v in m["spec"].get("variables", ()) if v["name"] == "image"]
    assert allowed == ["'registry.example.com:5000/a/gpuplane'"]
