"""The health of devices as their drivers report it. An old report counts as unknown. Pure.

Source: pkg/kubelet/cm/dra/healthinfo.go of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from kubekit.protocol import drahealth_pb2 as pb

DEFAULT_SECONDS: Final = 30.0
LONGEST_MESSAGE: Final = 1024
UNKNOWN: Final = "Unknown"
_NAMES: Final = {pb.HEALTHY: "Healthy", pb.UNHEALTHY: "Unhealthy"}
DeviceKey = tuple[str, str, str]
"""Driver, pool, device."""


class DeviceHealth(msgspec.Struct, frozen=True):
    """Health and the driver's words about it; `seconds` after `at` it is unknown."""

    health: str = UNKNOWN
    message: str = ""
    at: float = 0.0
    seconds: float = DEFAULT_SECONDS

    def alike(self, other: DeviceHealth) -> bool:
        """Return whether both say the same, whenever they were reported."""
        return (self.health, self.message, self.seconds) == (other.health, other.message, other.seconds)


class HealthRecord:
    """The last report of each device."""

    def __init__(self) -> None:
        self._known: dict[DeviceKey, DeviceHealth] = {}

    def of(self, device: DeviceKey, now: float) -> DeviceHealth:
        """Return the health of a device at this moment."""
        known = self._known.get(device)
        return DeviceHealth() if known is None or now - known.at > known.seconds else known

    def report(self, driver: str, devices: Iterable[pb.DeviceHealth], now: float) -> set[DeviceKey]:
        """Store a report of a driver; return the devices that changed."""
        changed = set()
        for one in devices:
            key = (driver, one.device.pool_name, one.device.device_name)
            seconds = float(one.health_check_timeout_seconds)
            read = DeviceHealth(
                _NAMES.get(one.health, UNKNOWN), _short(one.message), now, seconds if seconds > 0 else DEFAULT_SECONDS
            )
            if not read.alike(self.of(key, now)):
                changed.add(key)
            self._known[key] = read
        return changed

    def forget(self, driver: str) -> set[DeviceKey]:
        """Drop the reports of a driver whose stream ended; return its devices."""
        gone = {key for key in self._known if key[0] == driver}
        for key in gone:
            del self._known[key]
        return gone

    def expired(self, now: float) -> set[DeviceKey]:
        """Drop the reports that are too old by now; return their devices."""
        gone = {key for key, known in self._known.items() if now - known.at > known.seconds}
        for key in gone:
            del self._known[key]
        return gone

    def next_expiry(self) -> float | None:
        """Return when the first of the reports is too old."""
        return min((known.at + known.seconds for known in self._known.values()), default=None)


def _short(message: str) -> str:
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 3] + "..."
