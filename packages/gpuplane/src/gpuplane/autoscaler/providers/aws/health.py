"""Instances that fail EC2's own status checks, or that EC2 means to stop or restart, asked each minute.

A check that fails for two minutes counts, a scheduled event at once. An acknowledged event is reported no more while it
lasts. The checks of disks are left out: they may be about the volume of one pod.

Source: the API reference of EC2, DescribeInstanceStatus; the choice of checks, events and times is Karpenter's.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gpuplane.autoscaler.providers.aws.calls import AwsCalls
from gpuplane.autoscaler.providers.provider import HEALTH, IMPAIRED, Interruption
from kubekit.errors import KubekitError
from kubekit.kube.clock import Clock

log = logging.getLogger("gpuplane.autoscaler")

_EVERY_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 120.0
_EVENTS: Final = ("instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop")
_CHECKS: Final = ("InstanceStatus", "SystemStatus")
# NB: of several filters in a request all must hold, and here one is enough.
_FILTERS: Final = (
    {"Name": "instance-status.status", "Values": ["impaired"]},
    {"Name": "system-status.status", "Values": ["impaired"]},
    {"Name": "event.code", "Values": list(_EVENTS)},
)


def troubled(statuses: Iterable[Mapping[str, Any]], now: datetime.datetime) -> dict[str, str]:
    """Return the kind of notice by instance: impaired for long enough, or with an event to come."""
    found: dict[str, str] = {}
    for status in statuses:
        events = [event for event in status.get("Events", ()) if event.get("Code") in _EVENTS]
        # EC2 keeps an event for a week after it is over, and says so in its description.
        if any(not str(event.get("Description", "")).startswith(("[Completed]", "[Canceled]")) for event in events):
            found[status["InstanceId"]] = HEALTH
        details = [detail for check in _CHECKS for detail in (status.get(check) or {}).get("Details", ())]
        if any(_fails(detail, now) for detail in details):
            found[status["InstanceId"]] = IMPAIRED
    return found


def _fails(detail: Mapping[str, Any], now: datetime.datetime) -> bool:
    since = detail.get("ImpairedSince")
    if detail.get("Status") != "failed" or not isinstance(since, datetime.datetime):
        return False
    return (now - since).total_seconds() >= _PATIENCE_SECONDS


class StatusChecks:
    """The status checks. `providers` returns the provider id of each of this cluster's instances, by EC2's id."""

    def __init__(
        self, calls: AwsCalls, clock: Clock, providers: Callable[[Sequence[str]], Awaitable[dict[str, str]]]
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._providers = providers
        self._handled: set[tuple[str, str]] = set()  # (kind, provider id)

    async def notices(self) -> AsyncIterator[Interruption]:
        """Yield notices for ever. Errors are logged and tried again a minute later."""
        while True:
            try:
                found = await self._look()
            except KubekitError as error:
                log.warning("status checks of instances not read, trying again: %s", error)
                found = []
            for notice in found:
                yield notice
            await self._clock.sleep(_EVERY_SECONDS)

    def acknowledge(self, notice: Interruption) -> None:
        """Report a notice no more."""
        self._handled.add((notice.kind, notice.provider_id))

    async def _look(self) -> list[Interruption]:
        statuses: list[dict[str, Any]] = []
        for one in _FILTERS:
            statuses += await self._calls.pages("ec2", "describe_instance_status", "InstanceStatuses", Filters=[one])
        kinds = troubled(statuses, datetime.datetime.fromisoformat(self._clock.wall()))
        known = await self._providers(sorted(kinds)) if kinds else {}
        found = {(kinds[identity], provider) for identity, provider in known.items()}
        self._handled &= found
        return [Interruption(kind, provider, "") for kind, provider in sorted(found - self._handled)]
