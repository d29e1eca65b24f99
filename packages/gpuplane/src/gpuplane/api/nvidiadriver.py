"""NVIDIADriver (`nvidia.com/v1alpha1`, cluster-scoped): one pool of nodes' driver, instead of the ClusterPolicy's.

The GPU operator's kind. It counts with ClusterPolicy `spec.driver.useNvidiaDriverCRD: true`; then the ClusterPolicy's
own driver fields say no more than whether drivers are installed at all. `gpuplane.operator.drivers` decides about the
objects.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from gpuplane.api.components import (
    DriverManager,
    Env,
    Image,
    Labels,
    Name,
    Named,
    PodSecurityContext,
    ProbeTiming,
    Rdma,
    Tolerations,
    UpgradePolicy,
)
from gpuplane.api.driver_groups import KernelAddon
from gpuplane.api.marks import FieldRule, keyed_by, one_of, shaped
from kubekit.api.core import Resources
from kubekit.api.meta import Condition, ObjectMeta, Resource, Struct


class DriverLicensing(Struct):
    """vGPU licences.

    Fields:
    name: no longer advised; use secretName
    secret_name: Secret with gridd.conf and the client token
    nls_enabled: licences come from NVIDIA License System
    """

    name: Name = ""
    secret_name: Name = ""
    nls_enabled: bool | None = None


class PoolUpgradePolicy(UpgradePolicy):
    """The rules for driver upgrades in the pool."""

    auto_upgrade: bool = True


class NVIDIADriverSpec(Image):
    """The driver of a pool of nodes.

    Fields:
    default: for all nodes that no other NVIDIADriver selects
    driver_type: driver for containers, or the vGPU guest or host driver
    use_precompiled: install a package made for the kernel instead of compiling one
    use_open_kernel_modules: no longer used; see kernelModuleType
    kernel_module_type: open or proprietary modules; auto takes what fits GPU and driver
    node_selector: labels of the pool's nodes
    node_affinity: affinity of the driver's pods to nodes
    startup_probe, liveness_probe, readiness_probe: probes of the driver's container
    rdma: GPUDirect RDMA
    gds: GPUDirect Storage
    gdrcopy: copies between GPU and host memory without the CPU
    upgrade_policy: how nodes of the pool get another driver
    manager: the init container that unloads an old driver
    repo_config: package repositories for the driver's container
    cert_config: certificates for those repositories
    licensing_config: vGPU licences
    virtual_topology_config: the vGPU topology daemon
    kernel_module_config: ConfigMap with parameters of the kernel modules
    secret_env: Secret whose keys become environment of the driver's container
    resources: requests and limits of the driver's container
    args: arguments of the driver's container
    env: environment of the driver's container
    labels: labels of the driver's pods
    annotations: annotations of the driver's pods
    tolerations: tolerations of the driver's pods
    priority_class_name: priority of the driver's pods
    pod_security_context: security context of the driver's pods
    host_network: whether the driver's pods use the node's network
    """

    default: bool = False
    driver_type: Annotated[str, one_of("gpu", "vgpu", "vgpu-host-manager")] = "gpu"
    use_precompiled: bool | None = None
    use_open_kernel_modules: bool | None = None
    kernel_module_type: Annotated[str, one_of("auto", "open", "proprietary")] = "auto"
    node_selector: Labels = {}
    node_affinity: dict[str, Any] = {}
    startup_probe: ProbeTiming | None = None
    liveness_probe: ProbeTiming | None = None
    readiness_probe: ProbeTiming | None = None
    rdma: Rdma | None = None
    gds: KernelAddon | None = None
    gdrcopy: KernelAddon | None = None
    upgrade_policy: PoolUpgradePolicy | None = None
    manager: DriverManager = DriverManager()
    repo_config: Named | None = None
    cert_config: Named | None = None
    licensing_config: DriverLicensing | None = None
    virtual_topology_config: Named | None = None
    kernel_module_config: Named | None = None
    secret_env: Name = ""
    resources: Resources | None = None
    args: tuple[str, ...] = ()
    env: Env = ()
    labels: Labels = {}
    annotations: Labels = {}
    tolerations: Annotated[Tolerations, shaped(maxItems=64)] = ()
    priority_class_name: str = ""
    pod_security_context: PodSecurityContext = {}
    host_network: bool | None = None

    RULES: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            rule="!has(self.default) || !self.default || !has(self.nodeSelector) || size(self.nodeSelector) == 0",
            holds=lambda spec: not spec.get("default") or not spec.get("nodeSelector"),
            message="the default driver is for the nodes that no other selects, so it selects none itself",
            code="GP127",
            at="nodeSelector",
            cure="leave out nodeSelector, or default: false",
        ),
    )


class NVIDIADriverStatus(Struct):
    """The state that the operator reports.

    Fields:
    state: ready, notReady, ignored or disabled
    namespace: where the driver's pods run
    conditions: Ready and Error
    """

    state: Annotated[str, one_of("", "ignored", "ready", "notReady", "disabled")] = ""
    namespace: str = ""
    conditions: Annotated[tuple[Condition, ...], keyed_by("type")] = ()


class NVIDIADriver(Struct):
    """The driver of one pool of nodes.

    Fields:
    spec: which driver, and for which nodes
    status: what became of it
    """

    RESOURCE: ClassVar[Resource] = Resource("nvidia.com", "v1alpha1", "nvidiadrivers", "NVIDIADriver", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: NVIDIADriverSpec = NVIDIADriverSpec()
    status: NVIDIADriverStatus = NVIDIADriverStatus()
