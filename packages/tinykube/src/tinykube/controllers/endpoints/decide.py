"""Decides which addresses and ports are behind a Service. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tinykube.controllers import pods as podstate

Object = Mapping[str, Any]
_MOST: Final = 1000  # of an Endpoints object


class EndpointGroup(msgspec.Struct):
    """Endpoints that have the same ports, as EndpointSlices list them."""

    ports: list[dict[str, Any]]
    endpoints: list[dict[str, Any]]


def port_of(port: Object, pod: Object) -> int | None:
    """The number behind a service port on one pod; a name is looked up among the pod's ports of the same protocol."""
    target = port.get("targetPort") or port["port"]
    if isinstance(target, int):
        return target
    protocol = port.get("protocol") or "TCP"
    for container in pod["spec"].get("containers") or ():
        for one in container.get("ports") or ():
            if one.get("name") == target and (one.get("protocol") or "TCP") == protocol:
                number: int = one["containerPort"]
                return number
    return None


def behind(pods: Iterable[Object]) -> list[Object]:
    """Return the pods that have an address and have not ended, by name. Those that are to end are among them."""
    found = [pod for pod in pods if (pod.get("status") or {}).get("podIP") and not podstate.is_finished(pod)]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def is_headless(service: Object) -> bool:
    return bool(service["spec"].get("clusterIP") == "None")


def subsets_of(service: Object, pods: list[Object]) -> list[dict[str, Any]]:
    """Return `subsets` of the Endpoints object: one for each set of port numbers."""
    unready_too = bool(service["spec"].get("publishNotReadyAddresses"))
    subsets: dict[tuple[tuple[str, int, str], ...], dict[str, Any]] = {}
    for pod in [pod for pod in pods if unready_too or not podstate.is_terminating(pod)][:_MOST]:
        ports = tuple((port["name"], port["port"], port["protocol"]) for port in _ports(service, pod))
        if not ports and service["spec"].get("ports"):
            continue
        subset = subsets.setdefault(ports, {"addresses": [], "notReadyAddresses": []})
        address = {"ip": pod["status"]["podIP"], "targetRef": _reference(pod)}
        if pod["spec"].get("nodeName"):
            address["nodeName"] = pod["spec"]["nodeName"]
        if hostname := _hostname(service, pod):
            address["hostname"] = hostname
        subset["addresses" if unready_too or podstate.is_ready(pod) else "notReadyAddresses"].append(address)
    answer = []
    for ports, subset in subsets.items():
        body: dict[str, Any] = {field: listed for field, listed in subset.items() if listed}
        body["ports"] = [
            {**({"name": name} if name else {}), "port": number, "protocol": protocol}
            for name, number, protocol in ports
        ]
        answer.append(body)
    return answer


def groups_of(service: Object, pods: list[Object]) -> list[EndpointGroup]:
    """Return the endpoints of the EndpointSlices: a group for each set of port numbers."""
    groups: list[EndpointGroup] = []
    for pod in pods:
        ports = _ports(service, pod)
        group = next((group for group in groups if group.ports == ports), None)
        if group is None:
            groups.append(group := EndpointGroup(ports, []))
        group.endpoints.append(_endpoint(service, pod))
    return groups


def _endpoint(service: Object, pod: Object) -> dict[str, Any]:
    serving, terminating = podstate.is_ready(pod), podstate.is_terminating(pod)
    ready = bool(service["spec"].get("publishNotReadyAddresses")) or (serving and not terminating)
    endpoint: dict[str, Any] = {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": _reference(pod),
    }
    if pod["spec"].get("nodeName"):
        endpoint["nodeName"] = pod["spec"]["nodeName"]
    if hostname := _hostname(service, pod):
        endpoint["hostname"] = hostname
    return endpoint


def _ports(service: Object, pod: Object) -> list[dict[str, Any]]:
    """Return the ports of a Service that a pod has."""
    found = []
    for port in service["spec"].get("ports") or ():
        if (number := port_of(port, pod)) is not None:
            one = {"name": port.get("name") or "", "port": number, "protocol": port.get("protocol") or "TCP"}
            if port.get("appProtocol"):
                one["appProtocol"] = port["appProtocol"]
            found.append(one)
    return found


def mirrored(endpoints: Object) -> list[EndpointGroup]:
    """Return the groups of an Endpoints object that a user wrote; addresses of IPv4 only."""
    groups = []
    for subset in endpoints.get("subsets") or ():
        ports = [
            {"name": port.get("name") or "", "port": port["port"], "protocol": port.get("protocol") or "TCP"}
            | ({"appProtocol": port["appProtocol"]} if port.get("appProtocol") else {})
            for port in subset.get("ports") or ()
        ]
        listed = [
            _mirrored(address, ready=ready)
            for field, ready in (("addresses", True), ("notReadyAddresses", False))
            for address in subset.get(field) or ()
            if ":" not in address["ip"]
        ]
        if listed:
            groups.append(EndpointGroup(ports, listed))
    return groups


def _mirrored(address: Object, *, ready: bool) -> dict[str, Any]:
    kept = {field: address[field] for field in ("hostname", "nodeName", "targetRef") if address.get(field)}
    return {"addresses": [address["ip"]], "conditions": {"ready": ready}, **kept}


def _reference(pod: Object) -> dict[str, str]:
    meta = pod["metadata"]
    return {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}


def _hostname(service: Object, pod: Object) -> str:
    """Return the name of a pod below the name of its Service; empty for a pod of no such name."""
    spec, meta = pod["spec"], service["metadata"]
    is_named = spec.get("subdomain") == meta["name"] and pod["metadata"]["namespace"] == meta["namespace"]
    return (spec.get("hostname") or "") if is_named else ""
