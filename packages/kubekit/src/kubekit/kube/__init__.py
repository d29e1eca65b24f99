"""The Kubernetes client, informers, work queues, controllers, elections and events.

    async with Client.connect() as client:
        async for event in client.watch(Node): ...

See docs/components/kube.md.
"""

from kubekit.kube.cache import InformerCache
from kubekit.kube.client import Client
from kubekit.kube.clock import Clock, SystemClock, TokenBucket
from kubekit.kube.codec import ListPage
from kubekit.kube.config import ApiEndpoint
from kubekit.kube.controller import Controller, ControllerStats, Source
from kubekit.kube.errors import (
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
from kubekit.kube.events import EventRecorder
from kubekit.kube.informer import Informer
from kubekit.kube.informers import SharedInformers
from kubekit.kube.lease import Fenced, Lease, LeaseLost
from kubekit.kube.queue import QueueClosed, WorkQueue
from kubekit.kube.watch import EventType, WatchEvent

__all__ = [
    "AlreadyExists",
    "ApiEndpoint",
    "ApiError",
    "BadRequest",
    "Client",
    "Clock",
    "ConfigError",
    "Conflict",
    "Controller",
    "ControllerStats",
    "EventRecorder",
    "EventType",
    "Fenced",
    "Forbidden",
    "Gone",
    "Informer",
    "InformerCache",
    "Invalid",
    "Lease",
    "LeaseLost",
    "ListPage",
    "NotFound",
    "QueueClosed",
    "ServerError",
    "SharedInformers",
    "Source",
    "SystemClock",
    "TokenBucket",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "WatchEvent",
    "WorkQueue",
]
