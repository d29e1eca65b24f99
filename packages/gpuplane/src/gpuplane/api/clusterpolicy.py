"""ClusterPolicy (`nvidia.com/v1`, cluster-scoped): what the administrator wants of a whole cluster.

It is the GPU operator's kind, every field of it, so that existing manifests apply unchanged; `nfd`,
`operator.notReadyTaint` and `operator.setSchedulerName` are ours. Everything has a default: `spec: {}` is a working
cluster.

Invariants:

- Decoding is lenient where the API server is strict (enumerations are plain strings here): a policy written for a newer
  release must never look absent to the operator, who would take everything back.
- `gpuplane.api.effects` lists fields without effect; nothing is ignored silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from gpuplane import names
from gpuplane.api.driver_groups import DriverSettings, KernelAddon, VGPUManager
from gpuplane.api.marks import FieldRule, keyed_by, one_of
from gpuplane.api.operand_groups import (
    DCGM,
    GFD,
    MIG,
    NFD,
    DCGMExporter,
    DevicePlugin,
    MIGManager,
    NodeStatusExporter,
    Toolkit,
    ValidatorSettings,
)
from gpuplane.api.operator_groups import CDI, Daemonsets, HostPaths, OperatorSettings
from gpuplane.api.sandbox_groups import (
    CCManager,
    KataManager,
    SandboxComponent,
    SandboxWorkloads,
    Switch,
    VFIOManager,
    VGPUDeviceManager,
)
from kubekit.api.meta import Condition, ObjectMeta, Resource, Struct


def _enabled(spec: Mapping[str, Any], group: str, otherwise: bool) -> bool:
    return bool((spec.get(group) or {}).get("enabled", otherwise))


class ClusterPolicySpec(Struct):
    """The wanted state of the cluster. Every field has a default.

    Fields:
    operator: the operator itself
    nfd: labels that say what each node is
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

    operator: OperatorSettings = OperatorSettings()
    nfd: NFD = NFD()
    daemonsets: Daemonsets = Daemonsets()
    host_paths: HostPaths = HostPaths()
    driver: DriverSettings = DriverSettings()
    toolkit: Toolkit = Toolkit()
    device_plugin: DevicePlugin = DevicePlugin()
    dcgm: DCGM = DCGM()
    dcgm_exporter: DCGMExporter = DCGMExporter()
    gfd: GFD = GFD()
    mig: MIG = MIG()
    mig_manager: MIGManager = MIGManager()
    validator: ValidatorSettings = ValidatorSettings()
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

    RULES: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            rule="!has(self.gds) || !has(self.gds.enabled) || !self.gds.enabled || !has(self.driver) "
            "|| !has(self.driver.enabled) || self.driver.enabled",
            holds=lambda spec: not _enabled(spec, "gds", False) or _enabled(spec, "driver", True),
            message="gds needs driver.enabled: true, for its module is built in the driver's container",
            code="GP125",
            at="gds.enabled",
            cure="driver.enabled: true, or gds.enabled: false",
        ),
        FieldRule(
            rule="!has(self.gdrcopy) || !has(self.gdrcopy.enabled) || !self.gdrcopy.enabled || !has(self.driver) "
            "|| !has(self.driver.enabled) || self.driver.enabled",
            holds=lambda spec: not _enabled(spec, "gdrcopy", False) or _enabled(spec, "driver", True),
            message="gdrcopy needs driver.enabled: true, for its module is built in the driver's container",
            code="GP126",
            at="gdrcopy.enabled",
            cure="driver.enabled: true, or gdrcopy.enabled: false",
        ),
    )


class ClusterPolicyStatus(Struct):
    """The state that the operator reports.

    Fields:
    state: ready, notReady, or ignored when an older ClusterPolicy is in force
    namespace: where the operands run
    conditions: Ready, Error, and Upgrading and Paused where there is something to say
    """

    state: Annotated[str, one_of("", "ignored", "ready", "notReady")] = ""
    namespace: str = ""
    conditions: Annotated[tuple[Condition, ...], keyed_by("type")] = ()


class ClusterPolicy(Struct):
    """The administrator's settings for the cluster's GPUs. The oldest one is in force, others are ignored.

    Fields:
    spec: what the cluster is to be
    status: what became of it
    """

    RESOURCE: ClassVar[Resource] = Resource("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", False)

    metadata: ObjectMeta = ObjectMeta()
    spec: ClusterPolicySpec = ClusterPolicySpec()
    status: ClusterPolicyStatus = ClusterPolicyStatus()


def chosen(policies: Iterable[ClusterPolicy]) -> tuple[ClusterPolicy | None, list[ClusterPolicy]]:
    """The policy that counts, the oldest, and those that are ignored."""
    order = sorted(policies, key=lambda policy: (policy.metadata.creation_timestamp, policy.metadata.name))
    return (order[0], order[1:]) if order else (None, [])


def is_paused(policy: ClusterPolicy) -> bool:
    """Return whether nothing is to be changed. A policy that is being deleted is carried out to its end all
    the same.
    """
    return policy.metadata.annotations.get(names.PAUSED_ANNOTATION) == "true" and not policy.metadata.deletion_timestamp
