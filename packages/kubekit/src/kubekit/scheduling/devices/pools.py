"""The pools of devices that a node can reach, by the slices of their newest generation. Pure.

Invariants:

- Out-dated slices are ignored. Devices of a pool whose slices are not all there yet, or contradict each other, are not
  allocated.
- Pools, slices and devices are in the order of their names, so that the first device that fits is determined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kubekit.scheduling.devices.facts import Amounts, DeviceId, SliceDevice, SliceInfo
from kubekit.scheduling.podinfo import NodeFacts

PoolId = tuple[str, str]
"""Driver and name."""


class PoolDevice(msgspec.Struct, frozen=True):
    """A device that may be allocated, with its pool and slice."""

    id: DeviceId
    device: SliceDevice
    slice: SliceInfo
    pool: DevicePool


class DevicePool(msgspec.Struct, eq=False):
    """A pool. `slices` are those that the node reaches, `others` devices of the pool that it does not.

    `counters`: counter set -> counters. `why` is set where the slices contradict each other.
    """

    id: PoolId
    complete: bool = True
    why: str = ""
    slices: Sequence[SliceInfo] = ()
    others: Sequence[SliceInfo] = ()
    counters: dict[str, Amounts] = {}

    @property
    def usable(self) -> bool:
        """Return whether devices of the pool may be allocated."""
        return self.complete and not self.why

    def candidates(self) -> Iterable[PoolDevice]:
        """Yield the devices that the node may reach."""
        for one in self.slices:
            for device in one.devices:
                yield PoolDevice((*self.id, device.name), device, one, self)


def gather_pools(
    node: NodeFacts, slices: Iterable[SliceInfo], all_slices: dict[PoolId, dict[str, SliceInfo]]
) -> list[DevicePool]:
    """Return the pools that a node can reach.

    Args:
        slices: those that it may reach.
        all_slices: every slice, by pool and name.
    """
    newest: dict[PoolId, list[SliceInfo]] = {}
    for one in slices:
        if not (one.counters or _reaches(one, node)):
            continue
        found = newest.setdefault((one.driver, one.pool), [])
        if found and one.generation < found[0].generation:
            continue
        if found and one.generation > found[0].generation:
            found.clear()
        found.append(one)
    pools = []
    for identity, found in newest.items():
        pool = _pool(identity, found, all_slices.get(identity, {}).values())
        if pool is not None:
            pools.append(pool)
    return sorted(pools, key=lambda pool: pool.id)


def _reaches(one: SliceInfo, node: NodeFacts) -> bool:
    if one.each:
        return any(device.nodes.matches(node.name, node.labels) for device in one.devices)
    return one.nodes.matches(node.name, node.labels)


def _pool(identity: PoolId, found: list[SliceInfo], everything: Iterable[SliceInfo]) -> DevicePool | None:
    generation, wanted = found[0].generation, found[0].slices
    others: list[SliceInfo] = []
    if len(found) != wanted:
        whole = list(everything)
        if any(one.generation > generation for one in whole):
            return None  # its driver replaces these slices, and none of the new ones is for this node
        whole = [one for one in whole if one.generation == generation]
        if len(whole) != wanted:
            return DevicePool(identity, complete=False)
        names = {one.name for one in found}
        others = [one for one in whole if one.name not in names]
    found.sort(key=lambda one: one.name)
    devices = [one for one in found if not one.counters]
    counters: dict[str, Amounts] = {}
    for one in found:
        for name, amounts in one.counters:
            if name in counters:
                return DevicePool(identity, why=f"duplicate counter set name {name}")
            counters[name] = amounts
    why = _contradiction(devices, counters) or _unknown_counters(others, counters)
    return DevicePool(identity, True, why, devices, others, counters)


def _contradiction(slices: Sequence[SliceInfo], counters: dict[str, Amounts]) -> str:
    names: set[str] = set()
    for one in slices:
        for device in one.devices:
            if device.name in names:
                return f"duplicate device name {device.name}"
            names.add(device.name)
    return _unknown_counters(slices, counters)


def _unknown_counters(slices: Sequence[SliceInfo], counters: dict[str, Amounts]) -> str:
    for one in slices:
        for device in one.devices:
            for counter_set, amounts in device.consumes:
                if counter_set not in counters:
                    return f"counter set {counter_set} not found"
                for name in amounts.keys() - counters[counter_set].keys():
                    return f"counter {name} not found in counter set {counter_set}"
    return ""
