"""The embedded Kubernetes API server.

`Registry` is its inside, for what runs in the same process; `server` puts it on a port.
"""

from tinykube.apiserver.builtin import ResourceInfo
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.hooks import SYSTEM, User
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.writing import copy

__all__ = ["SYSTEM", "ApiFailure", "Registry", "ResourceInfo", "User", "copy"]
