"""Messages about an operand's pod that does not run: one text while a trouble lasts, and a cure."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from gpuplane.api.clusterpolicy import ClusterPolicySpec
from gpuplane.api.effects import acts
from gpuplane.api.gpunode import Stage, StageState
from gpuplane.operator.drivers import DriverGroup, of_policy
from gpuplane.operator.observed import ObservedNode, OperandPod, operand_pod
from gpuplane.operator.operands import manifests
from gpuplane.operator.stages import OPERANDS
from gpuplane.operator.troubles import trouble
from kubekit.api.core import Container, ContainerState, ContainerStatus, Pod, PodSpec, PodStatus, Waiting
from kubekit.api.meta import ObjectMeta

KERNEL = "6.8.0-71-generic"
IMAGE = f"nvcr.io/nvidia/driver:570-{KERNEL}-ubuntu22.04"
OPERAND = {operand.gate: operand for operand in OPERANDS}
SEEN = ObservedNode(
    name="n1", labels={}, offered=0, held=0, os="ubuntu22.04", kernel=KERNEL, runtime="containerd",
    arch="amd64", tainted=False, status=None, pods={}, enabled=frozenset(),
)  # fmt: skip
CONTAINERD = (
    f'rpc error: code = NotFound desc = failed to pull and unpack image "{IMAGE}": failed to resolve reference '
    f'"{IMAGE}": {IMAGE}: not found'
)


def waiting(reason: str, message: str, container: str = "nvidia-driver-ctr") -> OperandPod:
    """Return the pod as it is read from the cluster; by default the container of a driver image has the problem."""
    status = ContainerStatus(name=container, state=ContainerState(waiting=Waiting(reason=reason, message=message)))
    return operand_pod(
        Pod(
            metadata=ObjectMeta(name="driver-x"),
            spec=PodSpec(containers=(Container(name="other", image="busybox"), Container(name=container, image=IMAGE))),
            status=PodStatus(container_statuses=(status,)),
        )
    )


def told(pod: OperandPod, gate: str = "driver", owner: str = "", old: Stage | None = None) -> Stage:
    return trouble(msgspec.structs.replace(SEEN, driver_owner=owner), OPERAND[gate], pod, old)


def test_an_image_that_is_nowhere() -> None:
    stage = told(waiting("ErrImagePull", CONTAINERD), owner="pinned")
    assert (stage.state, stage.reason, stage.where) == (StageState.RUNNING, "ErrImagePull", "pod/driver-x")
    assert stage.message == f"cannot pull {IMAGE}: not found"
    expected = f"NVIDIADriver pinned spec.version: one with an image for {KERNEL}, or usePrecompiled: false"
    assert stage.cure == expected
    assert told(waiting("ErrImagePull", CONTAINERD)).cure.startswith("ClusterPolicy spec.driver.version: ")


def test_what_the_kubelet_says_in_turns_is_one_trouble() -> None:
    first = told(waiting("ErrImagePull", CONTAINERD))
    newer = f'Back-off pulling image "{IMAGE}": ErrImagePull: {CONTAINERD}'
    assert told(waiting("ImagePullBackOff", newer), old=first) == first
    assert told(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'), old=first) is first
    assert told(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')).message == f"cannot pull {IMAGE}"


NOT_ALLOWED = f'failed to resolve reference "{IMAGE}": unexpected status from HEAD request: 401 Unauthorized'
NO_HOST = f'failed to resolve reference "{IMAGE}": dial tcp: lookup nvcr.io: no such host'
OWN_IMAGE = "repeat gpuplane install with --image, or set operator.repository, image and version of the chart"


@pytest.mark.parametrize(
    ("message", "own", "driver_image"),
    [
        (
            NOT_ALLOWED,
            "ClusterPolicy spec.{group}.imagePullSecrets: a secret for nvcr.io in namespace gpu-operator",
            "ClusterPolicy spec.driver.imagePullSecrets: a secret for nvcr.io in namespace gpu-operator",
        ),
        (
            NO_HOST,
            f"see that the node reaches nvcr.io (proxy, DNS), or {OWN_IMAGE}: a mirror that it reaches",
            "see that the node reaches nvcr.io (proxy, DNS), or ClusterPolicy spec.driver.repository: a mirror "
            "that it reaches",
        ),
        (
            CONTAINERD,
            f"{OWN_IMAGE}: an image that there is",
            f"ClusterPolicy spec.driver.version: one with an image for {KERNEL}, or usePrecompiled: false",
        ),
    ],
)
def test_the_cure_fits_the_cause_and_what_chooses_the_image(message: str, own: str, driver_image: str) -> None:
    for operand in OPERANDS:
        pod = waiting("ErrImagePull", message, operand.gate)
        assert told(pod, operand.gate).cure == own.format(group=operand.group)
    assert told(waiting("ErrImagePull", message)).cure == driver_image


@pytest.mark.parametrize("message", [NOT_ALLOWED, NO_HOST, CONTAINERD])
def test_every_field_that_a_cure_names_acts(message: str) -> None:
    """A field of the policy that a cure names must change the operands: `acts` is proved field by field elsewhere."""
    for gate, container in [(operand.gate, operand.gate) for operand in OPERANDS] + [("driver", "nvidia-driver-ctr")]:
        cure = told(waiting("ErrImagePull", message, container), gate).cure
        for field in re.findall(r"ClusterPolicy spec\.([\w.]+)", cure):
            assert acts(field), cure
        assert ("spec.driver.repository" in cure) == (container == "nvidia-driver-ctr" and message is NO_HOST)


def driver_sets() -> list[dict[str, Any]]:
    """The DaemonSets of all operands, with gpuplane's own installer and with a driver image."""
    wanted = []
    for driver in ({}, {"repository": "example.com", "image": "driver", "version": "570"}):
        spec = msgspec.convert({"driver": driver}, ClusterPolicySpec)
        groups = {DriverGroup("ubuntu", "22.04", KERNEL): of_policy(spec)}
        wanted += manifests(spec, groups, ("driver", "container-toolkit"), image="own", owner={"name": "p"})
    return [manifest for manifest in wanted if manifest["kind"] == "DaemonSet"]


def test_the_driver_images_container_alone_has_another_image_than_the_operators() -> None:
    theirs = [
        (container["name"], container["image"])
        for manifest in driver_sets()
        for kind in ("initContainers", "containers")
        for container in manifest["spec"]["template"]["spec"].get(kind, ())
        if container["image"] != "own"
    ]
    assert theirs == [("nvidia-driver-ctr", "example.com/driver:570-ubuntu22.04")]


def test_other_troubles_say_where_to_look() -> None:
    look = "kubectl -n gpu-operator describe pod/driver-x"
    assert told(OperandPod("driver-x", False, "Unschedulable", "0/3 nodes are available")).cure == look
    crash = told(waiting("CrashLoopBackOff", "back-off 10s restarting"))
    assert crash.cure == "kubectl -n gpu-operator logs pod/driver-x --previous"
