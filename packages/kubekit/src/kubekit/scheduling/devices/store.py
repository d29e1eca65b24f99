"""The claims, classes and slices of the cluster, with the devices that claims hold, counted incrementally.

Invariants:

- A device is held by the claims whose allocation names it: those about to get it, those that were written and that no
  watch has delivered yet, and those that are stored. Access of administrators holds nothing.
- A claim is about to get devices until `written` or `restore`, whatever watches deliver meanwhile.
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
        self._pending: dict[str, DeviceClaim] = {}
        self._written: dict[str, DeviceClaim] = {}
        self._slices: dict[str, SliceInfo] = {}
        self._of_node: dict[str, dict[str, SliceInfo]] = {}  # under "" those that several nodes may reach
        self._matches: dict[str, dict[tuple[str, tuple[str, ...]], bool]] = {}  # by slice

    # -- claims ------------------------------------------------------------------------------------------------------

    def claim(self, key: str) -> DeviceClaim | None:
        """Return a claim, with what is assumed of it."""
        return self._pending.get(key) or self._written.get(key) or self._claims.get(key)

    def is_pending(self, key: str) -> bool:
        """Return whether the claim is being allocated, and no write has been accepted yet."""
        return key in self._pending

    def set_claim(self, claim: DeviceClaim) -> None:
        """Store a claim as a watch delivered it."""
        key = claim.key
        before = self.claim(key)
        self._claims[key] = claim
        # NB: a claim that is being allocated has other writes too, such as that of its finalizer.
        if key in self._pending and self._pending[key].uid != claim.uid:
            del self._pending[key]
        if key in self._written and not _is_older(claim, self._written[key]):
            del self._written[key]
        self._recount(before, self.claim(key))

    def remove_claim(self, key: str) -> None:
        """Forget a claim that is gone."""
        before = self.claim(key)
        for claims in (self._claims, self._pending, self._written):
            claims.pop(key, None)
        self._recount(before, None)

    def assume(self, claim: DeviceClaim) -> None:
        """Count the devices that a claim is about to get."""
        before = self.claim(claim.key)
        self._pending[claim.key] = claim
        self._recount(before, claim)

    def written(self, claim: DeviceClaim) -> None:
        """Store a claim as the API server answered a write, until a watch delivers it."""
        before, stored = self.claim(claim.key), self._claims.get(claim.key)
        self._pending.pop(claim.key, None)
        if stored is not None and stored.uid == claim.uid and _is_older(stored, claim):
            self._written[claim.key] = claim
        self._recount(before, self.claim(claim.key))

    def restore(self, claim: DeviceClaim) -> bool:
        """End the assumption that a claim gets devices; return whether there was one."""
        if self._pending.get(claim.key) is not claim:
            return False
        del self._pending[claim.key]
        self._recount(claim, self.claim(claim.key))
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
