"""The pods that name a claim, followed once for protection and for events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tinykube.controllers.volumes.ephemeral import ephemeral_claims

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name."""


class ClaimUsers:
    """Counts every pod with a node, also one that has ended: as long as it is there, its claim stays."""

    def __init__(self) -> None:
        self._pods: dict[Key, dict[str, bool]] = {}  # claim -> pods, and whether they have a node

    def set(self, pod: Object, *, present: bool) -> list[Key]:
        """Note that a pod is there or gone; return its claims."""
        meta = pod["metadata"]
        keys = [(meta["namespace"], name) for name in claims_of(pod)]
        for key in keys:
            if present:
                self._pods.setdefault(key, {})[meta["name"]] = bool(pod["spec"].get("nodeName"))
            elif key in self._pods:
                self._pods[key].pop(meta["name"], None)
                if not self._pods[key]:
                    del self._pods[key]
        return keys

    def is_used(self, claim: Key) -> bool:
        """Return whether a pod with a node names the claim."""
        return any(self._pods.get(claim, {}).values())

    def unplaced(self, claim: Key) -> str:
        """Return the name of a pod that names the claim and has no node, or an empty text."""
        return min((name for name, placed in self._pods.get(claim, {}).items() if not placed), default="")


def claims_of(pod: Object) -> Iterator[str]:
    """Yield the names of the claims of a pod's volumes: named ones, and those made for the pod."""
    for volume in pod["spec"].get("volumes") or ():
        if name := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            yield name
    yield from (name for name, _ in ephemeral_claims(pod))
