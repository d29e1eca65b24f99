"""log, exec, attach and port-forward: streams between clients and kubelets."""

from tinykube.apiserver.streams.handlers import Streams
from tinykube.apiserver.streams.upgrade import UpgradableProtocol

__all__ = ["Streams", "UpgradableProtocol"]
