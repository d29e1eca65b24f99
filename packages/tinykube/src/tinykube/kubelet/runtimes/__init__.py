"""The container runtimes of simulated nodes: they read their configuration as the real ones do, and inject CDI
devices."""

from tinykube.kubelet.runtimes.config import Handler, RuntimeConfig, RuntimeDown, read_config
from tinykube.kubelet.runtimes.runtime import ContainerRuntime, CreateFailed

__all__ = ["ContainerRuntime", "CreateFailed", "Handler", "RuntimeConfig", "RuntimeDown", "read_config"]
