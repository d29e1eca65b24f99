"""The cost of the simulated cloud's instances: seconds times the price, a minute at least, as EC2 bills Linux."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpulab.cloud.catalogue import cloud_types, price
from gpulab.cloud.instances import TERMINATED, LabInstance

_LEAST_SECONDS: Final = 60.0
_HOUR: Final = 3600.0


class BilledInstance(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One instance with its cost so far; `seconds` is its age, or its whole life."""

    id: str
    machine: str
    zone: str
    capacity_type: str
    state: str
    node: str
    pool: str
    seconds: float
    dollars_per_hour: float
    dollars: float


class CloudBill(msgspec.Struct, frozen=True, rename="camel"):
    """All instances. `dollars_per_hour` is that of the instances that run now, `dollars` the sum of all."""

    instances: tuple[BilledInstance, ...]
    dollars_per_hour: float
    dollars: float


def make_bill(
    instances: Iterable[LabInstance], nodes: Mapping[str, str], ended: Mapping[str, float], now: float
) -> CloudBill:
    """Return the bill. `nodes` and `ended` are the node and the time of the end by instance."""
    billed = []
    for instance in instances:
        seconds = max(0.0, ended.get(instance.id, now) - instance.launched)
        hourly = price(instance.machine, instance.capacity_type) if instance.machine in cloud_types() else 0.0
        billed.append(
            BilledInstance(
                id=instance.id,
                machine=instance.machine,
                zone=instance.zone,
                capacity_type=instance.capacity_type,
                state=instance.state,
                node=nodes.get(instance.id, ""),
                pool=instance.pool,
                seconds=round(seconds, 1),
                dollars_per_hour=hourly,
                dollars=round(max(_LEAST_SECONDS, seconds) / _HOUR * hourly, 6),
            )
        )
    running = sum(one.dollars_per_hour for one in billed if one.state != TERMINATED)
    return CloudBill(tuple(billed), round(running, 6), round(sum(one.dollars for one in billed), 6))
