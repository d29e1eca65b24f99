"""Every file below a root with kind, mode, owner and content, so that two moments can be compared byte for byte."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from gpulab.kubernetes.node import KubernetesNode

ABSENT: Final = "absent"
# Paths that may stay on a machine: logs, the runtime's and the kubelet's own state, and the simulated hardware itself.
KEPT: Final = ("var/log/", "var/lib/cni/", "var/lib/simgpu/state", "proc/sys/kernel/random/")
Files = dict[str, str]
"""Path below the root -> kind, mode, owner, and the content's digest or a link's target."""


def files(root: Path, kept: tuple[str, ...]) -> Files:
    """All but sockets and what is `kept`: paths, or directories with a slash at the end."""
    found = {}
    for directory, folders, plain in os.walk(root):
        for name in (*folders, *plain):
            path = Path(directory) / name
            place = str(path.relative_to(root))
            if f"{place}/".startswith(kept) or place in kept or path.is_socket():
                continue
            found[place] = facts(path)
    return found


def of_machine(node: KubernetesNode) -> Files:
    """A machine's own files, to be compared with those of another moment.

    A directory of this machine's is in the upper layer as soon as something below it was written; it is the same.
    """
    found = files(node.root, KEPT)
    return {path: status for path, status in found.items() if status != facts(Path("/", path))}


def facts(path: Path) -> str:
    """Of one file: kind, mode, owner, and the content's digest or a link's target; `absent` for none."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ABSENT
    content = ""
    if stat.S_ISLNK(status.st_mode):
        content = f"-> {path.readlink()}"
    elif stat.S_ISREG(status.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid} {content}".rstrip()


def difference(before: Files, after: Files) -> dict[str, tuple[str, str]]:
    """Path -> what it was and what it is."""
    return {
        path: (before.get(path, ABSENT), after.get(path, ABSENT))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    }
