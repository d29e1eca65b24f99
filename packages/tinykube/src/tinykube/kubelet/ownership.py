"""Owners of a volume's files: the group that a pod asks for with `fsGroup`, and the user of its tokens.

Only the users of containers can give files away, so a shell in a user namespace like theirs does it.

Source: pkg/volume/volume_linux.go of Kubernetes 1.36.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tinykube.kubelet.atomicfiles import VolumeFile
from tinykube.kubelet.containers import Isolation, IsolationMode
from tinykube.kubelet.pod import KubeletPod, every_container

_ABLE: Final = (Isolation.ROOT, Isolation.USERS)


def volume_group(pod: KubeletPod, mode: IsolationMode) -> int | None:
    """Return the group of the pod's volumes; None where there is none, or none that this mode has."""
    group = pod.spec.security_context.fs_group
    return group if mode.isolation in _ABLE and mode.has_group(group) else None


def token_user(pod: KubeletPod) -> int | None:
    """Return the user of all containers, who owns the pod's tokens; None where they differ or an image decides."""
    shared = pod.spec.security_context.run_as_user
    users = {
        shared if container.security_context.run_as_user is None else container.security_context.run_as_user
        for container in every_container(pod)
    }
    return users.pop() if len(users) == 1 else None


def can_own(user: int | None, mode: IsolationMode) -> bool:
    """Return whether this user can own files of volumes."""
    return user is not None and mode.isolation in _ABLE and mode.has_user(user)


def owner_script(top: Path, group: int | None, *, read_only: bool = False) -> str:
    """Return a shell's commands that give `top` and all in it to a group; empty for no group.

    The group may read all, write all unless `read_only`, and owns what is made there later.
    """
    place = shlex.quote(str(top))
    lines = []
    if group is not None:
        access = "r" if read_only else "rw"
        lines += [
            f"chgrp -hR {group} {place}",
            f"find {place} -type d -exec chmod ug+{access}x,g+s {{}} +",
            f"find {place} ! -type d ! -type l -exec chmod ug+{access} {{}} +",
        ]
    return " && ".join(lines)


def user_script(folder: Path, files: Mapping[str, VolumeFile]) -> str:
    """Return a shell's commands that give files of `folder` to their users; empty for nothing to do."""
    return " && ".join(
        f"chown {file.user} {shlex.quote(str(folder / name))}" for name, file in files.items() if file.user is not None
    )


def group_differs(folder: Path, group: int) -> bool:
    """Return whether the top of a volume has another group, or less access than `fsGroup` gives."""
    facts = folder.stat()
    return facts.st_gid != group or facts.st_mode & 0o2770 != 0o2770
