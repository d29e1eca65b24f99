"""Groups of fields of a ClusterPolicy: the operands after the driver."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from gpuplane.api.components import (
    Component,
    Env,
    Labels,
    Named,
    NamedDefault,
    Path,
    ServiceMonitor,
)
from gpuplane.api.marks import FieldRule, one_of
from kubekit.api.meta import Struct


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


class NFD(Struct):
    """Labels that say what each node is: node feature discovery. A group of gpuplane's own.

    Fields:
    enabled: whether gpuplane's discovery runs; false where another installation of node feature discovery labels the
        nodes
    """

    enabled: bool = True
