"""The functions that Kubernetes adds to CEL: quantity, url, ip, cidr, semver and named formats."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from kubekit.api.formats import valid_format
from kubekit.cel.values import ABSENT, CelError, OptionalValue, Quantity, Semver, less, some

INT_MIN, INT_MAX = -(2**63), 2**63 - 1


def compare(left: Any, right: Any) -> int:
    """-1, 0 or 1. Raises CelError for what has no order."""
    return -1 if less(left, right) else 1 if less(right, left) else 0


def _is(make: Callable[..., Any]) -> Callable[..., bool]:
    def check(*args: Any) -> bool:
        if not args or not isinstance(args[0], str):
            raise CelError("no such overload")
        try:
            make(*args)
        except (CelError, ValueError):
            return False
        return True

    return check


def _url(text: str) -> SplitResult:
    parts = urlsplit(text)
    if not (parts.scheme and parts.netloc) and not text.startswith("/"):
        raise CelError(f"URL parse error during conversion from string: parse {text!r}: invalid URI for request")
    return parts


def _ip(text: str) -> Any:
    return ipaddress.ip_address(text)


def _cidr(text: str) -> Any:
    return ipaddress.ip_network(text, strict=False)


def _contains_ip(network: Any, address: Any) -> bool:
    return (_ip(address) if isinstance(address, str) else address) in network


def _contains_cidr(network: Any, inner: Any) -> bool:
    other = _cidr(inner) if isinstance(inner, str) else inner
    return bool(other.version == network.version and other.subnet_of(network))


def _quantity_of(value: Any) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Quantity(str(value))
    raise CelError("no such overload")


def _as_integer(quantity: Quantity) -> int:
    if quantity.amount % 1:
        raise CelError("cannot convert value to integer")
    return int(quantity.amount)


def _semver(text: str, normalize: bool = False) -> Semver:
    if normalize:
        core = text.removeprefix("v")
        text = ".".join(str(int(p)) if p.isdigit() else p for p in [*core.split("."), "0", "0"][:3])
    return Semver(text)


class _NamedFormat:
    def __init__(self, name: str) -> None:
        self.name = name

    def validate(self, text: str) -> OptionalValue:
        return ABSENT if valid_format(self.name, text) else some([f"must be a valid {self.name}"])


@lru_cache
def _named_format(name: str) -> _NamedFormat:
    return _NamedFormat(name)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": Quantity,
    "isQuantity": _is(Quantity),
    "url": _url,
    "isURL": _is(_url),
    "ip": _ip,
    "isIP": _is(_ip),
    "cidr": _cidr,
    "isCIDR": _is(_cidr),
    "semver": _semver,
    "isSemver": _is(_semver),
}

NAMESPACES: dict[str, Callable[..., Any]] = {
    "ip.isCanonical": lambda text: str(_ip(text)) == text,
    "format.named": lambda name: some(_named_format(name)),
    **{
        f"format.{name}": (lambda fixed: lambda: _named_format(fixed))(name)
        for name in (
            "dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "labelValue",
            "uri", "uuid", "byte", "date", "datetime",
        )
    },
}  # fmt: skip

METHODS: dict[str, Callable[..., Any]] = {
    "validate": lambda named, text: named.validate(text),
    "getScheme": lambda url: url.scheme,
    "getHost": lambda url: url.netloc.rpartition("@")[2],
    "getHostname": lambda url: url.hostname or "",
    "getPort": lambda url: str(url.port) if url.port is not None else "",
    "getEscapedPath": lambda url: url.path,
    "getQuery": lambda url: parse_qs(url.query, keep_blank_values=True),
    "sign": lambda q: (q.amount > 0) - (q.amount < 0),
    "isInteger": lambda q: not q.amount % 1 and INT_MIN <= q.amount <= INT_MAX,
    "asInteger": _as_integer,
    "asApproximateFloat": lambda q: float(q.amount),
    "add": lambda q, other: Quantity(q.amount + _quantity_of(other).amount),
    "sub": lambda q, other: Quantity(q.amount - _quantity_of(other).amount),
    "isGreaterThan": lambda a, b: less(b, a),
    "isLessThan": less,
    "compareTo": compare,
    "major": lambda version: version.numbers[0],
    "minor": lambda version: version.numbers[1],
    "patch": lambda version: version.numbers[2],
    "family": lambda address: address.version,
    "isUnspecified": lambda address: address.is_unspecified,
    "isLoopback": lambda address: address.is_loopback,
    "isLinkLocalMulticast": lambda address: address.is_multicast and address.is_link_local,
    "isLinkLocalUnicast": lambda address: address.is_link_local,
    "isGlobalUnicast": lambda address: not (address.is_multicast or address.is_loopback or address.is_unspecified),
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "ip": lambda network: network.network_address,
    "masked": lambda network: network,
    "prefixLength": lambda network: network.prefixlen,
}
