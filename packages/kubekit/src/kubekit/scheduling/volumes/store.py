"""The claims, volumes and classes of the cluster, and what was decided about them and no watch has delivered yet.

Invariants:

- An assumption holds for the version of the object that it was made on: a newer version that a watch delivers ends it.
- The users of a claim are the placed pods that name it; the claims of their own templates are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from kubekit.scheduling.volumes.facts import (
    AttachmentInfo,
    ClaimInfo,
    PodVolume,
    StorageCapacityInfo,
    StorageClassInfo,
    VolumeInfo,
)


class VolumeStore:
    """Looks up objects by their keys: `namespace/name` of a claim, else the name."""

    def __init__(self) -> None:
        self.classes: dict[str, StorageClassInfo] = {}
        self.node_limits: dict[str, dict[str, int]] = {}
        self.tracked_drivers: set[str] = set()  # CSI drivers that publish the storage that is left
        self.capacities: dict[str, StorageCapacityInfo] = {}
        self._claims: dict[str, ClaimInfo] = {}
        self._volumes: dict[str, VolumeInfo] = {}
        self._of_class: dict[str, dict[str, None]] = {}
        self._assumed_claims: dict[str, ClaimInfo] = {}
        self._assumed_volumes: dict[str, VolumeInfo] = {}
        self._attachments: dict[str, AttachmentInfo] = {}
        self._attached_to: dict[str, dict[str, AttachmentInfo]] = {}
        self._users: Counter[str] = Counter()

    # -- reading -----------------------------------------------------------------------------------------------------

    def claim(self, key: str) -> ClaimInfo | None:
        """Return a claim, with what is assumed of it."""
        return self._assumed_claims.get(key) or self._claims.get(key)

    def volume(self, name: str) -> VolumeInfo | None:
        """Return a volume, with what is assumed of it."""
        return self._assumed_volumes.get(name) or self._volumes.get(name)

    def stored_claim(self, key: str) -> ClaimInfo | None:
        """Return a claim as a watch delivered it."""
        return self._claims.get(key)

    def stored_volume(self, name: str) -> VolumeInfo | None:
        """Return a volume as a watch delivered it."""
        return self._volumes.get(name)

    def of_class(self, storage_class: str) -> Iterator[VolumeInfo]:
        """Yield the volumes of a class, with what is assumed of them."""
        for name in self._of_class.get(storage_class, ()):
            yield self._assumed_volumes.get(name) or self._volumes[name]

    def attached_to(self, node: str) -> Iterable[AttachmentInfo]:
        """Return what drivers have attached to a node."""
        return self._attached_to.get(node, {}).values()

    def is_used(self, claim: str) -> bool:
        """Return whether a placed pod names the claim."""
        return claim in self._users

    # -- changes -----------------------------------------------------------------------------------------------------

    def set_claim(self, claim: ClaimInfo) -> None:
        """Store a claim as a watch delivered it."""
        self._claims[claim.key] = claim
        assumed = self._assumed_claims.get(claim.key)
        if assumed is not None and assumed.resource_version != claim.resource_version:
            del self._assumed_claims[claim.key]

    def remove_claim(self, key: str) -> None:
        """Forget a claim that is gone."""
        self._claims.pop(key, None)
        self._assumed_claims.pop(key, None)

    def set_volume(self, volume: VolumeInfo) -> None:
        """Store a volume as a watch delivered it."""
        self._unlist(volume.name)
        self._volumes[volume.name] = volume
        self._of_class.setdefault(volume.storage_class, {})[volume.name] = None
        assumed = self._assumed_volumes.get(volume.name)
        if assumed is not None and assumed.resource_version != volume.resource_version:
            del self._assumed_volumes[volume.name]

    def remove_volume(self, name: str) -> None:
        """Forget a volume that is gone."""
        self._unlist(name)
        self._volumes.pop(name, None)
        self._assumed_volumes.pop(name, None)

    def _unlist(self, name: str) -> None:
        known = self._volumes.get(name)
        if known is not None:
            names = self._of_class[known.storage_class]
            names.pop(name, None)
            if not names:
                del self._of_class[known.storage_class]

    def set_attachment(self, attachment: AttachmentInfo) -> None:
        """Store a volume's attachment."""
        self.remove_attachment(attachment.name)
        self._attachments[attachment.name] = attachment
        self._attached_to.setdefault(attachment.node, {})[attachment.name] = attachment

    def remove_attachment(self, name: str) -> None:
        """Forget an attachment that is gone."""
        known = self._attachments.pop(name, None)
        if known is not None:
            there = self._attached_to[known.node]
            del there[name]
            if not there:
                del self._attached_to[known.node]

    def count(self, namespace: str, volumes: Iterable[PodVolume], sign: int) -> None:
        """Add (sign 1) or take back (sign -1) a placed pod as a user of its claims."""
        for volume in volumes:
            if volume.claim and not volume.ephemeral:
                key = f"{namespace}/{volume.claim}"
                self._users[key] += sign
                if not self._users[key]:
                    del self._users[key]

    # -- assumptions -------------------------------------------------------------------------------------------------

    def assume_volume(self, volume: VolumeInfo) -> None:
        """Take a volume as changed, until a watch delivers another version of it."""
        self._assumed_volumes[volume.name] = volume

    def assume_claim(self, claim: ClaimInfo) -> None:
        """Take a claim as changed, until a watch delivers another version of it."""
        self._assumed_claims[claim.key] = claim

    def restore_volume(self, volume: VolumeInfo) -> bool:
        """End an assumption; return whether there was one."""
        assumed = self._assumed_volumes.get(volume.name)
        if assumed is None or assumed.resource_version != volume.resource_version:
            return False
        del self._assumed_volumes[volume.name]
        return True

    def restore_claim(self, claim: ClaimInfo) -> bool:
        """End an assumption; return whether there was one."""
        assumed = self._assumed_claims.get(claim.key)
        if assumed is None or assumed.resource_version != claim.resource_version:
            return False
        del self._assumed_claims[claim.key]
        return True


class VolumePlan(msgspec.Struct, frozen=True):
    """Bindings of claims that have to be made before a pod is bound to `node`.

    `static`: volumes that are there, as they will be, with their claims. `provisions`: claims, as they will be, for
    which a volume is made near the node.
    """

    node: str
    static: tuple[tuple[VolumeInfo, ClaimInfo], ...] = ()
    provisions: tuple[ClaimInfo, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.static or self.provisions)
