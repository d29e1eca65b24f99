"""Groups of fields of a ClusterPolicy: the driver."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gpuplane.api.components import (
    Component,
    DriverManager,
    Env,
    Image,
    Name,
    Named,
    ProbeTiming,
    Rdma,
    UpgradePolicy,
)
from gpuplane.api.marks import one_of
from kubekit.api.meta import Struct


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
