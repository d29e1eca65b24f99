"""Finds devices of a node for the claims of a pod: the first solution in the order of claims, requests and devices.

Each device is tried in turn and counted as taken, and taken back when what follows has no solution. The order is that
of kube-scheduler 1.36, so where it finds devices, the same are found here. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import msgspec

from kubekit.errors import Retryable
from kubekit.scheduling.devices.capacity import consumed_by, fits
from kubekit.scheduling.devices.expressions import SelectorError
from kubekit.scheduling.devices.facts import (
    Amounts,
    Attribute,
    DeviceClaim,
    DeviceConstraint,
    DeviceId,
    DeviceRequest,
    DeviceTaint,
)
from kubekit.scheduling.devices.pools import DevicePool, PoolDevice, PoolId, gather_pools
from kubekit.scheduling.devices.store import DeviceStore
from kubekit.scheduling.podinfo import NodeFacts

MOST_RESULTS: Final = 32
"""Devices of one claim, which is the API's limit."""
MOST_TRIALS: Final = 100_000
"""Devices to try for one node: kube-scheduler ends a search after ten seconds."""
_HARD_EFFECTS: Final = ("NoSchedule", "NoExecute")
_NONE: Final = Decimal(0)


class SearchEnded(Retryable):
    """The search for devices was ended without a result, since it took too long."""


class ChosenDevice(msgspec.Struct, frozen=True):
    """A device for a request. `consumed` is what a share takes, None for a whole device."""

    request: DeviceRequest
    candidate: PoolDevice
    consumed: Amounts | None = None


ClaimDevices = tuple[ChosenDevice, ...]


class _ConstraintState:
    """The values that the chosen devices have."""

    def __init__(self, constraint: DeviceConstraint) -> None:
        self._constraint = constraint
        self._values: list[Attribute] = []

    def add(self, request: DeviceRequest, candidate: PoolDevice) -> bool:
        """Count a device, unless it violates the constraint."""
        if not self._applies(request):
            return True
        value = candidate.device.attributes.get(self._constraint.attribute)
        if value is None:
            return False
        if self._constraint.distinct:
            if value in self._values:
                return False
        elif self._values and value != self._values[0]:
            return False
        self._values.append(value)
        return True

    def remove(self, request: DeviceRequest) -> None:
        """Take the last device back."""
        if self._applies(request):
            self._values.pop()

    def _applies(self, request: DeviceRequest) -> bool:
        names = self._constraint.requests
        return not names or request.path in names or request.parent in names


class DeviceSearch:
    """Searches devices of one node for claims that have none."""

    def __init__(self, node: NodeFacts, claims: Sequence[DeviceClaim], store: DeviceStore) -> None:
        self._node = node
        self._claims = claims
        self._store = store
        self._pools = gather_pools(node, store.slices_for(node.name), store.pools)
        self._devices = [one for pool in self._pools if pool.usable for one in pool.candidates()]
        self._chosen: list[list[ChosenDevice]] = [[] for _ in claims]
        self._constraints = [[_ConstraintState(one) for one in claim.constraints] for claim in claims]
        self._taken: dict[DeviceId, Counter[int]] = {}
        self._shares: Counter[DeviceId] = Counter()
        self._consumed: dict[DeviceId, Amounts] = {}
        self._counters: dict[PoolId, dict[tuple[str, str], Decimal]] = {}
        self._left: dict[PoolId, dict[tuple[str, str], Decimal]] = {}
        self._all: dict[tuple[int, str], list[PoolDevice]] = {}
        self._trials = 0

    def run(self) -> tuple[ClaimDevices, ...] | None:
        """Return the devices for each claim, None if there are none. Raises SelectorError and SearchEnded."""
        for number, claim in enumerate(self._claims):
            self._prepare(number, claim)
        if self._solve(0, 0):
            return tuple(tuple(one) for one in self._chosen)
        if any(pool.why for pool in self._pools):
            raise SelectorError("invalid resource pools were encountered")
        return None

    def _prepare(self, number: int, claim: DeviceClaim) -> None:
        """Find the devices of requests for all devices, which are determined before."""
        for options in claim.requests:
            for request in options:
                if request.all_devices:
                    self._all[number, request.path] = self._every(claim, request)

    def _every(self, claim: DeviceClaim, request: DeviceRequest) -> list[PoolDevice]:
        found: list[PoolDevice] = []
        for pool in self._pools:
            if not pool.usable:
                state = "invalid" if pool.why else "being updated"
                raise SelectorError(
                    f"claim {claim.key}, request {request.name}: asks for all devices, but resource pool "
                    f"{'/'.join(pool.id)} is currently {state}"
                )
            found += [
                one
                for one in pool.candidates()
                if self._is_selectable(claim, request, one) and self._share(request, one) is not None
            ]
        return found

    # -- the search --------------------------------------------------------------------------------------------------

    def _solve(self, number: int, position: int) -> bool:
        """Allocate all requests from this one on."""
        if number == len(self._claims):
            return True
        requests = self._claims[number].requests
        if position == len(requests):
            return self._solve(number + 1, 0)
        return any(self._fill(number, position, request, 0, 0) for request in requests[position])

    def _fill(self, number: int, position: int, request: DeviceRequest, have: int, start: int) -> bool:
        """Allocate the rest of a request, with devices from `start` on, and all requests after it."""
        every = self._all.get((number, request.path))
        wanted = request.count if every is None else len(every)
        if not wanted:
            return False
        if have == wanted:
            return self._solve(number, position + 1)
        if len(self._chosen[number]) + wanted - have > MOST_RESULTS:
            return False
        if every is not None:
            return self._try(number, position, request, have, every[have], start)
        return any(
            self._try(number, position, request, have, self._devices[at], at + 1)
            for at in range(start, len(self._devices))
        )

    def _try(self, number: int, position: int, request: DeviceRequest, have: int, one: PoolDevice, start: int) -> bool:
        self._trials += 1
        if self._trials > MOST_TRIALS:
            raise SearchEnded(f"node {self._node.name}: timed out trying to allocate devices")
        if not self._take(number, request, one):
            return False
        if self._fill(number, position, request, have + 1, start):
            return True
        self._give_back(number)
        return False

    # -- one device --------------------------------------------------------------------------------------------------

    def _take(self, number: int, request: DeviceRequest, one: PoolDevice) -> bool:
        """Count a device as taken by a request, if it may have it."""
        if self._is_in_use(number, request, one.id):
            return False
        claim, device = self._claims[number], one.device
        if not self._is_selectable(claim, request, one):
            return False
        consumed = self._share(request, one)
        if consumed is None or any(_refuses(taint, request) for taint in device.taints):
            return False
        shared = device.shareable and (one.id in self._shares or one.id in self._store.shares)
        counted = bool(device.consumes) and not shared
        if counted and not self._has_counters(one):
            return False
        constraints = self._constraints[number]
        for at, constraint in enumerate(constraints):
            if not constraint.add(request, one):
                for earlier in constraints[:at]:
                    earlier.remove(request)
                return False
        if counted:
            self._count(one, 1)
        if device.shareable:
            self._shares[one.id] += 1
            _add(self._consumed.setdefault(one.id, {}), consumed, 1)
        else:
            self._taken.setdefault(one.id, Counter())[number] += 1
        self._chosen[number].append(ChosenDevice(request, one, consumed if device.shareable else None))
        return True

    def _give_back(self, number: int) -> None:
        """Undo the last `_take` for a claim."""
        last = self._chosen[number].pop()
        one = last.candidate
        if last.consumed is not None:
            _add(self._consumed[one.id], last.consumed, -1)
            self._shares[one.id] -= 1
            if not self._shares[one.id]:
                del self._shares[one.id]
        else:
            self._taken[one.id] -= Counter((number,))
        # The first share of a device has its counters, the others have none.
        if one.device.consumes and one.id not in self._shares and one.id not in self._store.shares:
            self._count(one, -1)
        for constraint in self._constraints[number]:
            constraint.remove(last.request)

    def _is_in_use(self, number: int, request: DeviceRequest, device: DeviceId) -> bool:
        taken = self._taken.get(device)
        if request.admin:
            return taken is not None and taken[number] > 0
        return device in self._store.dedicated or bool(taken)

    def _is_selectable(self, claim: DeviceClaim, request: DeviceRequest, one: PoolDevice) -> bool:
        device = one.device
        if device.conditional:
            return False
        of_class = self._store.classes[request.device_class]
        if not self._store.matches(one.slice, device, of_class.selectors, f"class {of_class.name}"):
            return False
        if not self._store.matches(one.slice, device, request.selectors, f"claim {claim.key}"):
            return False
        return not one.slice.each or device.nodes.matches(self._node.name, self._node.labels)

    def _share(self, request: DeviceRequest, one: PoolDevice) -> Amounts | None:
        """Return what the request would take of the device's capacity; None if that is not left."""
        consumed = consumed_by(request, one.device)
        if consumed is None:
            return None
        used = dict(self._store.consumed.get(one.id, {}))
        _add(used, self._consumed.get(one.id, {}), 1)
        return consumed if fits(consumed, one.device, used) else None

    # -- counters ----------------------------------------------------------------------------------------------------

    def _has_counters(self, one: PoolDevice) -> bool:
        left, used = self._counters_left(one.pool), self._counters.get(one.pool.id, {})
        wanted = {(name, key): amount for name, amounts in one.device.consumes for key, amount in amounts.items()}
        return all(amount >= used.get(key, _NONE) + wanted.get(key, _NONE) for key, amount in left.items())

    def _count(self, one: PoolDevice, sign: int) -> None:
        used = self._counters.setdefault(one.pool.id, {})
        for name, amounts in one.device.consumes:
            for key, amount in amounts.items():
                used[name, key] = used.get((name, key), _NONE) + sign * amount

    def _counters_left(self, pool: DevicePool) -> dict[tuple[str, str], Decimal]:
        """Return the counters of a pool that devices of earlier allocations leave; negative where too many have."""
        left = self._left.get(pool.id)
        if left is None:
            left = {(name, key): amount for name, amounts in pool.counters.items() for key, amount in amounts.items()}
            for one in (*pool.slices, *pool.others):
                for device in one.devices:
                    identity = *pool.id, device.name
                    if identity in self._store.dedicated or identity in self._store.shares:
                        for name, amounts in device.consumes:
                            for key, amount in amounts.items():
                                left[name, key] -= amount
            self._left[pool.id] = left
        return left


def _add(amounts: Amounts, more: Amounts, sign: int) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, _NONE) + sign * amount


def _refuses(taint: DeviceTaint, request: DeviceRequest) -> bool:
    return taint.effect in _HARD_EFFECTS and not any(one.tolerates(taint) for one in request.tolerations)
