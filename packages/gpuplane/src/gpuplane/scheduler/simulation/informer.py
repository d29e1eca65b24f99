"""An informer without an API server: its caller delivers the objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kubekit.kube import ApiEndpoint, Client, Clock, Informer
from kubekit.kube.auth import StaticAuth

K = TypeVar("K", bound=Any)


class FedInformer(Informer[K]):
    """Calls its handlers for what `deliver` and `withdraw` say, as for what a watch delivers."""

    def __init__(self, kind: type[K], keep: Callable[[Any], Any], clock: Clock) -> None:
        self.client = Client(
            ApiEndpoint(host="", port=0, auth=StaticAuth())
        )  # NB: never asked, since this informer never runs
        super().__init__(self.client, kind, keep=keep, clock=clock)

    def deliver(self, obj: K) -> None:
        """Add the object, or replace the one with its name."""
        self._tell(self._store(obj))

    def withdraw(self, key: str) -> K | None:
        """Remove the object with this key; return what was known of it."""
        known = self.get(key)
        self._tell(self._cache.remove(key))
        return known
