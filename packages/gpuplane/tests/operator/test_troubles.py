"""What is said of an operand's pod that does not run: one text while a trouble lasts, and a cure."""

from __future__ import annotations

import msgspec
import pytest

from gpuplane.api.gpunode import Stage, StageState
from gpuplane.operator.observed import ObservedNode, OperandPod, operand_pod
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


def waiting(reason: str, message: str) -> OperandPod:
    """As it is read from a pod."""
    status = ContainerStatus(name="driver", state=ContainerState(waiting=Waiting(reason=reason, message=message)))
    return operand_pod(
        Pod(
            metadata=ObjectMeta(name="driver-x"),
            spec=PodSpec(containers=(Container(name="other", image="busybox"), Container(name="driver", image=IMAGE))),
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


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        (
            f'failed to resolve reference "{IMAGE}": unexpected status from HEAD request: 401 Unauthorized',
            "ClusterPolicy spec.dcgmExporter.imagePullSecrets: a secret for nvcr.io in namespace gpu-operator",
        ),
        (
            f'failed to resolve reference "{IMAGE}": dial tcp: lookup nvcr.io: no such host',
            "see that the node reaches nvcr.io (proxy, DNS), or ClusterPolicy spec.dcgmExporter.repository: a mirror "
            "that it reaches",
        ),
        (CONTAINERD, "ClusterPolicy spec.dcgmExporter: repository, image and version of an image that there is"),
    ],
)
def test_the_cure_fits_the_cause_and_the_operand(message: str, cure: str) -> None:
    assert told(waiting("ErrImagePull", message), "dcgm-exporter").cure == cure


def test_other_troubles_say_where_to_look() -> None:
    look = "kubectl -n gpu-operator describe pod/driver-x"
    assert told(OperandPod("driver-x", False, "Unschedulable", "0/3 nodes are available")).cure == look
    crash = told(waiting("CrashLoopBackOff", "back-off 10s restarting"))
    assert crash.cure == "kubectl -n gpu-operator logs pod/driver-x --previous"
