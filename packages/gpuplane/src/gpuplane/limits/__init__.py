"""Limits of a container on its GPUs: the pages shared with the interposed libraries, and the agent that reconciles.

    store = Store(Path("/var/lib/gpuplane/limits"))
    install(store)                                                      # once: the libraries, for containers to mount
    real = find_real({}, root=driver_root)                              # the driver's own
    what = container(store, "ids-4711", real)                           # Allocate: mounts and variables
    store.write("ids-4711", limits, Owner(name="ml/tune-7:main", ...))  # PreStartContainer: now it is known who it is
    store.vacate("ids-4711")                                            # and no process of an earlier start lives
    store.resize("ids-4711", other_limits)                              # live
    with Arbiter(store) as arbiter:                                     # whose turn it is on each GPU
        await Agent(store, gpus, arbiter=arbiter, is_gone=..., on_escape=...).run()  # once a second

The directory of a share is named by who writes it; for a device plugin a digest of the allocated ids, which it knows at
both moments.
"""

from gpuplane.limits import native
from gpuplane.limits.agent import ESCAPED, Agent, message
from gpuplane.limits.arbiter import Arbiter
from gpuplane.limits.breach import Escape
from gpuplane.limits.choice import LimitRequest, check, choose, gib
from gpuplane.limits.exposition import share_metrics
from gpuplane.limits.facts import CoreMode, GpuLimit, LimitBackend, Limits, Owner, Share
from gpuplane.limits.injection import (
    Injection,
    command,
    container,
    install,
    limiter,
    link,
    mps_daemon,
    other_backend,
)
from gpuplane.limits.libraries import RealLibraries, find_real
from gpuplane.limits.observe import Observer
from gpuplane.limits.store import ShareStore
from gpuplane.limits.view import GpuView, OutsideView, ShareView, views

__all__ = [
    "ESCAPED",
    "Agent",
    "Arbiter",
    "CoreMode",
    "Escape",
    "GpuLimit",
    "GpuView",
    "Injection",
    "LimitBackend",
    "LimitRequest",
    "Limits",
    "Observer",
    "OutsideView",
    "Owner",
    "RealLibraries",
    "Share",
    "ShareStore",
    "ShareView",
    "check",
    "choose",
    "command",
    "container",
    "find_real",
    "gib",
    "install",
    "limiter",
    "link",
    "message",
    "mps_daemon",
    "native",
    "other_backend",
    "share_metrics",
    "views",
]
