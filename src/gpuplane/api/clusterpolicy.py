"""ClusterPolicy (`nvidia.com/v1`, cluster-scoped): what the administrator wants of a whole cluster.

It is the GPU operator's kind, every field of it, so that existing manifests apply unchanged; `notReadyTaint` is ours.
Everything has a default: `spec: {}` is a working cluster.

Invariants:

- Decoding is lenient where the API server is strict (enumerations are plain strings here): a policy written for a newer
  release must never look absent to the operator, who would take everything back.
- NO_EFFECT lists what is accepted and not acted on yet; `gpuplane check` warns of each, so nothing is ignored silently.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

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
    Probe,
    Rdma,
    ServiceMonitor,
    Tolerations,
    UpgradePolicy,
)
from gpuplane.api.marks import Rule, keyed_by, matching, one_of, shaped
from gpuplane.api.meta import Condition, ObjectMeta, Resource, Struct

# -- the operator and what all operands share --------------------------------------------------------------------------


class Operator(Struct):
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
    """What all operands' DaemonSets share.

    Fields:
    labels: labels of their pods
    annotations: annotations of their pods
    tolerations: tolerations of their pods, beside those for GPU taints
    priority_class_name: their priority; system-node-critical keeps them from eviction
    update_strategy: RollingUpdate, or OnDelete to wait for pods to be deleted by hand
    rolling_update: pace of rolling updates
    pod_security_context: security context of their pods
    """

    labels: Labels = {}
    annotations: Labels = {}
    tolerations: Annotated[Tolerations, shaped(maxItems=64)] = ()
    priority_class_name: str = ""
    update_strategy: Annotated[str, one_of("RollingUpdate", "OnDelete")] = "RollingUpdate"
    rolling_update: RollingUpdate | None = None
    pod_security_context: dict[str, Any] = {}

    RULES: ClassVar[tuple[Rule, ...]] = TOLERATION_RULES


class HostPaths(Struct):
    """Where things lie on a node.

    Fields:
    root_fs: root of the host's file system; must be fit for chroot
    driver_install_dir: where the driver's files are to be found
    kubelet_root_dir: the kubelet's directory
    """

    root_fs: Path = msgspec.field(name="rootFS", default="/")
    driver_install_dir: Path = "/run/nvidia/driver"
    kubelet_root_dir: Path = "/var/lib/kubelet"


class CDI(Struct):
    """How the Container Device Interface is used.

    Fields:
    enabled: offer GPUs to containers through CDI
    default: no longer used
    nri_plugin_enabled: inject GPUs by an NRI plugin instead of a runtime's configuration
    """

    enabled: bool = True
    default: bool = False
    nri_plugin_enabled: bool = False

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.nriPluginEnabled) || !self.nriPluginEnabled || !has(self.enabled) || self.enabled",
            "nriPluginEnabled needs enabled: true, for the plugin injects CDI devices",
            "GP124",
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
    config_map_name: no longer advised; use secret_name
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


class Driver(Component):
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
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
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
    """A kernel module beside the driver's, built in the driver's container.

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
    host_port: port on the node, 0 for none
    """

    enabled: bool = False
    host_port: int = 0


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
    RULES: ClassVar[tuple[Rule, ...]] = ()


class MIGManager(Component):
    """The manager that lays out MIG instances as a node's label asks.

    Fields:
    config: ConfigMap with layouts
    gpu_clients_config: ConfigMap with services to stop while GPUs are laid out anew
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


class Validator(Component):
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


# -- the kind ----------------------------------------------------------------------------------------------------------


class ClusterPolicySpec(Struct):
    """What the cluster is to be. Every field has a default.

    Fields:
    operator: the operator itself
    daemonsets: what all operands' DaemonSets share
    host_paths: where things lie on a node
    driver: the GPU driver on the nodes
    toolkit: the container toolkit, by which runtimes learn to hand out GPUs
    device_plugin: the device plugin, by which GPUs become resources of their node
    dcgm: a DCGM server of its own on each node
    dcgm_exporter: the exporter of GPU metrics
    gfd: labels that say what a node's GPUs are
    mig: Multi-Instance GPU
    mig_manager: the manager that lays out MIG instances
    validator: proof that each stage holds
    node_status_exporter: metrics of how far each node is
    gds: GPUDirect Storage
    gdrcopy: copies between GPU and host memory without the CPU
    cdi: how the Container Device Interface is used
    psa: Pod Security Admission labels on the operator's namespace
    psp: no longer used; Pod Security Policies are gone from Kubernetes
    sandbox_workloads: GPUs for virtual machines
    vfio_manager: the manager that hands whole GPUs to virtual machines
    sandbox_device_plugin: the device plugin for virtual machines
    kata_sandbox_device_plugin: the device plugin for Kata containers
    vgpu_manager: the vGPU host driver
    vgpu_device_manager: the manager that makes vGPU devices
    kata_manager: no longer used
    cc_manager: the manager of confidential computing modes
    """

    operator: Operator = Operator()
    daemonsets: Daemonsets = Daemonsets()
    host_paths: HostPaths = HostPaths()
    driver: Driver = Driver()
    toolkit: Toolkit = Toolkit()
    device_plugin: DevicePlugin = DevicePlugin()
    dcgm: DCGM = DCGM()
    dcgm_exporter: DCGMExporter = DCGMExporter()
    gfd: GFD = GFD()
    mig: MIG = MIG()
    mig_manager: MIGManager = MIGManager()
    validator: Validator = Validator()
    node_status_exporter: NodeStatusExporter = NodeStatusExporter()
    gds: KernelAddon | None = None
    gdrcopy: KernelAddon | None = None
    cdi: CDI = CDI()
    psa: Switch = Switch()
    psp: Switch = Switch()
    sandbox_workloads: SandboxWorkloads = SandboxWorkloads()
    vfio_manager: VFIOManager = VFIOManager()
    sandbox_device_plugin: SandboxComponent = SandboxComponent()
    kata_sandbox_device_plugin: SandboxComponent = SandboxComponent()
    vgpu_manager: VGPUManager = VGPUManager()
    vgpu_device_manager: VGPUDeviceManager = VGPUDeviceManager()
    kata_manager: KataManager = KataManager()
    cc_manager: CCManager = CCManager()

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.gds) || !has(self.gds.enabled) || !self.gds.enabled || !has(self.driver) "
            "|| !has(self.driver.enabled) || self.driver.enabled",
            "gds needs driver.enabled: true, for its module is built in the driver's container",
            "GP125",
        ),
        Rule(
            "!has(self.gdrcopy) || !has(self.gdrcopy.enabled) || !self.gdrcopy.enabled || !has(self.driver) "
            "|| !has(self.driver.enabled) || self.driver.enabled",
            "gdrcopy needs driver.enabled: true, for its module is built in the driver's container",
            "GP126",
        ),
    )


class ClusterPolicyStatus(Struct):
    """What became of it.

    Fields:
    state: ready, notReady, or ignored when an older ClusterPolicy is in force
    namespace: where the operands run
    conditions: Ready and Error
    """

    state: Annotated[str, one_of("", "ignored", "ready", "notReady")] = ""
    namespace: str = ""
    conditions: Annotated[tuple[Condition, ...], keyed_by("type")] = ()


class ClusterPolicy(Struct):
    """What the administrator wants of the cluster's GPUs. The oldest one is in force, others are ignored.

    Fields:
    spec: what the cluster is to be
    status: what became of it
    """

    RESOURCE: ClassVar[Resource] = Resource("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: ClusterPolicySpec = ClusterPolicySpec()
    status: ClusterPolicyStatus = ClusterPolicyStatus()


NO_EFFECT: Final[dict[str, str]] = {
    "operator.defaultRuntime": "the runtime of each node is found by itself",
    "driver.useOpenKernelModules": "set driver.kernelModuleType instead",
    "driver.useNvidiaDriverCRD": "drivers are taken from the ClusterPolicy only, so far",
    "driver.rdma.enabled": "peer memory is not loaded yet",
    "gds.enabled": "GPUDirect Storage is not installed yet",
    "gdrcopy.enabled": "GDRCopy is not installed yet",
    "cdi.default": "CDI is the only way in which GPUs are handed out",
    "psp.enabled": "Pod Security Policies are gone from Kubernetes; set psa.enabled",
    "kataManager.enabled": "it is gone from the GPU operator too",
    "sandboxWorkloads.enabled": "nodes are prepared for containers only, so far",
    "dcgm.enabled": "the exporter reads the GPUs itself",
    "nodeStatusExporter.enabled": "the operator's metrics have every node's state",
}
"""Path below `spec` -> why setting it (to other than false or empty) changes nothing."""
