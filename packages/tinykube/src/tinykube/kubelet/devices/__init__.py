"""The kubelet's device manager: plugins over gRPC, who holds which device, the checkpoint, pod-resources."""

from tinykube.kubelet.devices.ledger import ContainerDevices, DeviceLedger, ListedDevice, choose
from tinykube.kubelet.devices.manager import DeviceManager

__all__ = ["ContainerDevices", "DeviceLedger", "DeviceManager", "ListedDevice", "choose"]
