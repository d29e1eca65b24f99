"""Decides the answer to a question about names of the cluster, by Kubernetes' DNS specification 1.1.0. Pure.

Source: kubernetes/dns, docs/specification.md. Where it leaves a choice, CoreDNS is followed: endpoints without a
hostname have their address with dashes, names of pods are answered for every address, ports are found by a Service's
SRV record of any port too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import AddressValueError, IPv4Address
from typing import Any, Final, NamedTuple, Protocol

from tinykube.dns.wire import Answer, Authority, Name, Record, RecordType, Result, Service, lower, parse_name

ZONE: Final = ("cluster", "local")
_REVERSE: Final = ("in-addr", "arpa")
_VERSION: Final = "1.1.0"
_SECONDS: Final = 30
_PROTOCOLS: Final = ("tcp", "udp", "sctp")
_BYTES_OF_ADDRESS: Final = 4
Object = Mapping[str, Any]


class ReadyEndpoint(NamedTuple):
    """A ready endpoint of a Service. `ports` are (name, protocol, number)."""

    address: str
    hostname: str
    ports: tuple[tuple[str, str, int], ...]

    @property
    def label(self) -> str:
        """Return the name of the endpoint below that of its Service."""
        return self.hostname or self.address.replace(".", "-").replace(":", "-")


class ClusterNames(Protocol):
    """The objects that names are made from."""

    def service(self, namespace: str, name: str) -> Object | None: ...

    def endpoints(self, namespace: str, name: str) -> Iterable[ReadyEndpoint]:
        """Return the ready endpoints of a Service."""

    def has_namespace(self, name: str) -> bool: ...

    def service_at(self, address: str) -> tuple[str, str] | None:
        """Return (namespace, name) of the Service with this address."""

    def endpoints_at(self, address: str) -> Iterable[tuple[str, str, ReadyEndpoint]]:
        """Return (namespace, name of a headless Service, endpoint) of the endpoints with this address."""


def is_of_cluster(name: Name) -> bool:
    """Return whether a name lies below cluster.local."""
    return lower(name[-len(ZONE) :]) == ZONE


def is_reverse(name: Name) -> bool:
    """Return whether a name stands for an address of IPv4."""
    return lower(name[-len(_REVERSE) :]) == _REVERSE


def look_up(names: ClusterNames, name: Name, kind: int) -> Answer:
    """Return the answer for a name below cluster.local. A CNAME is answered as such, without what it stands for."""
    found = _found(names, name, kind)
    if found is None:
        return Answer(Result.NO_NAME, authority=(_authority(),))
    records = tuple(record for record in found if record.kind in (kind, RecordType.CNAME))
    return Answer(records=records, authority=() if records else (_authority(),))


def look_up_address(names: ClusterNames, name: Name) -> Answer | None:
    """Return the answer for the name of an address; None for an address outside the cluster."""
    labels = name[: -len(_REVERSE)]
    try:
        address = str(IPv4Address(".".join(reversed(labels))))
    except AddressValueError:
        return None
    if (service := names.service_at(address)) is not None:
        return Answer(records=(Record(name, RecordType.PTR, _SECONDS, _service_name(*service)),))
    records = tuple(
        Record(name, RecordType.PTR, _SECONDS, (endpoint.label, *_service_name(namespace, service_name)))
        for namespace, service_name, endpoint in names.endpoints_at(address)
    )
    return Answer(records=records) if records else None


def _service_name(namespace: str, name: str) -> Name:
    return (name, namespace, "svc", *ZONE)


def _authority() -> Record:
    return Record(ZONE, RecordType.SOA, _SECONDS, Authority(("ns", "dns", *ZONE), ("hostmaster", *ZONE), _SECONDS))


def _found(names: ClusterNames, name: Name, kind: int) -> list[Record] | None:
    """Return the records of a name; None where there is no such name."""
    labels = lower(name[: -len(ZONE)])
    match labels[::-1]:
        case ():
            return [_authority()]
        case ("dns-version",):
            return [Record(name, RecordType.TXT, _SECONDS, _VERSION)]
        case ("svc",) | ("pod",):
            return []
        case ("svc" | "pod", namespace):
            return [] if names.has_namespace(namespace) else None
        case ("pod", namespace, dashed):
            return _pod(name, dashed) if names.has_namespace(namespace) else None
        case ("svc", namespace, service, *below):
            return _service(names, name, kind, namespace, service, below)
    return None


def _pod(name: Name, dashed: str) -> list[Record] | None:
    try:
        return [Record(name, RecordType.A, _SECONDS, str(IPv4Address(dashed.replace("-", "."))))]
    except AddressValueError:
        return None


def _service(
    names: ClusterNames, name: Name, kind: int, namespace: str, service: str, below: list[str]
) -> list[Record] | None:
    """Return the records of a Service and of the names `below` it, the next one first."""
    found = names.service(namespace, service)
    if found is None:
        return None
    spec = found["spec"]
    if spec.get("type") == "ExternalName":
        return [Record(name, RecordType.CNAME, _SECONDS, parse_name(spec["externalName"]))] if not below else None
    endpoints = list(names.endpoints(namespace, service))
    address = "" if spec.get("clusterIP") in (None, "None") else spec["clusterIP"]
    own = _service_name(namespace, service)
    ports: list[tuple[str, str, int, Name]]
    if address:
        ports = [(port.get("name") or "", _protocol(port), port["port"], own) for port in spec.get("ports") or ()]
    else:
        ports = [(*port, (endpoint.label, *own)) for endpoint in endpoints for port in endpoint.ports]
    match below:
        case []:
            if not address and not endpoints:
                return None
            hosts = [address] if address else list(dict.fromkeys(endpoint.address for endpoint in endpoints))
            return [*_addresses(name, hosts), *(_port(name, port, target) for *_, port, target in ports)]
        case [protocol, label] if protocol.startswith("_") and label.startswith("_"):
            wanted = (label[1:], protocol[1:])
            chosen = [_port(name, port, target) for label, of, port, target in ports if (label, of) == wanted]
            return chosen or None
        case [protocol] if protocol.removeprefix("_") in _PROTOCOLS and protocol.startswith("_"):
            return []
        case [label]:
            hosts = list(dict.fromkeys(endpoint.address for endpoint in endpoints if endpoint.label == label))
            numbers = sorted({port for endpoint in endpoints if endpoint.label == label for *_, port in endpoint.ports})
            return [*_addresses(name, hosts), *(_port(name, port, name) for port in numbers)] if hosts else None
    return None


def _protocol(port: Object) -> str:
    return str(port.get("protocol") or "TCP").lower()


def _addresses(name: Name, addresses: Iterable[str]) -> list[Record]:
    return [Record(name, RecordType.AAAA if ":" in one else RecordType.A, _SECONDS, one) for one in addresses]


def _port(name: Name, port: int, target: Name) -> Record:
    return Record(name, RecordType.SRV, _SECONDS, Service(port, target))
