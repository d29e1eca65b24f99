"""The claims, classes and slices of the cluster, with the devices that claims hold, counted incrementally.

Invariants:

- A device is held by the claims whose allocation names it, stored or assumed. Access of administrators holds nothing.
- An assumption holds for the version of the claim that it was made on: a newer version that a watch delivers ends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal

from kubekit.scheduling.devices.expressions import matches
from kubekit.scheduling.devices.facts import (
    Amounts,
    DeviceClaim,
    DeviceClassInfo,
    DeviceId,
    SliceDevice,
    SliceInfo,
)
from kubekit.scheduling.devices.pools import PoolId


class DeviceStore:
    """Looks up claims by `namespace/name`, classes by name."""

    def __init__(self) -> None:
        self.classes: dict[str, DeviceClassInfo] = {}
        self.pools: dict[PoolId, dict[str, SliceInfo]] = {}
        self.dedicated: Counter[DeviceId] = Counter()
        self.shares: Counter[DeviceId] = Counter()
        self.consumed: dict[DeviceId, Amounts] = {}
        self._claims: dict[str, DeviceClaim] = {}
        self._assumed: dict[str, DeviceClaim] = {}
        self._slices: dict[str, SliceInfo] = {}
        self._of_node: dict[str, dict[str, SliceInfo]] = {}  # under "" those that several nodes may reach
        self._matches: dict[str, dict[tuple[str, tuple[str, ...]], bool]] = {}  # by slice

    # -- claims ------------------------------------------------------------------------------------------------------

    def claim(self, key: str) -> DeviceClaim | None:
        """Return a claim, with what is assumed of it."""
        return self._assumed.get(key) or self._claims.get(key)

    def is_pending(self, key: str) -> bool:
        """Return whether the claim is being allocated, and no write has been accepted yet."""
        assumed, stored = self._assumed.get(key), self._claims.get(key)
        return assumed is not None and stored is not None and assumed.resource_version == stored.resource_version

    def set_claim(self, claim: DeviceClaim) -> None:
        """Store a claim as a watch delivered it."""
        before = self.claim(claim.key)
        self._claims[claim.key] = claim
        assumed = self._assumed.get(claim.key)
        if assumed is not None:
            same = claim.resource_version == assumed.resource_version
            delivered = claim.allocation is not None if same else not _is_older(claim, assumed)
            if delivered or assumed.uid != claim.uid:
                del self._assumed[claim.key]
        self._recount(before, self.claim(claim.key))

    def remove_claim(self, key: str) -> None:
        """Forget a claim that is gone."""
        before = self.claim(key)
        self._claims.pop(key, None)
        self._assumed.pop(key, None)
        self._recount(before, None)

    def assume(self, claim: DeviceClaim) -> None:
        """Take a claim as changed: allocated, or as the API server answered a write."""
        before = self.claim(claim.key)
        self._assumed[claim.key] = claim
        self._recount(before, claim)

    def restore(self, claim: DeviceClaim) -> bool:
        """End an assumption of this version; return whether there was one."""
        assumed = self._assumed.get(claim.key)
        if assumed is None or assumed.resource_version != claim.resource_version or assumed.uid != claim.uid:
            return False
        del self._assumed[claim.key]
        self._recount(assumed, self._claims.get(claim.key))
        return True

    def _recount(self, before: DeviceClaim | None, now: DeviceClaim | None) -> None:
        if before is not now:
            self._count(before, -1)
            self._count(now, 1)

    def _count(self, claim: DeviceClaim | None, sign: int) -> None:
        for held in claim.devices if claim is not None else ():
            if held.admin:
                continue
            counts = self.shares if held.share else self.dedicated
            counts[held.id] += sign
            if not counts[held.id]:
                del counts[held.id]
            if held.share:
                used = self.consumed.setdefault(held.id, {})
                for name, amount in held.consumed:
                    used[name] = used.get(name, Decimal(0)) + sign * amount
                if held.id not in self.shares:
                    del self.consumed[held.id]

    # -- slices ------------------------------------------------------------------------------------------------------

    def slices_for(self, node: str) -> Iterator[SliceInfo]:
        """Yield the slices that a node may reach."""
        yield from self._of_node.get(node, {}).values()
        yield from self._of_node.get("", {}).values()

    def set_slice(self, one: SliceInfo) -> None:
        """Store a slice."""
        self.remove_slice(one.name)
        self._slices[one.name] = one
        self._of_node.setdefault(_home(one), {})[one.name] = one
        self.pools.setdefault((one.driver, one.pool), {})[one.name] = one

    def remove_slice(self, name: str) -> None:
        """Forget a slice that is gone."""
        known = self._slices.pop(name, None)
        self._matches.pop(name, None)
        if known is not None:
            del self._of_node[_home(known)][name]
            del self.pools[known.driver, known.pool][name]

    def matches(self, one: SliceInfo, device: SliceDevice, selectors: tuple[str, ...], of: str) -> bool:
        """Return whether a device of a slice matches selectors. Raises SelectorError."""
        if not selectors:
            return True
        known = self._matches.setdefault(one.name, {})
        key = device.name, selectors
        if key not in known:
            known[key] = matches(selectors, one.driver, device, of)
        return known[key]


def _home(one: SliceInfo) -> str:
    return "" if one.counters else one.nodes.node


def _is_older(claim: DeviceClaim, than: DeviceClaim) -> bool:
    version, other = claim.resource_version, than.resource_version
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)
