"""The faults that people and tests ask the simulated cloud for."""

from __future__ import annotations

import msgspec


class ClosedOffering(msgspec.Struct, frozen=True):
    """Missing capacity. An empty `zone` or `capacity_type` means every one; `until` is in seconds since 1970."""

    machine: str
    zone: str = ""
    capacity_type: str = ""
    until: float = float("inf")

    def closes(self, machine: str, zone: str, capacity_type: str, now: float) -> bool:
        return (
            now < self.until
            and self.machine == machine
            and self.zone in ("", zone)
            and self.capacity_type in ("", capacity_type)
        )


class CloudFaults:
    """The faults of one cloud. The endpoint calls it under its lock."""

    def __init__(self) -> None:
        self.boot_seconds = 0.0
        self._closed: set[ClosedOffering] = set()
        self._left: dict[str, int] = {}

    def close(self, offering: ClosedOffering) -> None:
        self._closed.add(offering)

    def open(self, machine: str) -> None:
        """Let a type be had again, in every zone."""
        self._closed = {closed for closed in self._closed if closed.machine != machine}

    def is_open(self, machine: str, zone: str, capacity_type: str, now: float) -> bool:
        return not any(closed.closes(machine, zone, capacity_type, now) for closed in self._closed)

    def closed(self, now: float) -> list[ClosedOffering]:
        """Return the offerings that are closed now."""
        self._closed = {closed for closed in self._closed if now < closed.until}
        return sorted(self._closed, key=lambda closed: (closed.machine, closed.zone, closed.capacity_type))

    def count(self, fault: str, times: int) -> None:
        """Let one of the counted faults happen so often from now on."""
        self._left[fault] = times

    def take(self, fault: str) -> bool:
        """Return whether a fault happens this time; it is then counted."""
        left = self._left.get(fault, 0)
        if left:
            self._left[fault] = left - 1
        return left > 0

    def left(self) -> dict[str, int]:
        """Return how often each counted fault will still happen."""
        return {fault: times for fault, times in self._left.items() if times}
