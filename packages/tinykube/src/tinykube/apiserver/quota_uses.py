"""Counts what Services and PersistentVolumeClaims use of a ResourceQuota, besides their number."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from kubekit.api.quantity import parse_quantity

Object = Mapping[str, Any]
_OF_CLASS: Final = ".storageclass.storage.k8s.io/"
_STORAGE: Final = "requests.storage"


def counted_kind(name: str) -> str:
    """Return the plural of the objects behind a limit: services, persistentvolumeclaims, or empty for others."""
    if name.startswith("services."):
        return "services"
    return "persistentvolumeclaims" if name == _STORAGE or _OF_CLASS in name else ""


def service_uses(spec: Object) -> dict[str, Decimal]:
    """Return the node ports and load balancers of a Service."""
    kind, ports = spec.get("type"), spec.get("ports") or ()
    used = 0
    if kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts", True)):
        used = len(ports)
    elif kind == "LoadBalancer":
        used = sum(bool(port.get("nodePort")) for port in ports)
    found = {"services.nodeports": used, "services.loadbalancers": int(kind == "LoadBalancer")}
    return {name: Decimal(number) for name, number in found.items() if number}


def claim_uses(spec: Object) -> dict[str, Decimal]:
    """Return the storage that a claim requests, in bytes, in all and of its class."""
    requests = (spec.get("resources") or {}).get("requests") or {}
    storage, of_class = parse_quantity(str(requests.get("storage", 0))), spec.get("storageClassName")
    found = {_STORAGE: storage}
    if of_class:
        found |= {f"{of_class}{_OF_CLASS}{_STORAGE}": storage}
        found |= {f"{of_class}{_OF_CLASS}persistentvolumeclaims": Decimal(1)}
    return found
