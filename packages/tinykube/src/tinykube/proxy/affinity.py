"""The choice among the pods behind a port: in turn, or the same again for a client. Pure, by a clock of the caller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tinykube.proxy.routes import ListenAddress, ServiceRoute

_MOST_CLIENTS: Final = 10_000


class PodChooser:
    """Remembers which pod each client has. `now` gives seconds that only grow."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._turn = 0
        self._chosen: OrderedDict[str, tuple[ListenAddress, float]] = OrderedDict()

    def order(self, route: ServiceRoute, client: str) -> list[ListenAddress]:
        """Return the pods in the order to try."""
        pods = route.pods
        start = self._turn % len(pods)
        if route.sticky_seconds and (known := self._chosen.get(client)) is not None:
            pod, until = known
            if pod in pods and self._now() < until:
                start = pods.index(pod)
                return [*pods[start:], *pods[:start]]
        self._turn += 1
        return [*pods[start:], *pods[:start]]

    def took(self, route: ServiceRoute, client: str, pod: ListenAddress) -> None:
        """Note which pod a client got."""
        if not route.sticky_seconds:
            self._chosen.clear()
            return
        self._chosen[client] = pod, self._now() + route.sticky_seconds
        self._chosen.move_to_end(client)
        if len(self._chosen) > _MOST_CLIENTS:
            self._chosen.popitem(last=False)
