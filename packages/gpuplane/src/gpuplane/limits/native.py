"""The native backend: a cgroup of its own for a command, which the driver holds to an amount of memory (from r615 on).

The driver counts everything, contexts too, and shows the limit as the GPU's memory; nothing is interposed. It has no
limits of compute time. A group lies at the top of the hierarchy, where no ancestor has to reserve what it is promised.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from gpuplane.limits.facts import GpuLimit
from kubekit.errors import KubekitError, Terminal

PROC: Final = Path("/proc")
_PREFIX: Final = "gpuplane-share-"
_CURE: Final = "run it as root on cgroup v2; or --backend interposed"


def unified(proc: Path = PROC) -> Path | None:
    """Return where cgroups of version 2 are mounted."""
    lines = (proc / "self/mountinfo").read_text().splitlines()
    return next((Path(line.split()[4]) for line in lines if " - cgroup2 " in line), None)


def hold(share: str, limit: GpuLimit) -> Path:
    """A new cgroup that the driver holds to `limit`.

    Raises:
        Terminal: no cgroups can be made here, or the driver has no such limits.
    """
    from gpuplane.hardware.memory_limits import set_memory_limit

    top = unified()
    if top is None or not os.access(top, os.W_OK):
        raise Terminal(
            "native: no cgroup of version 2 can be made here", where=str(top or "/sys/fs/cgroup"), cure=_CURE
        )
    with contextlib.suppress(OSError):  # a kernel without the controller: the driver counts by itself
        (top / "cgroup.subtree_control").write_text("+dmem")
    group = top / f"{_PREFIX}{share}"
    group.mkdir()
    try:
        set_memory_limit(limit.uuid, group, limit.memory_bytes)
    except KubekitError:
        group.rmdir()
        raise
    return group


@contextlib.contextmanager
def inside(group: Path | None) -> Iterator[None]:
    """Start processes in this context in the group from their first instruction on; None for no group."""
    if group is None:
        yield
        return
    lines = (PROC / "self/cgroup").read_text().splitlines()
    own = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (group.parent / own.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))


def used(group: Path, uuid: str) -> int:
    """Bytes that the group holds of a GPU. Raises KubekitError."""
    from gpuplane.hardware.memory_limits import memory_limit

    found = memory_limit(uuid, group)
    return found[1] if found is not None else 0


def release(group: Path, uuid: str) -> None:
    """Remove the limit and the group; while a process is in it, both stay."""
    from gpuplane.hardware.memory_limits import set_memory_limit

    if (group / "cgroup.procs").read_text():
        return
    with contextlib.suppress(KubekitError):  # a driver that is gone has forgotten it; else the promise goes first
        set_memory_limit(uuid, group, None)
    with contextlib.suppress(OSError):
        group.rmdir()


def sweep(shares: Collection[str]) -> None:
    """Delete the groups of shares that have ended and have no process left."""
    top = unified()
    for group in top.glob(f"{_PREFIX}*") if top is not None else ():
        if group.name.removeprefix(_PREFIX) not in shares:
            with contextlib.suppress(OSError):
                group.rmdir()
