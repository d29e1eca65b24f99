"""Watches half bound gangs: when the time-out of one has passed, its bound pods are evicted, and it starts again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from gpuplane.scheduler.gangs import members
from gpuplane.scheduler.gangs.groups import GangGroups
from gpuplane.scheduler.gangs.members import GangKey, GangMembers
from gpuplane.scheduler.pods.evict import Evictor
from gpuplane.scheduler.pods.objects import ScheduledPod
from kubekit.errors import KubekitError
from kubekit.kube import Clock
from kubekit.kube.clock import Timer

log = logging.getLogger("gpuplane.scheduler")
LOOK_SECONDS: Final = 1.0
"""How late a time-out may be seen: times of pods are whole seconds."""


class GangTimeouts:
    """
    Args:
        start: runs a task until the scheduler ends.
    """

    def __init__(
        self,
        clock: Clock,
        members: GangMembers,
        groups: GangGroups,
        evictor: Evictor,
        start: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._clock = clock
        self._members = members
        self._groups = groups
        self._evictor = evictor
        self._start = start
        self._leads = False
        self._timers: dict[GangKey, Timer] = {}
        self._dissolving: set[GangKey] = set()

    def begin(self) -> None:
        """Count the time of half bound gangs from now on: this replica leads."""
        self._leads = True
        for key in self._members.names():
            self.watch(key)

    def has_passed(self, key: GangKey, pods: list[ScheduledPod]) -> bool:
        """Return whether the gang is half bound, and its bound pods are being evicted or will be now.

        Args:
            pods: all pods of the gang.
        """
        bound = members.half_bound(pods)
        passed = members.seconds_half_bound(bound, self._clock.wall())
        return key in self._dissolving or passed > self._timeout(bound)

    def watch(self, key: GangKey) -> None:
        """Set or stop the timer of a gang by what is known now."""
        bound = members.half_bound(self._members.of(key))
        timer = self._timers.get(key)
        if not bound:
            self._dissolving.discard(key)
            if timer is not None:
                self._timers.pop(key).cancel()
        elif timer is None and self._leads:
            passed = members.seconds_half_bound(bound, self._clock.wall())
            left = max(0.0, self._timeout(bound) - passed) + LOOK_SECONDS
            self._timers[key] = self._clock.call_later(left, lambda: self._overdue(key))

    def _timeout(self, bound: Iterable[ScheduledPod]) -> float:
        return min(
            (self._groups.timeout(pod.metadata.namespace, pod.gang) for pod in bound if pod.gang is not None),
            default=0.0,
        )

    def _overdue(self, key: GangKey) -> None:
        self._timers.pop(key, None)
        bound = members.half_bound(self._members.of(key))
        if bound:
            self._dissolving.add(key)
            self._start(self._dissolve(key, bound), f"dissolve gang {key[0]}/{key[2]}")

    async def _dissolve(self, key: GangKey, bound: list[ScheduledPod]) -> None:
        """Evict the bound pods of a gang whose time-out has passed."""
        log.warning("gang half bound at its time-out, evicting gang=%s/%s pods=%d", key[0], key[2], len(bound))
        text = f"gang {key[2]}: not all of its pods were bound in time"
        try:
            for pod in bound:
                if pod.info is not None:
                    await self._evictor.evict_of_gang(pod.info, text)
        except KubekitError as error:
            log.warning("gang not evicted yet gang=%s/%s: %s", key[0], key[2], error)
        finally:
            self.watch(key)  # looks again until a watch has delivered that they leave

    def close(self) -> None:
        """Stop the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
