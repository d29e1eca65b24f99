"""A copy in memory of the objects that Services, their names and measured use are made from.

The parts of the embedded cluster that serve these read a `Registry`. On a real control plane they read this copy, which
follows the API server by watches. Invariant: endpoints of Services with a selector are computed in the copy. The real
API server refuses addresses of the loopback network in endpoints, and pods of simulated machines have no others.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from kubekit.api.core import Namespace
from kubekit.api.kinds import built_in
from kubekit.api.meta import KubeObject, ObjectMeta, Resource, Struct, to_dict
from kubekit.api.raw import RawNode, RawPod
from kubekit.kube import Client, Informer
from tinykube.apiserver.registry import Registry
from tinykube.apiserver.store import Table

_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
_SERVICE_NAME: Final = "kubernetes.io/service-name"
_COMPUTER: Final = "endpointslice-controller.k8s.io"
_NOT_COMPUTED: Final = f"{_MANAGED_BY}!={_COMPUTER}"


class RawService(Struct):
    """A Service with its whole `spec`."""

    RESOURCE: ClassVar[Resource] = built_in("v1", "Service")

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}


class RawEndpointSlice(Struct):
    """An EndpointSlice with all that it lists."""

    RESOURCE: ClassVar[Resource] = built_in("discovery.k8s.io/v1", "EndpointSlice")

    metadata: ObjectMeta = ObjectMeta()
    address_type: str = ""
    endpoints: tuple[dict[str, Any], ...] = ()
    ports: tuple[dict[str, Any], ...] = ()


_KINDS: Final[tuple[tuple[type[KubeObject], str], ...]] = (
    (Namespace, ""),
    (RawNode, ""),
    (RawPod, ""),
    (RawService, ""),
    (RawEndpointSlice, _NOT_COMPUTED),
)


class ObjectMirror:
    """Copies namespaces, nodes, pods, Services and the EndpointSlices of users into `registry`."""

    def __init__(self, client: Client) -> None:
        self.registry = Registry()
        self._slices = self.registry.kinds.find(("discovery.k8s.io", "endpointslices")).table
        self._informers = [self._informer(client, kind, labels) for kind, labels in _KINDS]

    async def start(self) -> None:
        """Follow the API server, and return when the copy is whole."""
        for informer in self._informers:
            informer.start()
        await asyncio.gather(*(informer.synced() for informer in self._informers))

    async def stop(self) -> None:
        for informer in self._informers:
            await informer.stop()

    def _informer(self, client: Client, kind: type[KubeObject], labels: str) -> Informer[Any]:
        where = kind.RESOURCE
        copied = self.registry.kinds.find((where.group, where.plural))
        identity = {"apiVersion": copied.info.api_version, "kind": copied.info.kind}

        def follow(old: KubeObject | None, new: KubeObject | None) -> None:
            if new is not None:
                copied.table.put(new.metadata.namespace, new.metadata.name, {**identity, **to_dict(new)})
            elif old is not None:
                _remove(copied.table, old.metadata.namespace, old.metadata.name)
                if kind is RawService:
                    self._forget_slices(old.metadata)

        informer: Informer[Any] = Informer(client, kind, labels=labels)
        informer.add_handler(follow)
        return informer

    def _forget_slices(self, service: ObjectMeta) -> None:
        """Remove the computed slices of a Service that is gone: no garbage collector looks at the copy.

        Slices of users stay, as in the API server: a Service that is made again has them again.
        """
        computed = {_MANAGED_BY: _COMPUTER, _SERVICE_NAME: service.name}
        for entry in list(self._slices.items.values()):
            labels = entry.obj["metadata"].get("labels") or {}
            if entry.namespace == service.namespace and computed.items() <= labels.items():
                self._slices.remove(entry)


def _remove(table: Table, namespace: str, name: str) -> None:
    entry = table.get(namespace, name)
    if entry is not None:
        table.remove(entry)
