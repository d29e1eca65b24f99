"""log, exec, attach and port-forward: streams between clients and kubelets."""

from gpuplane.simulator.apiserver.streams.handlers import Streams
from gpuplane.simulator.apiserver.streams.upgrade import UpgradableProtocol

__all__ = ["Streams", "UpgradableProtocol"]
