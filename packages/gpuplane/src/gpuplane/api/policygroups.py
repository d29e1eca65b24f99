"""The groups of fields of a ClusterPolicy: one Struct each, in the order of `gpuplane.api.clusterpolicy`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from gpuplane.api.components import (
    COUNT_OR_PERCENT,
    TOLERATION_RULES,
    Component,
    DriverManager,
    Env,
    Image,
    Labels,
    Monitored,
    Name,
    Named,
    NamedDefault,
    Path,
    PodSecurityContext,
    ProbeTiming,
    Rdma,
    ServiceMonitor,
    Tolerations,
    UpgradePolicy,
)
from gpuplane.api.marks import FieldRule, matching, one_of, shaped
from kubekit.api.meta import Struct

# -- the operator and what all operands share --------------------------------------------------------------------------


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
    """

    default_runtime: str = ""
    runtime_class: str = "nvidia"
    init_container: Image = Image()
    labels: Labels = {}
    annotations: Labels = {}
    metrics: Monitored = Monitored()
    use_ocp_driver_toolkit: bool | None = msgspec.field(name="use_ocp_driver_toolkit", default=None)
    not_ready_taint: bool = False


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


# -- driver ------------------------------------------------------------------------------------------------------------


class RepoConfig(Struct):
    """Package repositories for the driver's container.

    Fields:
    config_map_name: ConfigMap with repository files
    """

    config_map_name: Name = ""


class Licensing(Struct):
    """vGPU licences.

    Fields:
    config_map_name: no longer advised; use secretName
    secret_name: Secret with gridd.conf and the client token
    nls_enabled: licences come from NVIDIA License System
    """

    config_map_name: Name = ""
    secret_name: Name = ""
    nls_enabled: bool | None = None


class VirtualTopology(Struct):
    """The vGPU topology daemon.

    Fields:
    config: ConfigMap with its configuration
    """

    config: Name = ""


class DriverSettings(Component):
    """The GPU driver on the nodes. With enabled: false only a driver that is there already is used.

    Fields:
    use_nvidia_driver_crd: take drivers from NVIDIADriver objects, one per pool of nodes
    use_precompiled: install a package made for the kernel instead of compiling one
    use_open_kernel_modules: no longer used; see kernelModuleType
    kernel_module_type: open or proprietary modules; auto takes what fits GPU and driver
    startup_probe, liveness_probe, readiness_probe: probes of the driver's container
    rdma: GPUDirect RDMA
    upgrade_policy: how nodes get another driver
    manager: the init container that unloads an old driver
    repo_config: package repositories for the driver's container
    cert_config: certificates for those repositories
    licensing_config: vGPU licences
    virtual_topology: the vGPU topology daemon
    kernel_module_config: ConfigMap with parameters of the kernel modules
    secret_env: Secret whose keys become environment of the driver's container
    """

    enabled: bool = True
    use_nvidia_driver_crd: bool = msgspec.field(name="useNvidiaDriverCRD", default=False)
    use_precompiled: bool = False
    use_open_kernel_modules: bool | None = None
    kernel_module_type: Annotated[str, one_of("auto", "open", "proprietary")] = "auto"
    startup_probe: ProbeTiming | None = None
    liveness_probe: ProbeTiming | None = None
    readiness_probe: ProbeTiming | None = None
    rdma: Rdma | None = None
    upgrade_policy: UpgradePolicy | None = None
    manager: DriverManager = DriverManager()
    repo_config: RepoConfig | None = None
    cert_config: Named | None = None
    licensing_config: Licensing | None = None
    virtual_topology: VirtualTopology | None = None
    kernel_module_config: Named | None = None
    secret_env: Name = ""


class VGPUManager(Component):
    """The vGPU host driver, for nodes that serve virtual machines.

    Fields:
    driver_manager: the init container that unloads an old driver
    kernel_module_config: ConfigMap with parameters of the kernel modules
    """

    enabled: bool = False
    driver_manager: DriverManager = DriverManager()
    kernel_module_config: Named | None = None


class KernelAddon(Image):
    """An additional kernel module, built in the driver's container.

    Fields:
    enabled: build and load it
    args: arguments of its container
    env: environment of its container
    """

    enabled: bool = False
    args: tuple[str, ...] = ()
    env: Env = ()


# -- operands ----------------------------------------------------------------------------------------------------------


class Toolkit(Component):
    """The container toolkit: container runtimes learn to hand out GPUs.

    Fields:
    install_dir: where its files go on the node
    """

    enabled: bool = True
    install_dir: Path = "/usr/local/nvidia"


class MPS(Struct):
    """Multi-Process Service.

    Fields:
    root: where its pipes and logs lie on the node
    """

    root: Path = "/run/nvidia/mps"


class DevicePlugin(Component):
    """The device plugin: GPUs become resources of their node.

    Fields:
    config: named configurations, chosen per node by the label nvidia.com/device-plugin.config
    mps: Multi-Process Service
    """

    enabled: bool = True
    config: NamedDefault | None = None
    mps: MPS = MPS()


class DCGM(Component):
    """A DCGM server of its own on each node.

    Fields:
    host_port: port on the node
    """

    enabled: bool = False
    host_port: int | None = None


class ExporterService(Struct):
    """The exporter's Service.

    Fields:
    type: type of the Service
    internal_traffic_policy: whether traffic stays on the node
    """

    type: Annotated[str, one_of("", "ClusterIP", "NodePort", "LoadBalancer")] = ""
    internal_traffic_policy: Annotated[str, one_of("", "Cluster", "Local")] = ""


class HPCJobMapping(Struct):
    """Jobs of a batch system in the metrics.

    Fields:
    enabled: read the mapping of GPUs to jobs
    directory: where the batch system writes it on the node
    """

    enabled: bool = False
    directory: Path = ""


class DCGMExporter(Component):
    """The exporter of GPU metrics.

    Fields:
    config: ConfigMap with the list of fields to export
    service: its Service
    service_monitor: a ServiceMonitor for it
    annotations: annotations of its pods
    host_pid: share the node's process names
    enable_pod_labels: put labels of pods on the metrics
    enable_pod_uid: put the uid of pods on the metrics
    pod_label_allowlist_regex: labels of pods to put on the metrics, as regular expressions
    hpc_job_mapping: jobs of a batch system in the metrics
    """

    enabled: bool = True
    config: Named | None = None
    service: ExporterService | None = None
    service_monitor: ServiceMonitor | None = None
    annotations: Labels = {}
    host_pid: bool | None = msgspec.field(name="hostPID", default=None)
    enable_pod_labels: bool | None = None
    enable_pod_uid: bool | None = msgspec.field(name="enablePodUID", default=None)
    pod_label_allowlist_regex: tuple[str, ...] = ()
    hpc_job_mapping: HPCJobMapping | None = None


class GFD(Component):
    """GPU feature discovery: labels that say what a node's GPUs are."""

    enabled: bool = True


class NodeStatusExporter(Component):
    """Metrics of how far each node is."""

    enabled: bool = False


class MIG(Struct):
    """Multi-Instance GPU.

    Fields:
    strategy: how instances are offered: not at all, as nvidia.com/gpu, or each profile by its own name
    """

    strategy: Annotated[str, one_of("", "none", "single", "mixed")] = "single"


class MIGConfig(NamedDefault):
    """Layouts of MIG instances.

    Fields:
    default: layout of nodes without the label nvidia.com/mig.config
    """

    default: Annotated[str, one_of("", "all-disabled")] = "all-disabled"

    # NB: this default names a built-in layout, so it needs no ConfigMap.
    RULES: ClassVar[tuple[FieldRule, ...]] = ()


class MIGManager(Component):
    """The manager that lays out MIG instances as a node's label asks.

    Fields:
    config: ConfigMap with layouts
    gpu_clients_config: ConfigMap with services to stop while the layout of GPUs changes
    """

    enabled: bool = True
    config: MIGConfig | None = None
    gpu_clients_config: Named | None = None


class ValidatorPart(Struct):
    """One validation.

    Fields:
    env: environment of its container
    """

    env: Env = ()


class ValidatorSettings(Component):
    """The validator: proof that each stage holds.

    Fields:
    plugin: validation of the device plugin
    toolkit: validation of the container toolkit
    driver: validation of the driver
    cuda: validation with a CUDA workload
    vfio_pci, vgpu_manager, vgpu_devices: validations for virtual machines
    """

    plugin: ValidatorPart = ValidatorPart()
    toolkit: ValidatorPart = ValidatorPart()
    driver: ValidatorPart = ValidatorPart()
    cuda: ValidatorPart = ValidatorPart()
    vfio_pci: ValidatorPart = msgspec.field(name="vfioPCI", default=ValidatorPart())
    vgpu_manager: ValidatorPart = ValidatorPart()
    vgpu_devices: ValidatorPart = ValidatorPart()


# -- virtual machines and confidential containers ----------------------------------------------------------------------


class Switch(Struct):
    """A feature of the cluster.

    Fields:
    enabled: whether it is used
    """

    enabled: bool = False


class NFD(Struct):
    """Labels that say what each node is: node feature discovery. A group of gpuplane's own.

    Fields:
    enabled: whether gpuplane's discovery runs; false where another installation of node feature discovery labels the
        nodes
    """

    enabled: bool = True


class SandboxWorkloads(Switch):
    """GPUs for virtual machines.

    Fields:
    default_workload: what nodes are prepared for when they have no label nvidia.com/gpu.workload.config
    mode: KubeVirt or Kata containers
    """

    default_workload: Annotated[str, one_of("container", "vm-passthrough", "vm-vgpu")] = "container"
    mode: Annotated[str, one_of("kubevirt", "kata")] = "kubevirt"


class SandboxComponent(Component):
    """An operand for virtual machines."""

    enabled: bool | None = None


class VFIOManager(SandboxComponent):
    """The manager that hands whole GPUs to virtual machines.

    Fields:
    driver_manager: the init container that unloads a driver
    """

    driver_manager: DriverManager = DriverManager()


class VGPUDeviceConfig(Struct):
    """Layouts of vGPU devices.

    Fields:
    name: ConfigMap with layouts
    default: layout of nodes without the label nvidia.com/vgpu.config
    """

    name: Name = ""
    default: str = "default"


class VGPUDeviceManager(SandboxComponent):
    """The manager that makes vGPU devices as a node's label asks.

    Fields:
    config: layouts of vGPU devices
    """

    config: VGPUDeviceConfig | None = None


class KataManager(SandboxComponent):
    """No longer used.

    Fields:
    config: no longer used
    """

    config: dict[str, Any] = {}


class CCManager(SandboxComponent):
    """The manager of confidential computing modes.

    Fields:
    default_mode: mode of nodes without the label nvidia.com/cc.mode
    """

    default_mode: Annotated[str, one_of("", "on", "off", "devtools")] = ""
