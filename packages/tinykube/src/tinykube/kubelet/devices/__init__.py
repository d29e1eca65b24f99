"""The kubelet's device manager: plugins over gRPC, who holds which device, the checkpoint, pod-resources."""

from tinykube.kubelet.devices.ledger import Device, Given, Ledger, choose
from tinykube.kubelet.devices.manager import DeviceManager

__all__ = ["Device", "DeviceManager", "Given", "Ledger", "choose"]
