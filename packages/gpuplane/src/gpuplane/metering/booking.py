"""Books the time between two readings to the containers that held the GPUs. Pure.

Rules:

1. The holders at the first reading hold the GPU until the second. So no moment has two holders, and a pod that comes or
   goes between readings gains at its end what it loses at its start.
2. A container's own counter says what it used. The rest goes to the holders without a counter, by part.
3. Idle power goes to the holders by part, power above it by use.
4. Amounts that no container holds or explains are booked to None. The bookings of a GPU add up to the GPU.
5. Of a gap longer than `LONGEST_SECONDS` only holders at both its ends are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuplane.metering.facts import GPUReading, Hold, NodeReading, PodContainer

LONGEST_SECONDS: Final = 300.0


class Booking(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts of one GPU between two readings, of a container or of None for the rest; never negative.

    None instead of a number: NVML does not report it for this GPU.
    """

    uuid: str
    who: PodContainer | None
    held_seconds: float
    used_seconds: float | None
    memory_byte_seconds: float | None
    energy_joules: float | None


def book(before: NodeReading, now: NodeReading, idle_watts: Mapping[str, float]) -> tuple[Booking, ...]:
    """Return the bookings of each GPU that both readings have; none when no time has passed.

    Args:
        idle_watts: UUID -> power of the GPU without work. For an unknown GPU all energy is booked by use.
    """
    seconds = (now.at_ns - before.at_ns) / 1e9
    if seconds <= 0:
        return ()
    later = {(hold.who, hold.uuid): hold for hold in now.holds}
    holds: dict[str, list[Hold]] = {}
    for hold in before.holds:
        if seconds <= LONGEST_SECONDS or (hold.who, hold.uuid) in later:
            holds.setdefault(hold.uuid, []).append(hold)
    first = {gpu.uuid: gpu for gpu in before.gpus}
    found: list[Booking] = []
    for gpu in now.gpus:
        if gpu.uuid in first:
            own = holds.get(gpu.uuid, [])
            used = [_used_since(hold, later.get((hold.who, hold.uuid)), seconds) for hold in own]
            found += _of_gpu(first[gpu.uuid], gpu, own, used, seconds, idle_watts.get(gpu.uuid, 0.0))
    return tuple(found)


def energy_between(before: GPUReading, now: GPUReading, seconds: float) -> float | None:
    """Return the joules of a GPU between two readings; None when NVML reports neither energy nor power."""
    old, new = before.energy_millijoules, now.energy_millijoules
    if old is not None and new is not None:
        # A counter that is smaller began again at 0, since the driver was loaded in between.
        return (new - old if new >= old else new) / 1000
    watts = [reading.power_watts for reading in (before, now) if reading.power_watts is not None]
    return sum(watts) / len(watts) * seconds if watts else None


def _used_since(hold: Hold, later: Hold | None, seconds: float) -> float | None:
    """Return the seconds by the container's own counter, at most all; None without a counter."""
    if hold.used_ns is None:
        return None
    if later is None or later.used_ns is None:
        return 0.0  # It ended, and its counter with it.
    begun_again = later.life != hold.life or later.used_ns < hold.used_ns
    # NB: programs can write their counters, so a counter may say more than the time that passed.
    return min(seconds, (later.used_ns if begun_again else later.used_ns - hold.used_ns) / 1e9)


def _of_gpu(
    before: GPUReading, now: GPUReading, holds: Sequence[Hold], used: list[float | None], seconds: float, idle: float
) -> list[Booking]:
    whole = max(1.0, sum(hold.part for hold in holds))
    parts = [hold.part / whole for hold in holds]
    busy = None if now.active is None else min(1.0, max(0.0, now.active)) * seconds
    if busy is not None or None not in used:
        counted = sum(filter(None, used))
        if counted > seconds:
            used = [None if one is None else one * seconds / counted for one in used]
        busy = max(busy or 0.0, min(counted, seconds)) if busy is not None or holds else None
    uses = _explained(busy, used, parts)
    memory = None if before.memory_bytes is None else before.memory_bytes * seconds
    own_memory = [None if hold.memory_bytes is None else hold.memory_bytes * seconds for hold in holds]
    if memory is not None:
        memory = max(memory, sum(filter(None, own_memory)))
    memories = _explained(memory, own_memory, parts)
    energy = energy_between(before, now, seconds)
    energies = _energy(energy, idle * seconds, busy, uses, parts)
    booked = [
        Booking(
            uuid=now.uuid,
            who=hold.who,
            held_seconds=part * seconds,
            used_seconds=use,
            memory_byte_seconds=size,
            energy_joules=joules,
        )
        for hold, part, use, size, joules in zip(holds, parts, uses, memories, energies, strict=True)
    ]
    rest = Booking(
        uuid=now.uuid,
        who=None,
        held_seconds=max(0.0, 1.0 - sum(parts)) * seconds,
        used_seconds=_rest(busy, uses),
        memory_byte_seconds=_rest(memory, memories),
        energy_joules=_rest(energy, energies),
    )
    return [*booked, rest]


def _explained(total: float | None, own: Sequence[float | None], parts: Sequence[float]) -> list[float | None]:
    """Return each holder's amount: its own count, or its part of what no count explains."""
    if total is None:
        return list(own)
    left = max(0.0, total - sum(filter(None, own)))
    without = sum(part for part, one in zip(parts, own, strict=True) if one is None)
    # Replicas: holders of a half explain all use of the GPU, since no other container can use it.
    return [
        (left * part / without if without else 0.0) if one is None else one
        for part, one in zip(parts, own, strict=True)
    ]


def _energy(
    energy: float | None, idle: float, busy: float | None, uses: Sequence[float | None], parts: Sequence[float]
) -> list[float | None]:
    if energy is None:
        return [None] * len(parts)
    idle = min(idle, energy)
    if not busy:  # The cause of the power above idle is unknown.
        return [energy * part for part in parts]
    return [idle * part + (energy - idle) * (use or 0.0) / busy for part, use in zip(parts, uses, strict=True)]


def _rest(total: float | None, booked: Sequence[float | None]) -> float | None:
    return None if total is None else max(0.0, total - sum(filter(None, booked)))
