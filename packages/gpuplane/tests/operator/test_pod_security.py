"""Pods of gpuplane have no more of their node than they need: the privileged ones are named, the others confined."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest
import yaml

from gpuplane.operator.autoscaler_install import AutoscalerInstall
from gpuplane.operator.installation import installation
from gpuplane.operator.manifest import parse

# Components that change the host, or open its devices. The driver's container image is its vendor's.
PRIVILEGED = {
    *("driver", "driver-before", "nvidia-driver-ctr", "container-toolkit", "operator-validator", "device-plugin"),
    *("mps-control-daemon", "dcgm-exporter", "gpu-feature-discovery"),
}
THEIRS = {"nvidia-driver-ctr"}


def pods() -> list[dict[str, Any]]:
    """The specs of all pods that the installation, the operator and the validator make."""
    folder = resources.files("gpuplane.operator").joinpath("operands")
    operands = [one for entry in folder.iterdir() if entry.is_file() for one in parse(entry.read_text())]
    everything = [*installation(autoscaler=AutoscalerInstall({"CLUSTER_NAME": "-"})), *operands]
    made = [one["spec"]["template"]["spec"] for one in everything if one.get("kind") in ("Deployment", "DaemonSet")]
    validation = resources.files("gpuplane.validator").joinpath("validation-pod.yaml").read_text()
    return [*made, yaml.safe_load(validation)["spec"]]


CONTAINERS = [(pod, container) for pod in pods() for container in (*pod["containers"], *pod.get("initContainers", ()))]
CONFINED = [(pod, one) for pod, one in CONTAINERS if one["name"] not in PRIVILEGED]


def test_no_other_container_is_privileged() -> None:
    found = {one["name"] for _, one in CONTAINERS if one.get("securityContext", {}).get("privileged")}
    assert found == PRIVILEGED


def test_our_containers_write_nothing_into_their_root() -> None:
    written = {one["name"] for _, one in CONTAINERS if not one["securityContext"].get("readOnlyRootFilesystem")}
    assert written == THEIRS


@pytest.mark.parametrize(("pod", "container"), CONFINED, ids=[one["name"] for _, one in CONFINED])
def test_the_others_have_no_capability_and_few_system_calls(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
    assert not any(pod.get(field) for field in ("hostPID", "hostIPC", "hostNetwork"))
