"""One informer for each kind of object, for all controllers of a process.

A controller asks for the informers that it reads. Controllers that ask for the same kind and namespace get the same
informer: one list, one watch and one cache, as with client-go's SharedInformerFactory. An index belongs to the
informer, so controllers that need the same index add it under the same name with the same function.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from kubekit.api.meta import KubeObject
from kubekit.kube.client import Client
from kubekit.kube.clock import Clock
from kubekit.kube.informer import Informer

K = TypeVar("K", bound=KubeObject)


class SharedInformers:
    """Informers by kind and namespace, made when first asked for. `Controller.run` starts them."""

    def __init__(self, client: Client, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock
        self._informers: dict[tuple[type[Any], str | None], Informer[Any]] = {}

    def of(self, kind: type[K], namespace: str | None = None) -> Informer[K]:
        """Return the informer of a kind in a namespace, None for all namespaces."""
        place = (kind, namespace)
        if place not in self._informers:
            self._informers[place] = Informer(self._client, kind, namespace, clock=self._clock)
        return cast(Informer[K], self._informers[place])

    def share(self, kind: type[K], informer: Informer[Any]) -> Informer[K]:
        """Use this informer for all objects of a kind, for one that keeps less of them. Raises ValueError if late.

        Args:
            informer: its objects are of `kind`, or of a class derived from it, with every field that controllers read.
        """
        if (kind, None) in self._informers:
            raise ValueError(f"an informer of {kind.__name__} is in use already")
        self._informers[kind, None] = informer
        return cast(Informer[K], informer)
