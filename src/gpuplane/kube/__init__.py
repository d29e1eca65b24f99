"""The Kubernetes client, informers, work queues, controllers, elections and events.

    async with Client.connect() as client:
        async for event in client.watch(Node): ...

See docs/components/kube.md.
"""

from gpuplane.kube.cache import Cache
from gpuplane.kube.client import Client
from gpuplane.kube.clock import Clock, SystemClock, TokenBucket
from gpuplane.kube.codec import Page
from gpuplane.kube.config import Endpoint
from gpuplane.kube.controller import Controller, ControllerStats, Source
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
from gpuplane.kube.events import EventRecorder
from gpuplane.kube.informer import Informer
from gpuplane.kube.lease import Fenced, Lease, LeaseLost
from gpuplane.kube.queue import QueueClosed, WorkQueue
from gpuplane.kube.watch import Event, EventType

__all__ = [
    "AlreadyExists",
    "ApiError",
    "BadRequest",
    "Cache",
    "Client",
    "Clock",
    "ConfigError",
    "Conflict",
    "Controller",
    "ControllerStats",
    "Endpoint",
    "Event",
    "EventRecorder",
    "EventType",
    "Fenced",
    "Forbidden",
    "Gone",
    "Informer",
    "Invalid",
    "Lease",
    "LeaseLost",
    "NotFound",
    "Page",
    "QueueClosed",
    "ServerError",
    "Source",
    "SystemClock",
    "TokenBucket",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "WorkQueue",
]
