"""Groups of fields of a ClusterPolicy: virtual machines and confidential containers."""

from __future__ import annotations

from typing import Annotated, Any

from gpuplane.api.components import (
    Component,
    DriverManager,
    Name,
)
from gpuplane.api.marks import one_of
from kubekit.api.meta import Struct


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
