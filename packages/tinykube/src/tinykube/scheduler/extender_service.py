"""Finds the Service that an extender's URL names, since a cluster without a network has no DNS.

An extender that is not there yet must not stop the pods that bring it. So an extender is not asked

- while its Service does not exist: a cluster starts with its configuration, before anything is installed;
- about the pods behind its own Service.

kube-scheduler has neither rule: there people configure it after the extender runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from kubekit.scheduling.podinfo import PodInfo

_ZONES: Final = ("", ".svc", ".svc.cluster.local")
_PORTS: Final = {"http": 80, "https": 443}
_LABELS: Final = 2  # name.namespace
Object = Mapping[str, Any]


class ServicePort(NamedTuple):
    """A port of a Service, as a URL names it."""

    namespace: str
    name: str
    port: int


def service_of(url: str) -> ServicePort | None:
    """Return the Service that `http://NAME.NAMESPACE:PORT` names; None for an address or another host.

    As in DNS a name with a dot at its end is complete, and so is not a Service's.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    for zone in _ZONES:
        labels = host.removesuffix(zone).split(".") if host.endswith(zone) else []
        if len(labels) == _LABELS and all(labels) and not labels[-1].isdigit():
            return ServicePort(labels[1], labels[0], parts.port or _PORTS.get(parts.scheme, 80))
    return None


def is_behind(service: Object, pod: PodInfo, labels: Mapping[str, str]) -> bool:
    """Return whether a pod with these labels is one of the Service's own."""
    selector = service["spec"].get("selector") or {}
    same = bool(pod.namespace == service["metadata"]["namespace"])
    return bool(selector) and same and selector.items() <= labels.items()
