"""The limits of containers that hold a share: what they get at Allocate, and their pages when they start."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from gpuplane import names
from gpuplane.device_plugin.container_lookup import AdmittedContainer
from gpuplane.device_plugin.shares.ids import core_of, share_name
from gpuplane.device_plugin.shares.settings import NO_SETTINGS, ShareSettings
from gpuplane.host import HostMount
from gpuplane.limits import GpuLimit, Limits, Owner, RealLibraries, Share, ShareStore, container, find_real, install
from gpuplane.sharing import WHOLE, Part
from kubekit.errors import Terminal

log = logging.getLogger("gpuplane.device-plugin")

MIB = 1 << 20


class ShareLimits:
    """Those of one node.

    Args:
        host_root: the node's file system as we see it.
        now: RFC 3339 UTC.
        settings: of the node's administrator.
    """

    def __init__(self, host_root: Path, now: Callable[[], str], settings: ShareSettings = NO_SETTINGS) -> None:
        self._settings = settings
        self.store = ShareStore(host_root / names.LIMITS_DIR, Path("/") / names.LIMITS_DIR)
        self._host_root = host_root
        self._now = now
        self._real: RealLibraries | None = None

    def prepare(self) -> None:
        """Put the interposed libraries in place. Raises Terminal when the driver's or our own are missing."""
        found = find_real({}, root=self._host_root, cache="")
        self._real = RealLibraries(*(_on_host(path, self._host_root) for path in (found.cuda, found.nvml)))
        install(self.store)

    def given(self, ids: Sequence[str]) -> tuple[tuple[HostMount, ...], dict[str, str]]:
        """Mounts and variables of a container with these core ids; none with whole GPUs.

        NB: the page is not there yet: whose ids they are is known when the container starts.
        """
        core = core_of(ids)
        if any(percent == WHOLE for percent in core.values()):
            return (), {}
        if self._real is None:
            raise Terminal("the interposed libraries are not installed", where=names.LIMITS_DIR)
        base = Path("/") / names.LIMITS_DIR
        injection = container(self.store, share_name(ids), self._real, base=base)
        return injection.mounts, injection.envs

    def write(self, share: str, holder: AdmittedContainer, part: Part) -> None:
        """The pages of the container that is about to start (see `share_name`); existing pages stay."""
        meta = holder.pod.metadata
        name = f"{meta.namespace}/{meta.name}:{holder.container}"
        limit = GpuLimit(
            uuid=part.uuid,
            core=part.core,
            memory_bytes=part.memory_mib * MIB,
            saved_ms=self._settings.saved_ms,
        )
        owner = Owner(
            name=name,
            since=self._now(),
            namespace=meta.namespace,
            pod=meta.name,
            pod_uid=meta.uid,
            container=holder.container,
        )
        with contextlib.suppress(FileNotFoundError):
            before = self.store.read(share).owner
            if (before.pod_uid, before.container) == (owner.pod_uid, owner.container):
                owner = before  # a container that starts again is the same share as before
        self.store.write(share, Limits((limit,)), owner)
        self.store.vacate(share)  # the kubelet starts a container only when the one before it has ended
        log.info(
            "limits written container=%s core=%d memory_mib=%d gpu=%d", name, part.core, part.memory_mib, part.index
        )

    def is_gone(self, lives: Callable[[str], bool]) -> Callable[[Share], bool]:
        """For the agent: whether a share's pod is no more. Shares of commands are looked after by those."""
        return lambda share: bool(share.owner.pod_uid) and not lives(share.owner.pod_uid)


def _on_host(path: Path, host_root: Path) -> Path:
    """The path as the host has it."""
    return Path("/") / PurePosixPath(path).relative_to(host_root)
