"""Computes what a share takes of a device's capacity, and whether that is left. Pure.

A request is rounded up by the policy of the capacity: to its valid values, or to steps above its least amount. A
request that names no amount takes the policy's default, else all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Final

from kubekit.scheduling.devices.facts import Amounts, DeviceCapacity, DeviceRequest, RequestPolicy, SliceDevice

_NONE: Final = Decimal(0)


def consumed_by(request: DeviceRequest, device: SliceDevice) -> Amounts | None:
    """Return what a share takes of each capacity; None if the device has not what the request names."""
    wanted = dict(request.capacity)
    if not wanted.keys() <= device.capacity.keys():
        return None
    return {name: _rounded(wanted.get(name), capacity) for name, capacity in device.capacity.items()}


def fits(consumed: Amounts, device: SliceDevice, used: Mapping[str, Decimal]) -> bool:
    """Return whether a device has so much left, and its policies admit the amounts."""
    for name, amount in consumed.items():
        capacity = device.capacity[name]
        if capacity.policy is not None and not _is_valid(amount, capacity.policy):
            return False
        if used.get(name, _NONE) + amount > capacity.value:
            return False
    return True


def _rounded(wanted: Decimal | None, capacity: DeviceCapacity) -> Decimal:
    policy = capacity.policy
    if wanted is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return wanted
    if policy.least is not None:
        if wanted < policy.least:
            return policy.least
        if policy.step is None:
            return wanted
        steps = ((_whole(wanted) - policy.least) / policy.step).to_integral_value(ROUND_CEILING)
        return policy.least + steps * policy.step
    return next((value for value in policy.values if wanted <= value), wanted)


def _is_valid(amount: Decimal, policy: RequestPolicy) -> bool:
    if amount == policy.default:
        return True
    if policy.least is not None or policy.largest is not None:
        if policy.largest is not None and amount > policy.largest:
            return False
        return policy.step is None or (_whole(amount) - (policy.least or _NONE)) % policy.step == 0
    return not policy.values or amount in policy.values


def _whole(amount: Decimal) -> Decimal:
    return amount.to_integral_value(ROUND_CEILING)
