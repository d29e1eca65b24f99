"""Every label, annotation, resource, taint and path that others rely on, once.

These strings are interfaces: existing manifests, dashboards and scripts name them. Where a name belongs to another
project (`nvidia.com/...`, `feature.node.kubernetes.io/...`), it is spelled as that project spells it.
"""

from __future__ import annotations

from typing import Final

# -- where we run ------------------------------------------------------------------------------------------------
OPERATOR_NAMESPACE: Final = "gpu-operator"
IMAGE: Final = "gpuplane/gpuplane"
FIELD_MANAGER_PREFIX: Final = "gpuplane-"

# -- resources ---------------------------------------------------------------------------------------------------
GPU_RESOURCE: Final = "nvidia.com/gpu"

# -- node feature discovery --------------------------------------------------------------------------------------
FEATURE_PREFIX: Final = "feature.node.kubernetes.io/"
PCI_PRESENT_LABELS: Final = (
    # Which of the three a cluster has depends on how its node feature discovery spells PCI classes.
    FEATURE_PREFIX + "pci-10de.present",
    FEATURE_PREFIX + "pci-0302_10de.present",
    FEATURE_PREFIX + "pci-0300_10de.present",
)
KERNEL_VERSION_LABEL: Final = FEATURE_PREFIX + "kernel-version.full"
OS_ID_LABEL: Final = FEATURE_PREFIX + "system-os_release.ID"
OS_VERSION_LABEL: Final = FEATURE_PREFIX + "system-os_release.VERSION_ID"

# -- the operator's node labels ----------------------------------------------------------------------------------
GPU_PRESENT_LABEL: Final = "nvidia.com/gpu.present"
DEPLOY_PREFIX: Final = "nvidia.com/gpu.deploy."
DEPLOY_OPERANDS_LABEL: Final = DEPLOY_PREFIX + "operands"  # "false" is the node's opt-out
PLUGIN_CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"
UPGRADE_STATE_LABEL: Final = "nvidia.com/gpu-driver-upgrade-state"
NOT_READY_TAINT: Final = "nvidia.com/gpu-not-ready"

# -- environment ---------------------------------------------------------------------------------------------------
# "false" where ClusterPolicy spec.driver.enabled is: the driver's operand then looks for a driver and installs none.
DRIVER_INSTALL_ENV: Final = "GPUPLANE_DRIVER_INSTALL"

# -- CDI ---------------------------------------------------------------------------------------------------------
CDI_KIND: Final = "nvidia.com/gpu"
CDI_MANAGEMENT_KIND: Final = "management.nvidia.com/gpu"
VISIBLE_DEVICES_ENV: Final = "NVIDIA_VISIBLE_DEVICES"

# -- paths on a host, relative to its root -----------------------------------------------------------------------
DRIVER_ROOT: Final = "run/nvidia/driver"
VALIDATIONS_DIR: Final = "run/nvidia/validations"
CDI_DIR: Final = "var/run/cdi"
TOOLKIT_DIR: Final = "usr/local/nvidia/toolkit"
KUBELET_DIR: Final = "var/lib/kubelet"
DEVICE_PLUGIN_DIR: Final = "device-plugins"  # below the kubelet's directory
POD_RESOURCES_SOCKET: Final = "pod-resources/kubelet.sock"  # below the kubelet's directory

# -- what the host-side operands leave on a host, relative to its root -------------------------------------------
STATE_DIR: Final = "var/lib/gpuplane"  # what was changed and how it was before, one folder a component
DRIVER_READY: Final = VALIDATIONS_DIR + "/driver-ready"  # an env file, see gpuplane.driver.ready
HOST_DRIVER_READY: Final = VALIDATIONS_DIR + "/host-driver-ready"  # older releases' word for a driver of the host's own
TOOLKIT_READY: Final = VALIDATIONS_DIR + "/toolkit-ready"
CUDA_READY: Final = VALIDATIONS_DIR + "/cuda-ready"
PLUGIN_READY: Final = VALIDATIONS_DIR + "/plugin-ready"
SIMGPU_STATE: Final = "var/lib/simgpu/state"  # there: the root's GPUs are simulated
