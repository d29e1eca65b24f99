"""Names of headless Services and of their pods in /etc/hosts, as cluster DNS has them.

`web-0.peers` is the pod web-0 (its `hostname`) of the headless Service peers (its `subdomain`), and `peers` is each of
its ready pods: so the pods of a StatefulSet or of an Indexed Job find each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from kubekit.api.kinds import built_in
from kubekit.api.meta import ObjectMeta, Resource, Struct

#: Marks the slices of headless Services; the kubelet watches no others.
HEADLESS: Final = "service.kubernetes.io/headless"
_SERVICE: Final = "kubernetes.io/service-name"
_ZONE: Final = "cluster.local"


class EndpointConditions(Struct):
    ready: bool = True


class NamedEndpoint(Struct):
    addresses: tuple[str, ...] = ()
    hostname: str = ""
    conditions: EndpointConditions = EndpointConditions()


class HeadlessSlice(Struct):
    """An EndpointSlice of a headless Service."""

    RESOURCE: ClassVar[Resource] = built_in("discovery.k8s.io/v1", "EndpointSlice")
    metadata: ObjectMeta
    endpoints: tuple[NamedEndpoint, ...] = ()


def service_names(name: str, namespace: str, of_pod: str) -> list[str]:
    """Return the names of a Service for pods of the namespace `of_pod`, the shortest first."""
    full = f"{name}.{namespace}"
    short = [name] if namespace == of_pod else []
    return [*short, full, f"{full}.svc", f"{full}.svc.{_ZONE}"]


def headless_lines(slices: Iterable[HeadlessSlice], namespace: str) -> str:
    """Return the lines of /etc/hosts by which a pod of a namespace finds ready pods of headless Services."""
    lines = []
    for one in sorted(slices, key=lambda one: (one.metadata.namespace, one.metadata.name)):
        service, where = one.metadata.labels.get(_SERVICE, ""), one.metadata.namespace
        for endpoint in one.endpoints:
            if not service or not endpoint.conditions.ready:
                continue
            names = service_names(service, where, namespace)
            if endpoint.hostname:
                names = [*(f"{endpoint.hostname}.{name}" for name in names), *names]
            lines += [f"{address}\t{' '.join(names)}\n" for address in endpoint.addresses]
    return "".join(lines)
