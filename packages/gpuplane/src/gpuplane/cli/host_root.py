"""The option `--host-root` of commands that look at a mounted root, such as that of an embedded cluster's node."""

from __future__ import annotations

from pathlib import Path

from kubekit.errors import UsageError


def require_root(root: Path) -> Path:
    """Return the root. Raises UsageError where there is no such directory, with those of other nodes next to it."""
    if root.is_dir():
        return root
    cure = "name a mounted root, or /"
    if nodes := sorted(place.parent.name for place in root.parent.parent.glob(f"*/{root.name}") if place.is_dir()):
        cure = f"the nodes in {root.parent.parent} are {', '.join(nodes)}"
    raise UsageError("it is no directory", where=f"--host-root {root}", cure=cure)
