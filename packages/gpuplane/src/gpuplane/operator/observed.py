"""The observed state of one node, as plain data, and how it is read from the objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gpuplane import names
from gpuplane.api.gpunode import GPUNode, GPUNodeStatus
from gpuplane.api.upgrade import UpgradeRecord, UpgradeState, upgrade_record, upgrade_state
from gpuplane.operator.policy import has_gpus, has_opted_out
from gpuplane.operator.upgrade.templates import digest_of
from kubekit.api.core import Node, Pod

COMPONENT_LABEL = "app.kubernetes.io/component"
DRIVER = "driver"


class OperandPod(msgspec.Struct, frozen=True):
    """An operand's pod on the node. `problem` is a reason such as ErrImagePull or CrashLoopBackOff, else empty;
    `container` is the container that has it, and `image` that container's image.
    """

    name: str
    ready: bool
    problem: str = ""
    message: str = ""
    image: str = ""
    container: str = ""


class ObservedNode(msgspec.Struct, frozen=True):
    """Everything that decides about one node.

    `status` is None while there is no GPUNode; `pods` is keyed by gate; `enabled` holds the gates that the
    ClusterPolicy wants and is empty when there is none (then everything is taken back). `offered` is the percent of
    GPUs that the kubelet offers, 100 for each whole one, and `held` the percent promised to pods. `answers` is False
    while the node is not Ready. `restarting`: an upgrade replaces the node's driver, and what stands on it has to stand
    aside; `stale`: names of the driver pods that it replaces and that are still there. `driver_owner` is the
    NVIDIADriver that the node has its driver from; `no_driver` (reason, message, cure) why it gets none; `off`, in the
    same form, which taints keep operands off the node.
    """

    name: str
    labels: Mapping[str, str]
    offered: int
    held: int
    os: str
    kernel: str
    runtime: str
    arch: str
    tainted: bool
    status: GPUNodeStatus | None
    pods: Mapping[str, OperandPod]
    enabled: frozenset[str]
    taint_wanted: bool = False
    answers: bool = True
    restarting: bool = False
    stale: tuple[str, ...] = ()
    driver_owner: str = ""
    no_driver: tuple[str, str, str] = ("", "", "")
    off: tuple[str, str, str] = ("", "", "")

    @property
    def has_gpus(self) -> bool:
        return has_gpus(self.labels)

    @property
    def opted_out(self) -> bool:
        return has_opted_out(self.labels)


def observe(
    node: Node,
    gpunode: GPUNode | None,
    pods: Iterable[Pod],
    *,
    offered: int,
    held: int,
    enabled: frozenset[str],
    taint_wanted: bool,
    driver_owner: str = "",
    no_driver: tuple[str, str, str] = ("", "", ""),
    off: tuple[str, str, str] = ("", "", ""),
) -> ObservedNode:
    labels = node.metadata.labels
    info = node.status.node_info
    pods = list(pods)
    restarting = upgrade_state(node) is UpgradeState.RESTART
    return ObservedNode(
        name=node.metadata.name,
        labels=labels,
        offered=offered,
        held=held,
        os=labels.get(names.OS_ID_LABEL, "") + labels.get(names.OS_VERSION_LABEL, ""),
        kernel=info.kernel_version,
        runtime=info.container_runtime_version.partition("://")[0],
        arch=info.architecture,
        tainted=any(taint.key == names.NOT_READY_TAINT for taint in node.spec.taints),
        status=gpunode.status if gpunode is not None else None,
        pods={pod.metadata.labels.get(COMPONENT_LABEL, ""): operand_pod(pod) for pod in pods},
        enabled=enabled,
        taint_wanted=taint_wanted,
        answers=answers(node),
        restarting=restarting,
        stale=_stale(upgrade_record(node), pods) if restarting else (),
        driver_owner=driver_owner,
        no_driver=no_driver,
        off=off,
    )


def _stale(record: UpgradeRecord, pods: Iterable[Pod]) -> tuple[str, ...]:
    """Return the names of the driver's pod that the upgrade began with, and of those of another driver."""
    drivers = (pod for pod in pods if pod.metadata.labels.get(COMPONENT_LABEL) == DRIVER)
    return tuple(
        pod.metadata.name for pod in drivers if pod.metadata.uid == record.pod or digest_of(pod.spec) != record.target
    )


def answers(node: Node) -> bool:
    """Return whether the node's kubelet is there."""
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)


PULLING = frozenset({"ErrImagePull", "ImagePullBackOff"})
# Reasons that the kubelet gives on the way to a start; they are no problem.
_ON_THE_WAY = frozenset({"", "ContainerCreating", "PodInitializing"})


def operand_pod(pod: Pod) -> OperandPod:
    ready = any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason not in _ON_THE_WAY:
            last = status.last_state.terminated
            pulls = waiting.reason in PULLING
            text = last.message.strip() if last is not None and not pulls else ""
            # Of a log's end, the last line is the error.
            cause = text.splitlines()[-1] if text else waiting.message
            containers = (*pod.spec.init_containers, *pod.spec.containers)
            image = next((one.image for one in containers if one.name == status.name), "")
            return OperandPod(pod.metadata.name, ready, waiting.reason, cause, image, status.name)
    if pod.status.phase == "Failed":
        return OperandPod(pod.metadata.name, False, pod.status.reason or "PodFailed", pod.status.message)
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return OperandPod(pod.metadata.name, False, condition.reason, condition.message)
    return OperandPod(pod.metadata.name, ready)
