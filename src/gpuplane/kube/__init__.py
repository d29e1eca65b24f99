"""The Kubernetes client, informers, work queues, controllers, elections and events.

    async with Client.connect() as client:
        async for event in client.watch(Node): ...

See docs/components/kube.md.
"""

from gpuplane.kube.client import Client
from gpuplane.kube.codec import Page
from gpuplane.kube.config import Endpoint
from gpuplane.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    ConfigError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from gpuplane.kube.watch import Event, EventType

__all__ = [
    "AlreadyExists",
    "ApiError",
    "BadRequest",
    "Client",
    "ConfigError",
    "Conflict",
    "Endpoint",
    "Event",
    "EventType",
    "Forbidden",
    "Gone",
    "Invalid",
    "NotFound",
    "Page",
    "ServerError",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
]
