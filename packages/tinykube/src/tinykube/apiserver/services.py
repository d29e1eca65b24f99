"""Resolves a Service to the address of a ready pod behind it, since there is no cluster network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tinykube.apiserver.hooks import Find, Object

ListIn = Callable[[str, str, str], Iterable[Object]]  # (plural, namespace, label selector) -> objects


def endpoint(find: Find, list_in: ListIn, namespace: str, name: str, port: int | str) -> tuple[str, int] | None:
    """(address, port) of a ready pod for a port (number or name) of a Service; None when there is none."""
    service = find("services", namespace, name)
    if service is None:
        return None
    spec = service.get("spec") or {}
    chosen = next((p for p in spec.get("ports") or () if port in (p.get("port"), p.get("name"))), None)
    if chosen is None:
        return None
    selector = spec.get("selector")
    if not selector:
        return _of_endpoints(find("endpoints", namespace, name), chosen)
    labels = ",".join(f"{key}={value}" for key, value in selector.items())
    for pod in list_in("pods", namespace, labels):
        status = pod.get("status") or {}
        ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
        number = _target(pod, chosen)
        if ready and number and status.get("podIP"):
            return status["podIP"], number
    return None


def _target(pod: Object, port: Mapping[str, Any]) -> int | None:
    target = port.get("targetPort") or port["port"]
    if isinstance(target, int):
        return target
    for container in (pod.get("spec") or {}).get("containers") or ():
        for declared in container.get("ports") or ():
            if declared.get("name") == target:
                return int(declared["containerPort"])
    return None


def _of_endpoints(endpoints: Object | None, port: Mapping[str, Any]) -> tuple[str, int] | None:
    for subset in (endpoints or {}).get("subsets") or ():
        for address in subset.get("addresses") or ():
            for found in subset.get("ports") or ():
                if found.get("name", "") == port.get("name", ""):
                    return address["ip"], int(found["port"])
    return None
