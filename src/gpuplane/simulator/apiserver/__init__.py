"""The embedded Kubernetes API server.

`Registry` is its inside, for what runs in the same process; `server` puts it on a port.
"""

from gpuplane.simulator.apiserver.builtin import ResourceInfo
from gpuplane.simulator.apiserver.failure import ApiFailure
from gpuplane.simulator.apiserver.hooks import SYSTEM, User
from gpuplane.simulator.apiserver.registry import Registry, copy

__all__ = ["SYSTEM", "ApiFailure", "Registry", "ResourceInfo", "User", "copy"]
