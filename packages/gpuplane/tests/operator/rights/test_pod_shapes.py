"""Pods of gpuplane that need no privileges have none: their containers are restricted as Kubernetes recommends."""

from __future__ import annotations

from importlib import resources
from typing import Any

from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import installation
from gpuplane.operator.manifest import Manifest, parse

# They change the host, or read its GPUs through the devices of the host.
PRIVILEGED = {
    "driver",
    "driver-before",
    "nvidia-driver-ctr",
    "container-toolkit",
    "operator-validator",
    "device-plugin",
    "mps-control-daemon",
    "dcgm-exporter-privileged",
    "gpu-feature-discovery",
}


# It asks the kubelet through a socket that is root's, and that SELinux keeps from other containers.
USERS: dict[str, dict[str, Any]] = {"dcgm-exporter": {"runAsUser": 0, "seLinuxOptions": {"type": "spc_t"}}}

# The volume of its store belongs to root otherwise.
PODS: dict[str, dict[str, Any]] = {"gpuplane-dashboard": {"fsGroup": 65532}}


def pods() -> list[dict[str, Any]]:
    """Return the spec of each pod of the installation and of the operands."""
    folder = resources.files("gpuplane.operator").joinpath("operands")
    files = [one for one in folder.iterdir() if not one.name.endswith("-parts.yaml")]
    operands: list[Manifest] = [one for file in files for one in parse(file.read_text())]
    found = [*installation(autoscaler=AutoscalerInstall({"CLUSTER_NAME": "-"}), dashboard=()), *operands]
    return [one["spec"]["template"]["spec"] for one in found if one["kind"] in ("Deployment", "DaemonSet")]


def test_containers_are_privileged_or_restricted() -> None:
    privileged = set()
    for pod in pods():
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            context = container["securityContext"]
            if context.get("privileged"):
                privileged.add(container["name"])
                continue
            expected = {"seccompProfile": {"type": "RuntimeDefault"}, **PODS.get(container["name"], {})}
            assert pod["securityContext"] == expected, container["name"]
            user = USERS.get(container["name"], {"runAsNonRoot": True, "runAsUser": 65532})
            assert context == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                **user,
                "capabilities": {"drop": ["ALL"]},
            }, container["name"]
    assert privileged == PRIVILEGED
