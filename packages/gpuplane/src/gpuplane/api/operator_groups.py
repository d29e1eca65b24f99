"""Groups of fields of a ClusterPolicy: the operator, and what all operands share."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from gpuplane.api.components import (
    COUNT_OR_PERCENT,
    TOLERATION_RULES,
    Image,
    Labels,
    Monitored,
    Path,
    PodSecurityContext,
    Tolerations,
)
from gpuplane.api.marks import FieldRule, matching, one_of, shaped
from kubekit.api.meta import Struct


class OperatorSettings(Struct):
    """The operator itself.

    Fields:
    default_runtime: no longer used; the runtime of each node is found by itself
    runtime_class: name of the RuntimeClass for GPU pods
    init_container: image of helper containers
    labels: labels on everything the operator makes
    annotations: annotations on everything the operator makes
    metrics: how the operator's metrics are collected
    use_ocp_driver_toolkit: on OpenShift, build drivers with its driver toolkit image
    not_ready_taint: keep GPU pods off a node by the taint nvidia.com/gpu-not-ready until it is ready
    set_scheduler_name: give pods that request GPUs and name no scheduler to the pod scheduler
    """

    default_runtime: str = ""
    runtime_class: str = "nvidia"
    init_container: Image = Image()
    labels: Labels = {}
    annotations: Labels = {}
    metrics: Monitored = Monitored()
    use_ocp_driver_toolkit: bool | None = msgspec.field(name="use_ocp_driver_toolkit", default=None)
    not_ready_taint: bool = False
    set_scheduler_name: bool = False


class RollingUpdate(Struct):
    """Pace of rolling updates of operands.

    Fields:
    max_unavailable: nodes without the operand at the same time, a number or a percentage
    """

    max_unavailable: Annotated[int | str | None, matching(COUNT_OR_PERCENT)] = None


class Daemonsets(Struct):
    """Settings that all operands' DaemonSets share.

    Fields:
    labels: labels of their pods
    annotations: annotations of their pods
    node_selector: labels of the nodes that gpuplane prepares; empty for all nodes with GPUs
    tolerations: tolerations of their pods, in addition to those for GPU taints
    priority_class_name: their priority; system-node-critical keeps them from eviction
    update_strategy: RollingUpdate, or OnDelete to wait for pods to be deleted by hand
    rolling_update: pace of rolling updates
    pod_security_context: security context of their pods
    """

    labels: Labels = {}
    annotations: Labels = {}
    node_selector: Labels = {}
    tolerations: Annotated[Tolerations, shaped(maxItems=64)] = ()
    priority_class_name: str = ""
    update_strategy: Annotated[str, one_of("RollingUpdate", "OnDelete")] = "RollingUpdate"
    rolling_update: RollingUpdate | None = None
    pod_security_context: PodSecurityContext = {}

    RULES: ClassVar[tuple[FieldRule, ...]] = TOLERATION_RULES


class HostPaths(Struct):
    """Paths on a node.

    Fields:
    root_fs: root of the host's file system; must be fit for chroot
    driver_install_dir: where the driver's files are to be found
    kubelet_root_dir: the kubelet's directory
    """

    root_fs: Path = msgspec.field(name="rootFS", default="/")
    driver_install_dir: Path = "/run/nvidia/driver"
    kubelet_root_dir: Path = "/var/lib/kubelet"


class CDI(Struct):
    """The use of the Container Device Interface.

    Fields:
    enabled: offer GPUs to containers through CDI
    default: no longer used
    nri_plugin_enabled: inject GPUs by an NRI plugin instead of a runtime's configuration
    """

    enabled: bool = True
    default: bool = False
    nri_plugin_enabled: bool = False

    RULES: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            rule="!has(self.nriPluginEnabled) || !self.nriPluginEnabled || !has(self.enabled) || self.enabled",
            holds=lambda cdi: not cdi.get("nriPluginEnabled") or cdi.get("enabled", True),
            message="nriPluginEnabled needs enabled: true, for the plugin injects CDI devices",
            code="GP124",
            at="nriPluginEnabled",
            cure="enabled: true, or nriPluginEnabled: false",
        ),
    )
